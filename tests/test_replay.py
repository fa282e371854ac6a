"""The mended buffers, on real upstream buffers, segments and policies."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium
import lzero.mcts
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lzero.entry.utils import log_buffer_memory_usage
from lzero.mcts.buffer.game_segment import GameSegment
from lzero.policy.muzero import MuZeroPolicy
from lzero.policy.unizero import UniZeroPolicy

from lzero_async.replay import mend, segment_nbytes
from lzero_async.replay.mended import distinct

pytestmark = pytest.mark.unittest

BUFFERS = [
    'UniZeroGameBuffer',
    'SampledUniZeroGameBuffer',
    'MuZeroGameBuffer',
    'EfficientZeroGameBuffer',
    'SampledEfficientZeroGameBuffer',
    'SampledMuZeroGameBuffer',
    'GumbelMuZeroGameBuffer',
    'StochasticMuZeroGameBuffer',
]
LENGTH, UNROLL, TD = 10, 2, 3
PADDING = UNROLL + TD


def config(policy_cls: type = UniZeroPolicy, **overrides: Any) -> Any:
    """A CartPole policy config, small enough that a policy takes a moment."""
    cfg = policy_cls.default_config()
    cfg.update(
        dict(
            cuda=False,
            device='cpu',
            use_wandb=False,
            game_segment_length=LENGTH,
            num_unroll_steps=UNROLL,
            td_steps=TD,
            batch_size=8,
            num_simulations=3,
            replay_buffer_size=100,
            reanalyze_ratio=0,
            reanalyze_outdated=True,
            reanalyze_partition=0.75,
            use_root_value=False,
            mini_infer_size=10240,
            sample_type='transition',
        )
    )
    cfg.update(overrides)
    cfg.model.update(dict(observation_shape=4, action_space_size=2, model_type='mlp', image_channel=1))
    if policy_cls is UniZeroPolicy:
        cfg.model.world_model_cfg.update(
            dict(
                max_blocks=UNROLL,
                max_tokens=2 * UNROLL,
                context_length=2 * UNROLL,
                action_space_size=2,
                num_layers=1,
                num_heads=2,
                embed_dim=16,
                env_num=8,
                obs_type='vector',
                norm_type='BN',
                num_simulations=3,
                device='cpu',
            )
        )
    return cfg


def segment(cfg: Any, length: int, padding: int = 0, seed: int = 0) -> GameSegment:
    """A game segment as the collector makes it: ``length`` steps of its own and ``padding`` of the next one's."""
    rng = np.random.default_rng(seed)

    def observations(count: int) -> list[np.ndarray]:
        return list(rng.random((count, 4), dtype=np.float32))

    made = GameSegment(gymnasium.spaces.Discrete(2), game_segment_length=cfg.game_segment_length, config=cfg)
    made.reset(observations(1))
    for step in range(length):
        made.store_search_stats(list(rng.integers(1, 9, 2)), float(rng.random()))
        made.append(int(rng.integers(2)), observations(1)[0], 1.0, np.ones(2, np.int8), -1, timestep=step)
    made.pad_over(
        observations(padding),
        [1.0] * max(padding - 1, 0),
        rng.integers(2, size=padding).tolist(),
        rng.random(padding).tolist(),
        [[0.5, 0.5]] * padding,
    )
    made.game_segment_to_array()
    return made


def meta(done: bool) -> dict[str, Any]:
    return {'priorities': None, 'done': done, 'unroll_plus_td_steps': PADDING}


def push(buffer: Any, made: GameSegment, done: bool = False) -> None:
    buffer.push_game_segments(([made], [meta(done)]))


def plain(name: str, cfg: Any) -> Any:
    return getattr(lzero.mcts, name)(cfg)


def mended(name: str, cfg: Any) -> Any:
    return mend(getattr(lzero.mcts, name))(cfg)


def assert_views_agree(buffer: Any) -> None:
    """Look-up, priorities, bytes and segments tell the same story."""
    expected = [
        (buffer.base_idx + index, position)
        for index, stored in enumerate(buffer.game_segment_buffer)
        for position in range(min(len(stored), LENGTH))
    ]
    assert buffer.game_segment_game_pos_look_up == expected
    assert len(buffer.game_pos_priorities) == len(expected)
    assert buffer.nbytes == sum(segment_nbytes(stored) for stored in buffer.game_segment_buffer)


def evicted(name: str, cfg: Any, pushes: int = 40) -> Any:
    """A mended buffer that has evicted most of what was pushed."""
    buffer = mended(name, cfg)
    for number in range(pushes):
        push(buffer, segment(cfg, LENGTH, PADDING, seed=number))
        buffer.remove_oldest_data_to_fit()
    assert buffer.base_idx > len(buffer.game_segment_buffer)
    return buffer


@pytest.fixture(scope='module', params=[MuZeroPolicy, UniZeroPolicy], ids=['muzero', 'unizero'])
def policy(request: pytest.FixtureRequest) -> Any:
    cfg = config(request.param)
    cfg.type = 'unizero' if request.param is UniZeroPolicy else 'muzero'
    return request.param(cfg, enable_field=['learn', 'collect', 'eval'])


def buffer_name(policy: Any) -> str:
    return 'UniZeroGameBuffer' if isinstance(policy, UniZeroPolicy) else 'MuZeroGameBuffer'


# ---------------------------------------------------------------- the defect


def test_upstream_exceeds_its_capacity_with_padded_segments() -> None:
    cfg = config()
    buffer = plain('UniZeroGameBuffer', cfg)
    held = []
    for number in range(80):
        push(buffer, segment(cfg, LENGTH, PADDING, seed=number))
        buffer.remove_oldest_data_to_fit()
        held.append(len(buffer.game_segment_buffer) * LENGTH)
    if held[-1] <= cfg.replay_buffer_size:
        pytest.skip('this upstream keeps its capacity by itself')
    assert held[-1] > held[len(held) // 2] > cfg.replay_buffer_size  # and it grows


# ---------------------------------------------------------------- eviction


@pytest.mark.parametrize('name', BUFFERS)
def test_every_buffer_keeps_its_capacity_and_stays_consistent(name: str) -> None:
    cfg = config()
    buffer = mended(name, cfg)
    for number in range(60):
        push(buffer, segment(cfg, LENGTH, PADDING, seed=number))
        buffer.remove_oldest_data_to_fit()
        assert_views_agree(buffer)
        assert buffer.get_num_of_transitions() == min((number + 1) * LENGTH, cfg.replay_buffer_size)


pushes = st.lists(
    st.lists(st.tuples(st.integers(1, LENGTH), st.integers(0, PADDING), st.booleans()), min_size=1, max_size=6),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(batches=pushes, capacity=st.integers(9, 60), batch_size=st.integers(1, 8))
def test_any_history_of_pushes_keeps_capacity_views_and_bytes(batches: Any, capacity: int, batch_size: int) -> None:
    cfg = config(replay_buffer_size=capacity, batch_size=batch_size)
    buffer = mended('UniZeroGameBuffer', cfg)
    newest: list[GameSegment] = []
    for batch in batches:
        # Only a full segment is ever padded.
        made = [segment(cfg, length, padding if length == LENGTH else 0) for length, padding, _ in batch]
        buffer.push_game_segments((made, [meta(done) for _, _, done in batch]))
        newest += made
        assert_views_agree(buffer)
        buffer.remove_oldest_data_to_fit()
        assert_views_agree(buffer)
        stored = buffer.get_num_of_transitions()
        oldest = len(buffer.game_segment_buffer[0].action_segment)
        assert stored <= capacity or stored - min(oldest, LENGTH) <= batch_size
        kept = buffer.game_segment_buffer
        assert all(a is b for a, b in zip(kept, newest[-len(kept) :], strict=True))


def test_capacity_within_a_segment_of_the_batch_neither_grows_nor_starves() -> None:
    cfg = config(replay_buffer_size=22, batch_size=20)
    buffer = mended('UniZeroGameBuffer', cfg)
    for number in range(30):
        push(buffer, segment(cfg, LENGTH, PADDING, seed=number))
        buffer.remove_oldest_data_to_fit()
    assert cfg.batch_size < buffer.get_num_of_transitions() < cfg.replay_buffer_size + LENGTH


def test_eviction_equals_upstream_where_nothing_is_padded() -> None:
    cfg = config()
    ours, theirs = mended('UniZeroGameBuffer', cfg), plain('UniZeroGameBuffer', cfg)
    for number in range(40):
        made = segment(cfg, 1 + number % LENGTH, seed=number)
        for buffer in (ours, theirs):
            push(buffer, made, done=True)
            buffer.remove_oldest_data_to_fit()
        assert ours.game_segment_buffer == theirs.game_segment_buffer
        assert ours.game_segment_game_pos_look_up == theirs.game_segment_game_pos_look_up
        assert np.array_equal(ours.game_pos_priorities, theirs.game_pos_priorities)


def test_sampling_after_eviction_takes_the_segments_that_the_look_up_names() -> None:
    buffer = evicted('UniZeroGameBuffer', config())
    segments, positions, indices, _, _ = buffer._sample_orig_data(32)
    for made, position, index in zip(segments, positions, indices, strict=True):
        number, stored_position = buffer.game_segment_game_pos_look_up[index]
        assert made is buffer.game_segment_buffer[number - buffer.base_idx]
        assert position == stored_position


# ---------------------------------------------------------------- reanalysis


def test_reanalysis_after_eviction_draws_what_a_buffer_without_past_draws() -> None:
    cfg = config()
    buffer = evicted('UniZeroGameBuffer', cfg)
    fresh = plain('UniZeroGameBuffer', cfg)
    for made in copy.deepcopy(buffer.game_segment_buffer):
        push(fresh, made)
    base_idx = buffer.base_idx
    for seed in range(20):
        np.random.seed(seed)
        ours = buffer._sample_orig_reanalyze_batch(13)
        np.random.seed(seed)
        theirs = fresh._sample_orig_reanalyze_batch(13)
        assert ours[1:] == theirs[1:]
        assert all(0 <= index < int(0.75 * len(buffer.game_segment_buffer)) for index in ours[2])
        assert all(made is buffer.game_segment_buffer[index] for made, index in zip(ours[0], ours[2], strict=True))
    assert buffer.base_idx == base_idx
    assert [made.reanalyze_time for made in buffer.game_segment_buffer] == [
        made.reanalyze_time for made in fresh.game_segment_buffer
    ]


def test_a_failing_reanalysis_leaves_the_base_index_as_it_was() -> None:
    buffer = evicted('UniZeroGameBuffer', config(reanalyze_partition=1.0))
    base_idx = buffer.base_idx
    with pytest.raises(AssertionError):
        buffer._sample_orig_reanalyze_batch(8)
    assert buffer.base_idx == base_idx


def test_reanalyze_buffer_rewrites_the_drawn_segments_only(policy: Any) -> None:
    buffer = evicted(buffer_name(policy), policy._cfg)
    before = [made.child_visit_segment.copy() for made in buffer.game_segment_buffer]
    buffer.reanalyze_buffer(LENGTH // UNROLL * 2, policy)
    drawn = [made.reanalyze_time > 0 for made in buffer.game_segment_buffer]
    after = [made.child_visit_segment for made in buffer.game_segment_buffer]
    assert sum(drawn) == 2
    assert [not np.array_equal(a, b) for a, b in zip(after, before, strict=True)] == drawn
    assert_views_agree(buffer)


# ---------------------------------------------------------------- short segments


@pytest.mark.parametrize('length', range(1, PADDING + 1))
def test_short_unfinished_segments_have_positions_but_none_is_valid(length: int) -> None:
    cfg = config()
    buffer = mended('UniZeroGameBuffer', cfg)
    push(buffer, segment(cfg, LENGTH), done=True)
    push(buffer, segment(cfg, length))
    assert_views_agree(buffer)
    assert buffer.game_pos_priorities.tolist() == [1.0] * LENGTH + [0.0] * length


def test_given_priorities_of_short_segments_are_zeroed_and_the_callers_meta_is_kept() -> None:
    cfg = config()
    buffer = mended('UniZeroGameBuffer', cfg)
    given_meta = {'priorities': np.full(3, 7.0), 'done': False, 'unroll_plus_td_steps': PADDING}
    buffer.push_game_segments(([segment(cfg, 3)], [given_meta]))
    assert_views_agree(buffer)
    assert buffer.game_pos_priorities.tolist() == [0.0] * 3
    assert given_meta['unroll_plus_td_steps'] == PADDING


# ---------------------------------------------------------------- equality with upstream


def same(a: Any, b: Any) -> bool:
    """Whether two nested batches hold equal arrays."""
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if a is None or b is None:
        return a is b
    return bool(np.array_equal(np.asarray(a), np.asarray(b)))


def test_pushes_and_samples_equal_upstream_until_the_first_eviction(policy: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr('time.time', lambda: 1.0)  # a sample carries the time when it was made
    cfg = copy.deepcopy(policy._cfg)
    cfg.replay_buffer_size = 10000
    drawn = []
    for make in (plain, mended):
        np.random.seed(7)
        buffer, samples = make(buffer_name(policy), cfg), []
        for number in range(12):
            full = number % 3 > 0
            made = segment(cfg, LENGTH if full else 1 + number % 7, PADDING if full else 0, seed=number)
            push(buffer, made, done=not full)
            buffer.remove_oldest_data_to_fit()
            if buffer.get_num_of_transitions() > cfg.batch_size:
                samples.append(buffer.sample(cfg.batch_size, policy))
        buffer._sample_orig_reanalyze_batch(8)
        drawn.append((samples, buffer.game_pos_priorities, buffer.game_segment_game_pos_look_up))
        drawn[-1] += (buffer.num_of_collected_episodes, np.random.random(4))
    assert len(drawn[0][0]) > 5
    assert same(drawn[0], drawn[1])


# ---------------------------------------------------------------- draws that do not cost what the buffer holds


@settings(max_examples=100, deadline=None)
@given(count=st.integers(1, 40), more=st.integers(0, 400), seed=st.integers(0, 9))
def test_distinct_numbers_in_range(count: int, more: int, seed: int) -> None:
    np.random.seed(seed)
    drawn = distinct(count + more, count)
    assert len(set(drawn.tolist())) == count and 0 <= drawn.min() and drawn.max() < count + more
    np.random.seed(seed)
    assert np.array_equal(drawn, distinct(count + more, count))


@pytest.mark.parametrize('total', [12, 40])  # either way of drawing
def test_all_pairs_are_alike_likely(total: int) -> None:
    np.random.seed(0)
    draws = 40 * total * (total - 1)
    counts = np.zeros((total, total))
    for _ in range(draws):
        counts[tuple(distinct(total, 2))] += 1
    assert (np.diag(counts) == 0).all()
    off = counts[~np.eye(total, dtype=bool)]
    chi_square = ((off - 40)**2 / 40).sum()
    assert abs(chi_square - len(off)) < 5 * np.sqrt(2 * len(off)), 'uniform over ordered pairs'


def test_free_draws_look_at_every_position_and_keep_upstreams_form(policy: Any) -> None:
    cfg = copy.deepcopy(policy._cfg)
    buffer = evicted(buffer_name(policy), cfg)
    buffer.exact_draws = False
    seen = set()
    for _ in range(200):
        segments, starts, indices, weights, made = buffer._sample_orig_data(cfg.batch_size)
        assert len(segments) == len(starts) == len(set(indices.tolist())) == len(weights) == len(made) == cfg.batch_size
        assert weights.tolist() == [1.0] * cfg.batch_size
        assert indices.tolist() == sorted(indices)  # reanalyze_outdated
        for stored, start, index in zip(segments, starts, indices, strict=True):
            number, position = buffer.game_segment_game_pos_look_up[index]
            assert stored is buffer.game_segment_buffer[number - buffer.base_idx] and start == position
        seen.update(indices.tolist())
    assert seen == set(range(buffer.get_num_of_transitions()))
    buffer.sample(cfg.batch_size, policy)


def test_most_pushes_copy_no_priorities() -> None:
    cfg = config(replay_buffer_size=10**6)
    buffer = mended('UniZeroGameBuffer', cfg)
    copies, store = 0, None
    for number in range(400):
        push(buffer, segment(cfg, LENGTH, PADDING, seed=number))
        copies += buffer.game_pos_priorities.base is not store
        store = buffer.game_pos_priorities.base
    assert copies < 10
    assert_views_agree(buffer)


# ---------------------------------------------------------------- bytes and logging


class Recorder:
    """A TensorBoard writer that remembers."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.values[tag] = scalar_value


def test_memory_log_has_upstreams_tags_and_counts() -> None:
    buffer = evicted('UniZeroGameBuffer', config())
    ours, theirs = Recorder(), Recorder()
    buffer.log_memory_usage(3, ours)
    log_buffer_memory_usage(3, buffer, theirs)
    assert list(ours.values) == list(theirs.values)
    counts = [tag for tag in theirs.values if 'num_of' in tag]
    assert [ours.values[tag] for tag in counts] == [theirs.values[tag] for tag in counts]
    size = 'Buffer/memory_usage/game_segment_buffer'
    assert 0 < ours.values[size] <= theirs.values[size]  # the arrays, without Python's own objects
    buffer.log_memory_usage(3, None)


def test_bytes_count_arrays_inside_lists() -> None:
    made = segment(config(sampled_algo=True), 2)
    made.root_sampled_actions = []
    bare = segment_nbytes(made)
    made.root_sampled_actions = [np.zeros(3), np.zeros(3)]
    assert segment_nbytes(made) == bare + 2 * 3 * 8


# ---------------------------------------------------------------- the class


def test_mend_is_cached_idempotent_and_named() -> None:
    cls = mend(lzero.mcts.UniZeroGameBuffer)
    assert cls is mend(lzero.mcts.UniZeroGameBuffer)
    assert cls is mend(cls)
    assert cls.__name__ == 'MendedUniZeroGameBuffer'
    assert issubclass(cls, lzero.mcts.UniZeroGameBuffer)
    with pytest.raises(TypeError, match='dict'):
        mend(dict)


def test_a_mended_buffer_pickles_without_the_policy_and_goes_on(policy: Any) -> None:
    cfg = policy._cfg
    buffer = evicted(buffer_name(policy), cfg)
    buffer.reanalyze_buffer(LENGTH // UNROLL, policy)
    restored = pickle.loads(pickle.dumps(buffer))
    assert type(restored) is type(buffer)
    assert not hasattr(restored, 'policy')
    for number in range(20):
        push(restored, segment(cfg, LENGTH, PADDING, seed=number))
        restored.remove_oldest_data_to_fit()
        assert_views_agree(restored)
    assert restored.get_num_of_transitions() == cfg.replay_buffer_size
