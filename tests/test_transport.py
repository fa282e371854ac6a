"""Transport: messages and weights arrive as they were sent, whole, and leave nothing behind."""
from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import stat
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import PATIENCE, Crew, Learner

from lzero_async.core import AsyncTrainingError, Batch, Closed
from lzero_async.gate import Gate
from lzero_async.transport import memory, segments
from lzero_async.transport.memory import Block
from lzero_async.transport.weights import Layout, WeightStore, plain_names, read, write

pytestmark = pytest.mark.unittest
BIG = 2 * segments.LARGE


@pytest.fixture
def prefix() -> Iterator[str]:
    """A name for shared blocks; the test must have removed all of them."""
    prefix = memory.new_prefix()
    yield prefix
    assert blocks(prefix) == []


def blocks(prefix: str) -> list[str]:
    return sorted(path.name for path in memory.SHM_DIRECTORY.glob(f'{prefix}*'))


# ---------------------------------------------------------------------- messages


class Wire:
    """A real pipe; looks at shared memory while the message is under way."""

    def __init__(self, prefix: str, crew: Crew) -> None:
        self._ends = multiprocessing.Pipe()
        self._prefix, self._crew = prefix, crew
        self.shared: list[str] = []

    def carry(self, message: Any) -> Any:
        receiving = threading.Event()  # a message in the pipe may be larger than the pipe

        def receive() -> Any:
            assert self._ends[1].poll(PATIENCE)
            self.shared = blocks(self._prefix)
            receiving.set()
            return segments.receive(self._ends[1])

        received = self._crew.start(receive)
        segments.send(self._ends[0], message, f'{self._prefix}m')
        assert receiving.wait(PATIENCE)
        return received.result(PATIENCE)


@pytest.fixture
def wire(prefix: str, crew: Crew) -> Wire:
    return Wire(prefix, crew)


def assert_same(received: np.ndarray, sent: np.ndarray) -> None:
    assert (received.dtype, received.shape) == (sent.dtype, sent.shape)
    np.testing.assert_array_equal(received, sent)


def test_a_small_message_needs_no_shared_memory(wire: Wire) -> None:
    sent = {'array': np.arange(100), 'text': 'hello', 'nothing': None}
    received = wire.carry(sent)
    assert_same(received.pop('array'), sent.pop('array'))
    assert received == sent and wire.shared == []


def test_large_arrays_travel_in_one_shared_block_that_is_gone_afterwards(wire: Wire, prefix: str) -> None:
    sent = Batch(
        number=3, worker=1, version=7, metas=[{'done': True}], env_steps=20, segments=[
            np.random.default_rng(0).standard_normal((64, 96, 96)).astype(np.float32),
            np.arange(5, dtype=np.uint8), np.zeros((0, 3)), np.asfortranarray(np.arange(600.).reshape(20, 30)),
        ]
    )
    received = wire.carry(sent)
    assert wire.shared == [f'{prefix}m'] and blocks(prefix) == []
    for mine, theirs in zip(received.segments, sent.segments, strict=True):
        assert_same(mine, theirs)
        assert mine.flags.writeable and mine.flags.aligned
        assert not np.shares_memory(mine, theirs)
    assert (received.number, received.metas, received.env_steps) == (3, [{'done': True}], 20)


@pytest.mark.parametrize('size', [segments.LARGE - 1, segments.LARGE])
def test_the_size_of_the_arrays_decides(wire: Wire, size: int) -> None:
    wire.carry([np.zeros(size - 16, dtype=np.uint8), np.ones(16, dtype=np.uint8)])
    assert bool(wire.shared) == (size >= segments.LARGE)


@pytest.mark.parametrize('make', [
    lambda: np.arange(BIG).reshape(-1, 4)[::2, 1:3],
    lambda: np.arange(BIG, dtype=np.int16)[::-1],
    lambda: np.asfortranarray(np.arange(BIG, dtype=np.float64).reshape(1024, -1)),
    lambda: np.arange(BIG, dtype='>f4'),
    lambda: np.array([np.arange(BIG), 'text', None, {'key': 1}], dtype=object),
    lambda: np.zeros(BIG // 4, dtype=[('a', np.float32), ('b', np.int8)]),
    lambda: np.array('scalar'),
], ids=['strided', 'reversed', 'fortran', 'big-endian', 'object', 'structured', 'zero-dimensional'])
def test_arrays_of_every_kind_arrive_as_they_were(wire: Wire, make: Callable[[], np.ndarray]) -> None:
    sent = make()
    received = wire.carry(sent)
    assert (received.dtype, received.shape) == (sent.dtype, sent.shape)
    if sent.dtype == object:
        assert_same(received[0], sent[0])
        received, sent = received[1:], sent[1:]
    np.testing.assert_array_equal(received, sent)
    assert received.flags.writeable


def test_tensors_in_a_message_arrive_on_the_cpu(wire: Wire) -> None:
    received = wire.carry({'tensor': torch.arange(BIG)})['tensor']
    assert received.device.type == 'cpu' and torch.equal(received, torch.arange(BIG))


def test_without_room_in_shared_memory_the_pipe_carries_it(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, 'free_shared_memory', lambda: BIG - 1)
    sent = np.arange(BIG, dtype=np.uint8)
    received = wire.carry(sent)
    assert_same(received, sent)
    assert received.flags.writeable and wire.shared == []


def test_where_the_system_does_not_say_what_is_free_shared_memory_is_used(
        wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, 'SHM_DIRECTORY', Path('/nowhere'))
    assert memory.free_shared_memory() is None
    monkeypatch.undo()
    monkeypatch.setattr(memory, 'free_shared_memory', lambda: None)
    wire.carry(np.zeros(BIG, dtype=np.uint8))
    assert wire.shared


def test_a_message_to_nobody_leaves_no_block(prefix: str) -> None:
    here, there = multiprocessing.Pipe()
    there.close()
    with pytest.raises(OSError):
        segments.send(here, np.zeros(BIG, dtype=np.uint8), f'{prefix}m')
    assert blocks(prefix) == []


def test_a_message_that_cannot_be_pickled_leaves_no_block(prefix: str) -> None:
    here, there = multiprocessing.Pipe()
    with pytest.raises((AttributeError, pickle.PicklingError)):
        segments.send(here, [np.zeros(BIG, dtype=np.uint8), lambda: None], f'{prefix}m')
    assert not there.poll()


def echo(connection: Connection, prefix: str) -> None:
    """In a spawned child: send back what comes, with every array plus one, until None."""
    while (message := segments.receive(connection)) is not None:
        for array in message:
            array += 1  # what arrives is private and writable
        segments.send(connection, message, f'{prefix}r')


def test_a_spawned_child_gets_and_returns_arrays_and_nothing_is_left(prefix: str) -> None:
    context = multiprocessing.get_context('spawn')
    here, there = context.Pipe()
    child = context.Process(target=echo, args=(there, prefix))
    child.start()
    there.close()
    try:
        for size in (10, BIG, 3 * BIG, 10):
            sent = [np.arange(size), np.full((2, size), 0.5, dtype=np.float32)]
            segments.send(here, sent, f'{prefix}j')
            assert here.poll(60)
            for mine, theirs in zip(segments.receive(here), sent, strict=True):
                assert_same(mine, theirs + 1)
            assert blocks(prefix) == []
        segments.send(here, None, '')
    finally:
        here.close()
        child.join(PATIENCE)
    assert child.exitcode == 0


# ---------------------------------------------------------------------- blocks


def test_shared_blocks_are_private_to_the_user_and_gone_when_closed(prefix: str) -> None:
    block = Block(1000, f'{prefix}b')
    assert stat.S_IMODE(os.stat(memory.SHM_DIRECTORY / f'{prefix}b').st_mode) == 0o600
    assert block.view.nbytes == 1000 and block.name == f'{prefix}b'
    block.close()
    assert blocks(prefix) == []
    assert not memory.remove(f'{prefix}b')
    memory.create(f'{prefix}b', 10).close()  # left by a worker that died
    assert memory.remove(f'{prefix}b')


def test_a_block_that_does_not_fit_is_refused_with_a_remedy(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, 'free_shared_memory', lambda: 99)
    with pytest.raises(AsyncTrainingError, match='100 bytes .* 99 are free .*--shm-size'):
        Block(100, f'{prefix}b')


def test_prefixes_cannot_be_guessed() -> None:
    assert len({memory.new_prefix() for _ in range(100)}) == 100


# ---------------------------------------------------------------------- weights


def model() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        'layer.weight': torch.randn(33, 7, generator=generator),
        'layer.transposed': torch.randn(5, 3, generator=generator).t(),
        'norm.num_batches_tracked': torch.tensor(2 ** 53 + 1),
        'mask': torch.tensor([True, False, True]),
        'half': torch.randn(9, generator=generator).to(torch.bfloat16),
        'nothing': torch.empty(0, 4),
        'double': torch.tensor([float('nan'), -0.0, float('inf')], dtype=torch.float64),
    }


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize('shared', [False, True])
def test_weights_make_the_round_trip_bit_for_bit(prefix: str, shared: bool) -> None:
    weights = model()
    layout = pickle.loads(pickle.dumps(Layout.of(weights)))  # as a worker in another process has it
    block = Block(layout.size, f'{prefix}w' if shared else None)
    write(layout, weights, block.view)
    targets = {name: torch.empty_like(tensor).requires_grad_(tensor.is_floating_point())
               for name, tensor in weights.items()}
    read(layout, block.view, targets)
    for name, tensor in weights.items():
        assert (targets[name].dtype, targets[name].shape) == (tensor.dtype, tensor.shape)
        assert bits(targets[name]) == bits(tensor), name
    views = layout.views(block.view)
    assert list(views) == list(weights)
    assert all(view.device.type == 'cpu' for view in views.values())
    del views
    block.close()


def test_compiled_models_have_plain_names() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    names = list(net.state_dict())
    net[0] = torch.compile(net[0])
    compiled = torch.compile(net)
    assert all('_orig_mod.' in name for name in compiled.state_dict())
    plain = plain_names(compiled.state_dict())
    assert list(plain) == names
    assert plain['1.weight'].data_ptr() == net[1].weight.data_ptr()


def constant(value: float, count: int = 1000) -> dict[str, torch.Tensor]:
    return {'w': torch.full((count,), float(value))}


def values(store: WeightStore, version: int) -> set[float]:
    return set(np.unique(np.frombuffer(store.block(version).view, dtype=np.float32, count=1000)).tolist())


def test_a_version_that_is_used_or_held_is_never_overwritten() -> None:
    in_use = {0}
    store = WeightStore(Layout.of(constant(0)), lambda: in_use)
    assert store.publish(0, constant(0)) and not store.publish(0, constant(99))
    store.publish(1, constant(1))
    store.hold(1)
    store.hold(1)
    for version in range(2, 20):
        store.publish(version, constant(version))
        if version == 10:
            store.release(1)  # one of two holders
        assert (values(store, 0), values(store, 1), values(store, version)) == ({0.0}, {1.0}, {float(version)})
    assert store.buffers == 3 and store.published == 20
    store.release(1)
    in_use ^= {0, 19, 20}
    for version in (20, 21):
        store.publish(version, constant(version))  # in the place of 0 and 1
    for version in (0, 1):
        with pytest.raises(AsyncTrainingError, match=f'version {version} '):
            store.block(version)
    assert store.buffers == 3 and values(store, 19) == {19.0}
    store.close()


def test_the_stores_blocks_are_shared_named_and_removed(prefix: str) -> None:
    store = WeightStore(Layout.of(constant(0)), lambda: {0, 1}, prefix)
    for version in range(4):
        store.publish(version, constant(version))
    assert blocks(prefix) == [f'{prefix}w0', f'{prefix}w1', f'{prefix}w2']
    assert all(stat.S_IMODE(os.stat(memory.SHM_DIRECTORY / name).st_mode) == 0o600 for name in blocks(prefix))
    store.close()
    store.close()


@pytest.mark.parametrize('deterministic', [False, True])
def test_every_snapshot_that_the_gate_gave_out_or_may_give_out_is_kept(deterministic: bool) -> None:
    gate: Gate[None] = Gate(4, num_collectors=4, data_queue_size=4, deterministic=deterministic)
    store = WeightStore(Layout.of(constant(0)), gate.versions_in_use)
    learner, running, order = Learner(gate), {}, random.Random(0)
    store.publish(0, constant(0))
    for _ in range(1000):
        if taken := gate.try_take():
            store.publish(learner.train_iter + 1, constant(learner.train_iter + 1))
        for worker in range(4):  # the worst moment: after the publication, before the payment
            if worker not in running and (ticket := gate.try_admit(worker)):
                running[worker] = ticket
        for ticket in running.values():
            assert values(store, ticket.boundary.version) == {ticket.boundary.version}
        if taken:
            learner.learn(taken, Fraction(1))
        worker = order.randrange(4)  # some straggle
        if worker in running and gate.try_deliver(running[worker].number, None):
            del running[worker]
    assert learner.train_iter > 300
    assert store.buffers <= 4 + 4 + 1  # running, to be asked for, one to write into
    store.close()


@pytest.mark.parametrize('deterministic', [False, True])
def test_readers_never_see_a_torn_or_foreign_snapshot(crew: Crew, deterministic: bool) -> None:
    """Collectors read their snapshot while the learner publishes as fast as it can, through a real gate."""
    collectors, count = 3, 200_000
    gate: Gate[None] = Gate(collectors + 1, num_collectors=collectors, data_queue_size=2, deterministic=deterministic)
    store = WeightStore(Layout.of(constant(0, count)), gate.versions_in_use)
    learner = Learner(gate)
    store.publish(0, constant(0, count))

    def collect(worker: int) -> None:
        while True:
            ticket = gate.admit(worker)
            version = ticket.boundary.version
            for _ in range(3):  # it must stay what it is
                seen = np.frombuffer(store.block(version).view, dtype=np.float32, count=count)
                assert seen[0] == version and (seen == seen[0]).all()
            gate.deliver(ticket.number, None)

    jobs = [crew.start(collect, worker) for worker in range(collectors)]
    while learner.train_iter < 200 and not any(job.done() for job in jobs):
        taken = gate.take()
        store.publish(learner.train_iter + 1, constant(learner.train_iter + 1, count))
        learner.learn(taken, Fraction(1))
    gate.close()
    assert [type(job.exception(PATIENCE)) for job in jobs] == [Closed] * collectors
    assert store.buffers <= 2 * collectors + 3  # running, to be asked for, one to write into
    store.close()
