"""What a batch costs as things grow: the replay buffer, the model, the number of collectors."""
from __future__ import annotations

import contextlib
import copy
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import torch
from easydict import EasyDict
from lzero.mcts import UniZeroGameBuffer
from lzero.mcts.buffer.game_segment import GameSegment
from lzero.policy.unizero import UniZeroPolicy

from ..core import Boundary, ConfigError
from ..gate import Gate
from ..lightzero.build import preserved_root_logger
from ..replay import mend
from ..telemetry.report import write_report
from ..transport.memory import Block, new_prefix
from ..transport.weights import Layout, WeightStore, plain_names, read
from .child import Order
from .machine import machine
from .measure import measure
from .settings import PINNED, PROCESS, merge
from .table import columns

BUFFER_SIZES = (10**3, 10**4, 10**5, 10**6)
WIDTHS = (64, 128, 256, 512)
COLLECTORS_AT_THE_GATE = (1, 10, 100, 1000)
REAL_COLLECTORS = (1, 2, 3)
REAL_ENV_STEPS = 1500
ROUNDS = 7  # of every timing; the median counts


def run(json_path: Path | None = None, plot_path: Path | None = None) -> None:
    """Measure all, print tables, write JSON and picture where they are wanted."""
    for option, path in (('--json', json_path), ('--plot', plot_path)):
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f'{option} {path}: there is no directory {path.parent}')
    parts: dict[str, Callable[[], list[dict[str, float]]]] = {
        'buffer': buffer_rows, 'model': model_rows, 'gate': gate_rows, 'collectors': collector_rows
    }
    document: dict[str, Any] = {'machine': machine()}
    for name, measured in parts.items():
        with contextlib.redirect_stdout(io.StringIO()):  # upstream prints
            document[name] = measured()
        sys.stdout.write(f'{name}\n{as_table(document[name])}\n\n')
        sys.stdout.flush()
    if json_path is not None:
        write_report(json_path, document)
    if plot_path is not None:
        plot(document, plot_path)


def as_table(rows: Sequence[Mapping[str, float]]) -> str:
    return columns([list(rows[0]), *([f'{value:.4g}' for value in row.values()] for row in rows)])


def timed(work: Callable[[], Any], times: int) -> float:
    """Milliseconds per call, the median of several rounds."""
    rounds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(times):
            work()
        rounds.append((time.perf_counter() - started) / times)
    return 1e3 * statistics.median(rounds)


# ---------------------------------------------------------------------- the replay buffer


class NoModel:
    """A target model that answers at once, so that only the buffer's own work is timed."""

    def to(self, device: str) -> None:
        """It is everywhere."""

    def eval(self) -> None:
        """It never learns."""

    def initial_inference(self, observations: torch.Tensor, *_: Any, **__: Any) -> Any:
        count = len(observations)
        logits = torch.zeros(count, 101)
        return SimpleNamespace(value=logits, latent_state=logits, policy_logits=logits, reward=[0.0] * count)


def policy_config(**overrides: Any) -> EasyDict:
    """The pinned setting as a compiled policy config."""
    cfg = UniZeroPolicy.default_config()
    merge(cfg, PINNED['policy'])
    merge(cfg, {
        'device': 'cpu', 'cuda': False, 'use_wandb': False, 'reanalyze_outdated': True, 'mini_infer_size': 10240,
        'sample_type': 'transition', 'use_root_value': False, 'model': {'image_channel': 1}, **overrides
    })
    return cfg


def segment(cfg: EasyDict, rng: np.random.Generator) -> GameSegment:
    """A full and padded one."""
    padding = cfg.num_unroll_steps + cfg.td_steps
    made = GameSegment(gymnasium.spaces.Discrete(2), game_segment_length=cfg.game_segment_length, config=cfg)
    made.reset([rng.random(4, dtype=np.float32)])
    for step in range(cfg.game_segment_length):
        made.store_search_stats([1, 2], 0.5)
        made.append(int(rng.integers(2)), rng.random(4, dtype=np.float32), 1.0, np.ones(2, np.int8), -1, timestep=step)
    made.pad_over(list(rng.random((padding, 4), dtype=np.float32)), [1.0] * (padding - 1), [0] * padding,
                  [0.5] * padding, [[0.5, 0.5]] * padding)
    made.game_segment_to_array()
    return made


def buffer_rows() -> list[dict[str, float]]:
    """Milliseconds to push one batch and to draw one training batch, by upstream's buffer and by this package's."""
    rng = np.random.default_rng(0)
    rows = []
    for size in BUFFER_SIZES:
        cfg = policy_config(replay_buffer_size=size)
        stock = [segment(cfg, rng) for _ in range(50)]
        row: dict[str, float] = {'transitions': size}
        for name, cls in (('upstream', UniZeroGameBuffer), ('ours', mend(UniZeroGameBuffer))):
            buffer = cls(cfg)
            buffer.exact_draws = False
            fill(buffer, stock, size // cfg.game_segment_length)
            policy = SimpleNamespace(_target_model=NoModel())

            def push(buffer: Any = buffer, batch: list[GameSegment] = stock[:4]) -> None:
                buffer.push_game_segments((copy.copy(batch), [dict(META) for _ in batch]))
                buffer.remove_oldest_data_to_fit()

            def sample(buffer: Any = buffer, policy: Any = policy, size: int = cfg.batch_size) -> None:
                buffer.sample(size, policy)

            row[f'{name} push ms'] = timed(push, 10)
            row[f'{name} sample ms'] = timed(sample, 5)
        rows.append(row)
    return rows


META = {'priorities': None, 'done': False, 'unroll_plus_td_steps': 10}


def fill(buffer: Any, stock: Sequence[GameSegment], count: int) -> None:
    """As pushes would, in one go: upstream's take time in proportion to the square of ``count``."""
    length = buffer._cfg.game_segment_length
    buffer.push_game_segments((list(stock[:1]), [dict(META)]))
    more = [stock[index % len(stock)] for index in range(count - 1)]
    buffer.game_segment_buffer += more
    buffer.game_segment_game_pos_look_up += [(1 + i, at) for i in range(len(more)) for at in range(length)]
    buffer.game_pos_priorities = np.ones(len(buffer.game_segment_game_pos_look_up))
    if hasattr(buffer, '_nbytes_per_segment'):
        buffer._nbytes_per_segment.extend([buffer._nbytes_per_segment[0]] * len(more))


# ---------------------------------------------------------------------- the model


@preserved_root_logger()
def model_rows() -> list[dict[str, float]]:
    """Milliseconds to publish a snapshot and to load it into a worker's model."""
    rows = []
    for width in WIDTHS:
        cfg = policy_config()
        cfg.model.world_model_cfg.update(embed_dim=width)
        policy = UniZeroPolicy(cfg, enable_field=['learn', 'collect', 'eval'])
        weights = plain_names(policy._learn_model.state_dict())
        layout = Layout.of(weights)
        store = WeightStore(layout, lambda: (), new_prefix())
        block, targets = Block(layout.size), {name: tensor.clone() for name, tensor in weights.items()}

        def publish(store: WeightStore = store, weights: Any = weights) -> None:
            store.publish(store.published, weights)

        def load(layout: Layout = layout, block: Block = block, targets: Any = targets) -> None:
            read(layout, block.view, targets)

        times = timed(publish, 20), timed(load, 20)
        store.close()
        rows.append({'embed_dim': width, 'MB': layout.size / 2**20, 'publish ms': times[0], 'load ms': times[1]})
    return rows


# ---------------------------------------------------------------------- collectors


def gate_rows() -> list[dict[str, float]]:
    """Microseconds of the gate's own work per batch, from admission to payment."""
    rows = []
    for collectors in COLLECTORS_AT_THE_GATE:
        gate: Gate[None] = Gate(
            collectors + 1, num_collectors=collectors, data_queue_size=collectors + 1,
            start=Boundary(0, 0, 0, 0, False)
        )
        tickets = [gate.admit(worker) for worker in range(collectors)]
        done = [0]

        def batch(gate: Gate[None] = gate, tickets: list[Any] = tickets, done: list[int] = done) -> None:
            ticket = tickets[done[0] % len(tickets)]
            gate.deliver(ticket.number, None)
            taken = gate.take()
            updates = gate.grant(Fraction(1))
            done[0] += 1
            count = done[0]
            gate.pay(taken.number, updates, rest=0, train_iter=count, env_steps=count, version=count, warmup=False)
            tickets[(count - 1) % len(tickets)] = gate.admit((count - 1) % len(tickets))

        rows.append({'collectors': collectors, 'gate us per batch': 1e3 * timed(batch, 2000)})
        gate.close()
    return rows


def collector_rows() -> list[dict[str, float]]:
    """Real runs of the pinned setting with more collectors than one: speed, and memory of all processes together."""
    rows: list[dict[str, float]] = []
    for collectors in REAL_COLLECTORS:
        with tempfile.TemporaryDirectory() as directory:
            config = Path(directory, 'config.py')
            config.write_text(COLLECTORS_CONFIG.format(collectors=collectors), encoding='utf-8')
            result = measure(Order(PROCESS, REAL_ENV_STEPS, str(config)), disturb=False)
        rows.append({
            'collectors': collectors, 'env steps/s': result['env_steps_per_s'], 'updates/s': result['updates_per_s'],
            'peak RSS MB': result['peak_rss_mb'], 'peak PSS MB': result['peak_pss_mb'] or 0.0,
            'attained': result['attained']
        })
    return rows


COLLECTORS_CONFIG = '''
from lzero_async.bench.settings import PROCESS, configs
_, (main_config, create_config) = configs(None, PROCESS)
main_config.policy.async_pipeline.num_collectors = {collectors}
main_config.policy.off_policy_degree = {collectors} + 2
entry = 'train_unizero_segment_async'
'''


def plot(document: Mapping[str, Any], path: Path) -> None:
    """Cost against buffer size and against collectors."""
    import matplotlib
    matplotlib.use('Agg')
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.2))
    sizes = [row['transitions'] for row in document['buffer']]
    for name, colour in (('upstream', '#888888'), ('ours', '#1f77b4')):
        costs = [row[f'{name} sample ms'] for row in document['buffer']]
        axes[0].plot(sizes, costs, color=colour, marker='.', label=name)
    axes[0].set(xscale='log', xlabel='transitions stored', ylabel='ms to draw a training batch', ylim=(0, None))
    axes[0].legend(frameon=False)
    models = document['model']
    for what in ('publish', 'load'):
        axes[1].plot([row['MB'] for row in models], [row[f'{what} ms'] for row in models], marker='.', label=what)
    axes[1].set(xlabel='MB of weights', ylabel='ms', ylim=(0, None))
    axes[1].legend(frameon=False)
    gate = document['gate']
    axes[2].plot([row['collectors'] for row in gate], [row['gate us per batch'] for row in gate], marker='.')
    axes[2].set(xscale='log', xlabel='collectors', ylabel="gate's us per batch", ylim=(0, None))
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
