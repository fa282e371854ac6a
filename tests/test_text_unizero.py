"""UniZero on the shipped text game: real Jericho, real LightZero, a tiny random BERT as the pretrained encoder."""
from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from easydict import EasyDict
from tiny_text import tiny_encoder, tiny_text
from transformers import AutoModel

from lzero_async import ConfigError, train_unizero_segment_async
from lzero_async.core import Batch, CollectRequest, EvalRequest
from lzero_async.lightzero.build import compiled, environments, model_tensors, policy_of
from lzero_async.lightzero.workers import CollectWorker, EvalWorker
from lzero_async.recipes import TEXT_UNIZERO, UNIZERO, recipe_for
from lzero_async.recipes.text_unizero import TextUniZeroRecipe
from lzero_async.replay import mend
from lzero_async.text import encoder as encoders
from lzero_async.text.encoder import CachedEncoder, pretrained_encoder
from lzero_async.text.search import TextGameBuffer, full_width
from lzero_async.validate import prepare

pytestmark = pytest.mark.envtest


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # models this small gain nothing from more
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope='module')
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_encoder(tmp_path_factory.mktemp('text') / 'bert')


def compiled_text(encoder: str, env: dict[str, Any] | None = None, **policy: Any) -> EasyDict:
    return compiled(TEXT_UNIZERO, *prepare(*tiny_text(encoder, env, **policy)), 0)


def ready_policy(cfg: EasyDict, recipe: Any = TEXT_UNIZERO) -> Any:
    torch.manual_seed(0)
    policy = policy_of(cfg, None)
    recipe.ready(policy)
    return policy


def collected(worker: CollectWorker, batches: int, temperature: float = 1.0) -> list[Batch]:
    return [worker.run(CollectRequest(number, 0, 0, 0, temperature, 0.0)) for number in range(batches)]


# ---------------------------------------------------------------------- the encoder


def test_the_pretrained_encoder_is_put_back_in_model_and_target(encoder: str) -> None:
    cfg = compiled_text(encoder)
    pretrained = AutoModel.from_pretrained(encoder).state_dict()
    overwritten = policy_of(cfg, None)._learn_model.representation_network.model.state_dict()
    name = 'embeddings.word_embeddings.weight'
    assert not torch.equal(overwritten[name], pretrained[name]), 'upstream has mended it: this can go'
    policy = ready_policy(cfg)
    model, target = (m.representation_network.model for m in (policy._learn_model, policy._target_model))
    assert model is target and isinstance(model, CachedEncoder)
    assert policy._learn_model.world_model.tokenizer.encoder.model is model, 'what the world model encodes with'
    for key, value in model._encoder.state_dict().items():
        assert torch.equal(value, pretrained[key])


def test_the_encoder_is_in_no_state_no_snapshot_and_no_optimizer(encoder: str) -> None:
    policy = ready_policy(compiled_text(encoder))
    inside = policy._learn_model.representation_network.model._encoder
    shapes = {tuple(tensor.shape) for tensor in inside.state_dict().values() if tensor.dim() == 2}
    names = [*model_tensors(policy), *policy._target_model.state_dict()]
    assert names and not [name for name in names if 'representation_network.model' in name or 'encoder.model' in name]
    held = [p for group in policy._optimizer_world_model.param_groups for p in group['params']]
    learnt = {id(p) for p in policy._learn_model.world_model.parameters()}
    assert {id(p) for p in held} == learnt and len(held) == len(learnt)
    assert not [p for p in held if tuple(p.shape) in shapes - {(32, 32), (16, 32)}]


def test_remembered_rows_equal_the_encoders_own_output_also_while_learning(encoder: str) -> None:
    cached = pretrained_encoder(encoder, 'cpu')
    reference = AutoModel.from_pretrained(encoder).eval()
    rows = torch.zeros(3, 20, dtype=torch.long)
    rows[0, :7] = torch.arange(2, 9)
    rows[1, :20] = torch.arange(20, 40)
    mask = rows != 0
    with torch.no_grad():
        wanted = reference(rows[:2], attention_mask=mask[:2].long()).last_hidden_state[:, 0]
    cached.train()
    fresh = cached(rows, attention_mask=mask).last_hidden_state[:, 0]
    misses = cached.rows.misses
    with torch.inference_mode():
        again = cached(rows, attention_mask=mask).last_hidden_state[:, 0]
    assert cached.rows.misses == misses and torch.equal(fresh, again)
    assert torch.allclose(fresh[:2], wanted, atol=1e-6)
    assert torch.isfinite(fresh[2]).all(), 'a row of nothing but padding, as there is after a reset'
    assert not torch.allclose(fresh[0], fresh[1])


def test_rows_remembered_are_bounded(encoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, 'ROWS', 4)
    cached = CachedEncoder(AutoModel.from_pretrained(encoder), encoder)
    rows = torch.arange(1, 13).reshape(6, 2)
    one = cached(rows, attention_mask=torch.ones_like(rows)).last_hidden_state
    assert len(cached.rows) == 4
    assert torch.allclose(cached(rows, attention_mask=torch.ones_like(rows)).last_hidden_state, one, atol=1e-6)


def test_policies_of_a_process_share_the_encoder_and_copies_too(encoder: str) -> None:
    cfg = compiled_text(encoder)
    one, two = ready_policy(cfg), ready_policy(cfg)
    shared = one._learn_model.representation_network.model
    assert two._learn_model.representation_network.model is shared
    assert copy.deepcopy(shared) is shared and pickle.loads(pickle.dumps(shared)) is shared


@pytest.mark.parametrize('with_encoder', [True, False])
def test_checkpoints_load_with_and_without_an_encoder(
        encoder: str, with_encoder: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cfg = compiled_text(encoder)
    source = policy_of(cfg, None) if with_encoder else ready_policy(cfg)
    for group in source._optimizer_world_model.param_groups:
        for parameter in group['params']:
            # As after an update: upstream's encoder gets no gradient, so Adam has no state for it.
            if id(parameter) not in {id(p) for p in source._learn_model.representation_network.model.parameters()}:
                parameter.grad = torch.full_like(parameter, 0.1)
    source._optimizer_world_model.step()
    state = copy.deepcopy(source.learn_mode.state_dict())
    policy = ready_policy(cfg)
    with caplog.at_level('WARNING', 'lzero_async'):
        policy.learn_mode.load_state_dict(state)
    assert ('another text encoder' in caplog.text) == with_encoder
    for name, tensor in model_tensors(policy).items():
        assert torch.equal(tensor, state['model'][f'_orig_mod.{name}'] if f'_orig_mod.{name}' in state['model']
                           else state['model'][name])
    loaded = policy._optimizer_world_model.state
    for group in policy._optimizer_world_model.param_groups:
        for parameter in group['params']:
            assert loaded[parameter]['exp_avg'].shape == parameter.shape


# ---------------------------------------------------------------------- collecting


class Witness(TextUniZeroRecipe):
    """Sees all that the hooks show."""

    def __init__(self) -> None:
        self.searches: list[tuple[str, dict[int, Any], dict[int, Any]]] = []
        self.steps: list[tuple[str, dict[int, Any], dict[int, Any]]] = []
        self._before: Any = None

    def before_search(self, policy: Any, ready_obs: Any, phase: Any) -> None:
        self._before = ready_obs

    def after_search(self, policy: Any, ready_obs: Any, output: dict[int, Any], phase: Any) -> None:
        assert ready_obs is self._before
        self.searches.append((phase, dict(ready_obs), {env_id: dict(found) for env_id, found in output.items()}))

    def after_step(self, policy: Any, actions: Any, timesteps: Any, phase: Any) -> None:
        self.steps.append((phase, dict(actions), dict(timesteps)))


@pytest.fixture
def collector(encoder: str) -> Iterator[Callable[..., tuple[CollectWorker, Witness, EasyDict]]]:
    workers: list[CollectWorker] = []

    def make(**policy: Any) -> tuple[CollectWorker, Witness, EasyDict]:
        cfg, witness = compiled_text(encoder, **policy), Witness()
        np.random.seed(1)
        workers.append(CollectWorker(
            cfg, environments(cfg, 'collector', 0), policy=ready_policy(cfg, witness), recipe=witness
        ))
        return workers[-1], witness, cfg

    yield make
    for worker in workers:
        worker.close()


def own_steps(segment: Any) -> int:
    """How many transitions are a segment's own, not padded on from the next one."""
    return len(segment.timestep_segment)


@pytest.mark.parametrize('length', [5, 40])
def test_what_is_stored_is_what_happened(collector: Any, length: int) -> None:
    worker, witness, cfg = collector(game_segment_length=length)
    batches = collected(worker, 20 if length == 5 else 8)
    segments = [segment for batch in batches for segment in batch.segments]
    # The truth, by environment: (observation, mask, action, reward, timestep) of every step, in order.
    truth: dict[int, list[tuple[Any, ...]]] = {0: [], 1: []}
    episodes = 0
    for (_, observations, _outputs), (_, actions, timesteps) in zip(witness.searches, witness.steps, strict=True):
        for env_id, seen in observations.items():
            assert seen['action_mask'][actions[env_id]] == 1
            truth[env_id].append((
                seen['observation'].tobytes(), seen['action_mask'].tobytes(), int(actions[env_id]),
                float(timesteps[env_id].reward), int(seen['timestep'])
            ))
            if timesteps[env_id].done:
                episodes += 1
                if timesteps[env_id].info['game_over']:  # a step of rest is stored with it
                    over = timesteps[env_id].obs
                    truth[env_id].append((
                        over['observation'].tobytes(), over['action_mask'].tobytes(), 0, 0.0, int(over['timestep'])
                    ))
    assert episodes >= 6
    joined = {env_id: list(steps) for env_id, steps in truth.items()}
    found = begun = 0
    for segment in segments:
        count = own_steps(segment)
        stored = [
            (segment.obs_segment[i].tobytes(), segment.action_mask_segment[i].tobytes(), int(segment.action_segment[i]),
             float(segment.reward_segment[i]), int(segment.timestep_segment[i])) for i in range(count)
        ]
        for step in stored:
            assert np.frombuffer(step[1], np.int8)[step[2]] == 1, 'legal under its own mask'
        # Where one of the environments went on from where its last segment ended.
        fits = [env_id for env_id, steps in joined.items() if steps[:count] == stored]
        assert fits, 'every segment goes on where the one before it ended, without a gap'
        del joined[fits[0]][:count]
        found += count
        if stored[0][4] == 0:
            begun += 1
            assert stored[0][:2] == truth[fits[0]][0][:2], 'an episode begins with the reset observation and its mask'
    assert begun >= 6
    assert found == sum(map(len, truth.values())) - sum(map(len, joined.values()))
    assert max(map(len, joined.values())) <= 3 * length + 2, 'what is missing is still open'


def test_visits_have_a_place_for_every_action_and_none_for_illegal_ones(collector: Any) -> None:
    worker, witness, cfg = collector(game_segment_length=5)
    segments = [segment for batch in collected(worker, 10) for segment in batch.segments]
    padded = 0
    for segment in segments:
        visits = segment.child_visit_segment
        assert visits.dtype == float and visits.shape[1] == 10
        assert len(segment.action_mask_segment) == len(visits), 'masks of what was padded on, too'
        padded += len(visits) - own_steps(segment)
        assert np.allclose(visits.sum(1), 1) and not visits[segment.action_mask_segment == 0].any()
    assert padded > 10
    assert full_width([3, 1], [0, 4], 6) == [3, 0, 0, 0, 1, 0]


def test_a_game_that_is_over_is_worth_nothing_and_a_cut_one_is_not_said_to_be(collector: Any) -> None:
    worker, witness, cfg = collector(game_segment_length=40)
    segments = [segment for batch in collected(worker, 12) for segment in batch.segments]
    over = [step.info['game_over'] for _, _, steps in witness.steps for step in steps.values() if step.done]
    assert True in over and False in over
    resting = [s for s in segments if (s.obs_segment[-1] == s.obs_segment[-2]).all() and s.reward_segment[-1] == 0
               and s.action_mask_segment[-1].sum() == 1]
    assert len(resting) == over.count(True)
    for segment in resting:
        assert segment.root_value_segment[-1] == 0 and segment.timestep_segment[-1] == len(segment) - 1
    buffer = mend(TextGameBuffer)(cfg.policy)
    buffer.push_game_segments((resting[:1], [{'done': True, 'unroll_plus_td_steps': 6, 'priorities': None}]))
    last = len(resting[0]) - 1
    buffer._sample_orig_data = lambda size: (resting[:1], [last], [last], np.ones(1), [0.0])
    context, *_ = buffer._make_batch(1, 0)
    assert not context.valid.any() and not context.rewards.any(), 'the value that is learnt for the end is 0'


def test_segments_leave_as_upstreams_own(collector: Any) -> None:
    worker, *_ = collector()
    for segment in collected(worker, 2)[-1].segments:
        assert type(segment).__module__ == 'lzero.mcts.buffer.game_segment'
        assert pickle.loads(pickle.dumps(segment)).action_space.n == 10


def test_evaluations_show_their_searches_and_steps_too(encoder: str) -> None:
    cfg, witness = compiled_text(encoder), Witness()
    worker = EvalWorker(
        cfg, environments(cfg, 'evaluator', 0), policy=ready_policy(cfg, witness), recipe=witness
    )
    result = worker.run(EvalRequest(1, 1))
    worker.close()
    assert {phase for phase, *_ in witness.searches} == {phase for phase, *_ in witness.steps} == {'eval'}
    for (_, observations, output), (_, actions, timesteps) in zip(witness.searches, witness.steps, strict=True):
        assert observations.keys() == output.keys() == actions.keys() == timesteps.keys() == {0}
        assert observations[0]['action_mask'][actions[0]] == 1 and observations[0]['valid_actions']
        assert timesteps[0].info['action'] == observations[0]['valid_actions'][actions[0]]
    assert sum(float(steps[0].reward) for _, _, steps in witness.steps) == result.mean_return
    tags = {tag for tag, *_ in result.scalars}
    assert {'evaluator_step/actions_dropped_mean', 'evaluator_step/game_steps_mean'} <= tags


# ---------------------------------------------------------------------- runs


def train(configs: list[EasyDict], max_env_step: int) -> tuple[Any, dict[str, Any]]:
    policy = train_unizero_segment_async(configs, seed=0, max_env_step=max_env_step)
    return policy, json.loads(Path('run', 'async', 'report.json').read_text())


def test_an_asynchronous_run_in_processes_trains_and_loses_nothing(encoder: str) -> None:
    _, report = train(tiny_text(encoder, off_policy_degree=2), 200)
    assert report['env_steps'] >= 200 and report['train_iters'] >= 30 and report['eval_count'] >= 1
    assert report['batches_lost'] == 0 and report['updates_done'] >= report['updates_granted'] - 1
    assert report['max_age'] >= 1


@pytest.mark.parametrize('settings', [
    {'off_policy_degree': 0},
    {'off_policy_degree': 1, 'reanalyze_ratio': 0.5},
    {'off_policy_degree': 1, 'buffer_reanalyze_freq': 2, 'reanalyze_batch_size': 4, 'reanalyze_partition': 0.75},
    {'off_policy_degree': 1, 'random_collect_episode_num': 3},
    {'off_policy_degree': 1, 'action_type': 'varied_action_space'},
], ids=['serial', 'reanalyzed targets', 'reanalyzed buffer', 'warm-up', 'varied'])
def test_episodes_longer_than_a_segment_are_learnt_from(encoder: str, settings: dict[str, Any]) -> None:
    configs = tiny_text(encoder, async_pipeline={'placement': 'thread'}, **settings)
    policy, report = train(configs, 120)
    assert report['train_iters'] >= 10 and report['batches_lost'] == 0
    pretrained = AutoModel.from_pretrained(encoder).state_dict()
    used = policy._learn_model.representation_network.model._encoder.state_dict()
    assert all(torch.equal(used[name], value) for name, value in pretrained.items()), 'no update touches the encoder'


def test_reanalyses_store_visits_of_legal_actions_only(collector: Any) -> None:
    worker, _, cfg = collector(game_segment_length=5, reanalyze_ratio=1, batch_size=4)
    buffer = mend(TextGameBuffer)(cfg.policy)
    for batch in collected(worker, 8):
        buffer.push_game_segments((batch.segments, batch.metas))
    (_, _, _, mask, *_), (_, _, policies) = buffer.sample(4, worker._policy)
    assert policies.shape == (4, 5, 10)
    for segment in buffer.game_segment_buffer:
        assert not segment.child_visit_segment[segment.action_mask_segment == 0].any()
        assert np.allclose(segment.child_visit_segment.sum(1), 1)


def test_text_is_told_by_the_config(encoder: str) -> None:
    main, _ = tiny_text(encoder)
    assert recipe_for(UNIZERO, main) is TEXT_UNIZERO
    main.policy.model.world_model_cfg.obs_type = 'vector'
    assert recipe_for(UNIZERO, main) is UNIZERO


def test_disabled_it_is_upstreams_own_function(encoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []
    monkeypatch.setattr(type(UNIZERO), 'serial_entry', staticmethod(lambda *args: called.append(args) or 'policy'))
    configs = tiny_text(encoder, enable_async_training=False, action_type='varied_action_space')
    assert train_unizero_segment_async(configs, seed=5, max_env_step=7) == 'policy'
    (main, _), *rest = called[0]
    assert rest == [5, None, None, 10**10, 7] and main.policy.action_type == 'varied_action_space'
    assert main.policy.model.action_space_size == main.env.max_action_num == 10


def test_what_suits_a_known_game_is_filled_in(encoder: str, tmp_path: Path) -> None:
    (tmp_path / 'zork1.z5').touch()
    main, create = prepare(*tiny_text(encoder, {'game_path': str(tmp_path / 'zork1.z5')}))
    main.env.max_steps = None
    TEXT_UNIZERO.settle(main)
    assert (main.env.max_steps, main.env.max_action_num, main.policy.model.action_space_size) == (500, 55, 55)
    assert main.policy.model.world_model_cfg.action_space_size == 55


@pytest.mark.parametrize('section, key, message', [
    ('model', 'action_space_size', 'policy.model.action_space_size is 7 but env.max_action_num is 10'),
    ('model', 'observation_shape', 'policy.model.observation_shape is 7 but env.max_seq_len is 64'),
])
def test_numbers_that_do_not_fit_are_refused(encoder: str, section: str, key: str, message: str) -> None:
    configs = tiny_text(encoder)
    configs[0].policy[section][key] = 7
    with pytest.raises(ConfigError, match=message):
        train_unizero_segment_async(configs, max_env_step=1)


def test_stacked_texts_are_refused(encoder: str) -> None:
    with pytest.raises(ConfigError, match='policy.model.frame_stack_num is 4: texts are not stacked'):
        train_unizero_segment_async(tiny_text(encoder, model={'frame_stack_num': 4}), max_env_step=1)
