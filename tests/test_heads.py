"""Heads that nobody reads are not computed, and every number that is read stays what it was."""
from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from lzero.policy.unizero import UniZeroPolicy
from test_replay import config

from lzero_async.lightzero.heads import HEADS, read_heads_only, wanted

pytestmark = pytest.mark.unittest
ENVS = 3


@pytest.fixture(scope='module')
def policy() -> Any:
    torch.manual_seed(0)
    cfg = config(collector_env_num=ENVS, evaluator_env_num=ENVS)
    cfg.type = 'unizero'
    return UniZeroPolicy(cfg, enable_field=['learn', 'collect', 'eval'])


def world_models(policy: Any) -> tuple[Any, Any]:
    plain = policy._collect_model.world_model.eval()
    light = copy.deepcopy(plain)
    read_heads_only(light)
    return plain, light


def an_episode(world_model: Any) -> list[np.ndarray]:
    """Roots of three steps and two simulations in each; everything that a search reads."""
    rng = np.random.default_rng(0)
    before, actions, read = torch.zeros(ENVS, 4), [-1] * ENVS, []
    for step in range(3):
        now = torch.from_numpy(rng.random((ENVS, 4), dtype=np.float32))
        asked = {'obs': before, 'action': actions, 'current_obs': now}
        _, latent, _, policy, value = world_model.forward_initial_inference(asked, [np.asarray(step)] * ENVS)
        read += [latent.numpy(), policy.numpy(), value.numpy()]
        history = []
        for simulation in range(2):
            history.append((latent.numpy(), torch.from_numpy(rng.integers(2, size=ENVS))))
            _, latent, reward, policy, value = world_model.forward_recurrent_inference(
                history, simulation, [simulation + 1] * ENVS, [np.asarray(step)] * ENVS
            )
            read += [latent.numpy(), reward.numpy(), policy.numpy(), value.numpy()]
        before, actions = now, rng.integers(2, size=ENVS).tolist()
    return read


def test_what_a_search_reads_is_the_same(policy: Any) -> None:
    plain, light = world_models(policy)
    ours, upstream = an_episode(light), an_episode(plain)
    assert len(ours) == len(upstream) > 20
    assert all(np.array_equal(a, b) for a, b in zip(ours, upstream, strict=True))


def test_half_of_the_heads_and_more_are_left_out(policy: Any) -> None:
    calls = {}
    for name, world_model in zip(('plain', 'light'), world_models(policy), strict=True):
        count = [0]
        for head in HEADS:
            module = getattr(world_model, head).head_module
            module.register_forward_hook(lambda *_, count=count: count.__setitem__(0, count[0] + 1))
        an_episode(world_model)
        calls[name] = count[0]
    assert 0 < calls['light'] <= calls['plain'] / 2


def test_names_of_weights_do_not_change(policy: Any) -> None:
    plain, light = world_models(policy)
    assert list(plain.state_dict()) == list(light.state_dict())


def test_it_can_be_undone_and_copied(policy: Any) -> None:
    plain = policy._collect_model.world_model.eval()
    light = copy.deepcopy(plain)
    undo = read_heads_only(light)
    undo()
    assert not any('forward' in vars(module) for module in light.modules())
    assert all(np.array_equal(a, b) for a, b in zip(an_episode(copy.deepcopy(light)), an_episode(plain), strict=True))


def test_a_world_model_of_another_kind_is_left_alone() -> None:

    class Other:
        num_observations_tokens = 16

        def forward(self) -> None:
            pass

    other = Other()
    read_heads_only(other)
    assert not vars(other)


def test_what_is_unknown_is_computed_in_full() -> None:
    assert wanted({'something': 1}, True) == set(HEADS)
