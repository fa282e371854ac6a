"""The prior at the root, the records that search leaves, the store that keeps them: each part on its own."""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lzero_async.core import ConfigError
from lzero_async.priorzero import Context, Example, TrainStats, UniformPrior
from lzero_async.priorzero.config import PriorTraining, PriorZeroConfig
from lzero_async.priorzero.messages import AssessRequest, StateRequest, TrainRequest
from lzero_async.priorzero.mixing import Mixing, softmax
from lzero_async.priorzero.records import HELD_OUT_OF, ExperienceStore, Record, RecordTape
from lzero_async.priorzero.root import RootPrior
from lzero_async.priorzero.training import PriorTrainer

pytestmark = pytest.mark.unittest

WORLD = np.array([1.0, -2.0, 0.5, 3.0, 0.0], dtype=np.float32)
VALID = np.array([0, 2, 3])
LLM = np.array([-1.0, -0.1, -4.0], dtype=np.float32)


# ---------------------------------------------------------------------- mixing


def test_a_fixed_mixture_is_the_weighted_sum_of_both_distributions() -> None:
    mixed = Mixing('fixed', weight=0.3, temperature=0.5).logits(WORLD, LLM, VALID)
    expected = 0.3 * softmax(LLM / 0.5) + 0.7 * softmax(WORLD[VALID])
    np.testing.assert_allclose(np.exp(mixed[VALID]), expected, rtol=1e-5)


def test_actions_that_are_not_valid_get_nothing() -> None:
    mixed = Mixing('fixed', weight=0.5).logits(WORLD, LLM, VALID)
    assert np.exp(mixed)[[1, 4]].max() < 1e-7
    np.testing.assert_allclose(np.exp(mixed[VALID]).sum(), 1.0, rtol=1e-5)


def test_either_source_can_stand_alone() -> None:
    np.testing.assert_allclose(np.exp(Mixing('llm').logits(WORLD, LLM, VALID)[VALID]), softmax(LLM), rtol=1e-5)
    assert not Mixing('world_model').needs_llm and not Mixing('fixed', weight=0.0).needs_llm
    assert Mixing('llm', weight=0.0).needs_llm


def test_the_adaptive_share_rises_as_the_world_models_entropy_falls() -> None:
    mixing = Mixing('adaptive', weight=0.8)
    shares = [mixing.share(softmax(np.array([sharpness, 0.0, 0.0]))) for sharpness in (0.0, 1.0, 3.0, 30.0)]
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx(0.0, abs=1e-9) and shares[-1] == pytest.approx(0.8, abs=1e-3)


@pytest.mark.parametrize('settings, named', [
    ({'mode': 'sometimes'}, 'mode'), ({'weight': 1.5}, 'weight'), ({'temperature': 0}, 'temperature')
])
def test_a_mixture_that_cannot_be_is_refused_by_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f'policy.priorzero.mixing.{named}='):
        Mixing(**settings)


# ---------------------------------------------------------------------- the root


class OneAction(UniformPrior):
    """Knows which action it wants."""

    def __init__(self, wanted: str) -> None:
        super().__init__()
        self.wanted, self.asked = wanted, 0

    def score(self, contexts: Any, actions: Any) -> Any:
        self.asked += 1
        return [np.array([0.0 if a == self.wanted else -20.0 for a in each], np.float32) for each in actions], 7


class Model:
    """A model whose root logits are known."""

    def initial_inference(self, *_: Any) -> Any:
        return SimpleNamespace(policy_logits=torch.from_numpy(np.stack([WORLD, WORLD])))

    def recurrent_inference(self) -> str:
        return 'untouched'


def observations() -> dict[int, dict[str, Any]]:
    mask = np.array([1, 0, 1, 1, 0], np.int8)
    obs = {'raw_text': 'A hall.', 'history': (), 'valid_actions': ('go', 'take key', 'wait'), 'action_mask': mask}
    return {3: obs, 5: {**obs, 'raw_text': 'A cellar.'}}


def test_all_ready_environments_are_scored_in_one_call_and_only_at_the_root() -> None:
    policy = SimpleNamespace(_collect_model=Model())
    prior = OneAction('take key')
    root = RootPrior(policy, prior, Mixing('llm'))
    root.before_search(observations())
    logits = policy._collect_model.initial_inference().policy_logits
    assert prior.asked == 1 and root.version == 7
    assert torch.exp(logits[:, 2]).min() > 0.99
    assert policy._collect_model.recurrent_inference() == 'untouched'
    assert set(root.after_search()) == {3, 5}
    assert torch.equal(policy._eval_model.initial_inference().policy_logits[0], torch.from_numpy(WORLD))


def test_without_weight_nobody_is_asked_and_the_logits_are_the_models_own() -> None:
    policy = SimpleNamespace(_collect_model=Model())
    prior = OneAction('wait')
    root = RootPrior(policy, prior, Mixing('fixed', weight=0.0))
    root.before_search(observations())
    assert torch.equal(policy._collect_model.initial_inference().policy_logits[1], torch.from_numpy(WORLD))
    assert prior.asked == 0 and root.after_search() == {}


# ---------------------------------------------------------------------- records


def fields(text: str = 'A hall.') -> dict[str, Any]:
    return dict(
        context=Context(text, ()), actions=('go', 'wait'), visits=np.array([0.75, 0.25]), action=0,
        log_probs=np.array([-1.0, -2.0], np.float32), model_version=4, prior_version=2
    )


def test_a_tape_numbers_steps_and_episodes_and_is_cut_once() -> None:
    tape = RecordTape(worker=1)
    for reward, done in ((0.0, False), (2.0, True), (1.0, False)):
        tape.searched(6, **fields())
        tape.stepped(6, reward, done)
    first, second, third = tape.cut()
    assert (first.episode, first.step) == ((1, 6, 0), 0) and (second.step, second.done, second.reward) == (1, True, 2.0)
    assert (third.episode, third.step) == ((1, 6, 1), 0)
    assert tape.cut() == []


def record(text: str, reward: float = 0.0, done: bool = False, episode: int = 0, step: int = 0) -> Record:
    return Record(**fields(text), episode=(0, 0, episode), step=step, reward=reward, done=done)


def test_the_stores_books_close_when_it_overflows() -> None:
    store = ExperienceStore(size=20)
    for number in range(7):
        store.push([record(f'room {number} {i}') for i in range(11)])
        counts = store.counts()
        assert counts['received'] == 11 * (number + 1) == counts['held'] + counts['evicted']
    assert store.trainable == 20 and counts['held_out'] <= 20 // HELD_OUT_OF and counts['evicted'] > 0


def test_a_state_is_never_both_trained_on_and_held_out() -> None:
    store = ExperienceStore(size=1000)
    store.push([record(f'room {i % 40}') for i in range(400)])
    held_out = {each.context for each in store.held_out(100)}
    assert 0 < len(held_out) < 20
    assert not held_out & {each.context for each in store.sample(2000)}


def test_returns_are_filled_in_when_an_episode_ends() -> None:
    store = ExperienceStore(size=100)
    store.push([record('a', 1.0, step=0), record('b', 0.0, step=1)])
    assert {each.episode_return for each in store.sample(50)} == {None}
    store.push([record('c', 5.0, done=True, step=2), record('d', 9.0, episode=1)])
    known = {each.context.observation: each.episode_return for each in [*store.sample(200), *store.held_out(9)]}
    assert known == {'a': 6.0, 'b': 5.0, 'c': 5.0, 'd': None}


# ---------------------------------------------------------------------- the trainer


class Learns(UniformPrior):
    """Counts its steps in its one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.zeros(1)

    def train_step(self, batch: Any) -> TrainStats:
        assert all(isinstance(example, Example) for example in batch)
        self.weight += 1
        return TrainStats(1.0 / float(self.weight), 0.0, 0.0, 0)

    def loss(self, batch: Any) -> float:
        return 10.0 - float(self.weight)

    def state(self) -> dict[str, torch.Tensor]:
        return {'weight': self.weight}

    def load(self, state: Any, version: int) -> None:
        self.weight.copy_(state['weight'])


def trainer() -> PriorTrainer:
    return PriorTrainer(Learns(), PriorTraining(batch_size=2), 0, own_process=False, beat=lambda: None)


def test_the_trainer_does_what_was_granted_and_tells_its_weights() -> None:
    worker = trainer()
    assert worker.run(TrainRequest([], 2)).updates == 0  # there is nothing to train on
    done = worker.run(TrainRequest([record(f'room {i}') for i in range(40)], 3))
    assert (done.updates, list(done.losses), done.weights['weight'].tolist()) == (3, [1.0, 0.5, 1 / 3], [3.0])
    assert done.store['received'] == 40
    assert worker.run(StateRequest())['weight'].tolist() == [3.0]


def test_a_trainer_that_is_cancelled_keeps_the_records_and_gives_the_updates_back() -> None:
    worker = trainer()
    worker.cancel()
    done = worker.run(TrainRequest([record(f'room {i}') for i in range(40)], 3))
    assert (done.updates, done.store['received'], done.weights) == (0, 40, {})


def test_an_assessment_compares_with_the_model_of_the_start_and_changes_nothing() -> None:
    worker = trainer()
    worker.run(TrainRequest([record(f'room {i}') for i in range(100)], 4))
    assessed = worker.run(AssessRequest(5))
    assert (assessed.records, assessed.before, assessed.after) == (5, 10.0, 6.0)
    assert worker.run(StateRequest())['weight'].tolist() == [4.0]


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize('section, message', [
    ({'mixin': {}}, r"policy.priorzero.mixin is no known key: did you mean 'mixing'\?"),
    ({'train': {'batchsize': 2}}, r"policy.priorzero.train.batchsize is no known key: did you mean 'batch_size'\?"),
    ({'train': {'batch_size': 0}}, r'policy.priorzero.train.batch_size=0: must be at least 1'),
    ({'train': {'off_policy_degree': -2}}, r'policy.priorzero.train.off_policy_degree=-2'),
    ({'llm': {'backend': 'openai'}}, r'cannot be trained: set policy.priorzero.train.enabled=False'),
])
def test_settings_that_cannot_work_are_refused_by_name(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PriorZeroConfig.from_policy({'priorzero': section})


def test_updates_follow_the_records_that_came_in() -> None:
    assert PriorTraining(replay_ratio=0.1, batch_size=4).budget(100) * 2 == 5
