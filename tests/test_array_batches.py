"""UniZero's batches built with arrays, against upstream's own, number by number and draw by draw."""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lzero.mcts import UniZeroGameBuffer
from lzero.mcts.buffer.game_segment import GameSegment
from test_replay import config

from lzero_async.replay import mend

pytestmark = pytest.mark.unittest


class Oracle:
    """Stands in for the target model: values that depend on everything that is asked, so that any change shows."""

    training = False

    def to(self, device: str) -> None:
        assert device == 'cpu'

    def eval(self) -> None:
        pass

    def initial_inference(self, obs: torch.Tensor, actions: np.ndarray, start_pos: np.ndarray) -> Any:
        rows = obs.reshape(obs.shape[0], -1).double().sum(1)
        asked = torch.as_tensor(actions).sum() + 3 * torch.as_tensor(start_pos).sum()
        logits = torch.sin(rows[:, None] * torch.arange(1, 102) + asked)
        return SimpleNamespace(value=logits.float(), latent_state=obs, policy_logits=logits, reward=[0.0] * len(rows))


class Episode:
    """What a collector would have met, cut into segments and padded as it does."""

    def __init__(self, cfg: Any, seed: int, reward_type: type) -> None:
        self.cfg = cfg
        self.rng = np.random.default_rng(seed)
        self.reward_type = reward_type
        self.made = 0

    def segment(self, length: int, padding: int) -> GameSegment:
        """Of whole numbers where ``reward_type`` is ``round``, but every third, so that types are mixed."""
        cfg, rng = self.cfg, self.rng
        self.made += 1
        reward_type = float if self.reward_type is round and self.made % 3 else self.reward_type
        frames = cfg.model.frame_stack_num
        made = GameSegment(gymnasium.spaces.Discrete(2), game_segment_length=cfg.game_segment_length, config=cfg)
        made.reset(list(rng.random((frames, 4), dtype=np.float32)))
        for step in range(length):
            made.store_search_stats(list(rng.integers(1, 9, 2)), float(rng.random()))
            made.append(
                int(rng.integers(2)), rng.random(4, dtype=np.float32), reward_type(rng.normal()),
                np.ones(2, np.int8), -1, timestep=np.asarray(step + 1)
            )
        made.pad_over(
            list(rng.random((padding, 4), dtype=np.float32)),
            [reward_type(rng.normal()) for _ in range(max(padding - 1, 0))],
            rng.integers(2, size=min(padding, cfg.num_unroll_steps)).tolist(), rng.random(padding).tolist(),
            rng.dirichlet([1, 1], padding).tolist()
        )
        made.game_segment_to_array()
        return made


def sampled(buffer: Any, batch_size: int) -> tuple[list[np.ndarray], Any]:
    np.random.seed(7)
    current, target = buffer.sample(batch_size, SimpleNamespace(_target_model=Oracle()))
    return [*current, *target], np.random.get_state()


def assert_same(ours: Any, upstream: Any) -> None:
    for number, (a, b) in enumerate(zip(ours[0], upstream[0], strict=True)):
        if number == 6:
            continue  # when the batch was made
        assert a.dtype == b.dtype and a.shape == b.shape, number
        assert np.array_equal(a, b), number
    assert all(np.array_equal(a, b) for a, b in zip(ours[1], upstream[1], strict=True)), 'the same draws'


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 10), st.booleans()), min_size=3, max_size=12),
    unroll=st.integers(1, 5), td_steps=st.integers(1, 5), frames=st.integers(1, 3), batch_size=st.integers(1, 12),
    reward_type=st.sampled_from([np.float32, np.float64, round]), evict=st.booleans(), outdated=st.booleans()
)
def test_every_batch_equals_upstreams(
        lengths: Any, unroll: int, td_steps: int, frames: int, batch_size: int, reward_type: type, evict: bool,
        outdated: bool
) -> None:
    cfg = config(
        num_unroll_steps=unroll, td_steps=td_steps, replay_buffer_size=1000, batch_size=batch_size,
        reanalyze_outdated=outdated
    )
    cfg.model.frame_stack_num = frames
    episode = Episode(cfg, seed=len(lengths), reward_type=reward_type)
    full = cfg.game_segment_length
    segments = [episode.segment(full if whole else n, unroll + td_steps if whole else 0) for n, whole in lengths]
    metas = [{'priorities': None, 'done': not whole, 'unroll_plus_td_steps': 1} for _, whole in lengths]
    buffers = UniZeroGameBuffer(cfg), mend(UniZeroGameBuffer)(cfg)
    for buffer in buffers:
        buffer.push_game_segments((segments, metas))
        if evict:  # upstream's own removal is wrong for padded segments, so that the oldest goes by hand
            positions = min(len(segments[0]), full)
            del buffer.game_segment_buffer[:1], buffer.game_segment_game_pos_look_up[:positions]
            buffer.game_pos_priorities = buffer.game_pos_priorities[positions:]
            buffer.base_idx += 1
    batch_size = min(batch_size, buffers[0].get_num_of_transitions())
    assert_same(sampled(buffers[1], batch_size), sampled(buffers[0], batch_size))


def test_the_arrays_are_really_used(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = config()
    buffer = mend(UniZeroGameBuffer)(cfg)
    buffer.push_game_segments(([Episode(cfg, 0, np.float32).segment(10, 5)], [
        {'priorities': None, 'done': False, 'unroll_plus_td_steps': 5}
    ]))
    monkeypatch.setattr(UniZeroGameBuffer, '_make_batch', lambda *_: pytest.fail('upstream made the batch'))
    sampled(buffer, 4)


@pytest.mark.parametrize('setting', [dict(env_type='board_games'), dict(action_type='varied_action_space')])
def test_what_is_not_plain_is_left_to_upstream(monkeypatch: pytest.MonkeyPatch, setting: dict[str, str]) -> None:
    cfg = config(**setting)
    buffer = mend(UniZeroGameBuffer)(cfg)
    monkeypatch.setattr(UniZeroGameBuffer, '_make_batch', lambda *_: 'upstream')
    assert buffer._make_batch(4, 0) == 'upstream'
