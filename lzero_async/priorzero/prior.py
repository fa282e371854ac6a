"""
What a prior is: log-probabilities of a state's valid actions, by a model that search can be distilled into.

    scores, version = prior.score(contexts, actions)   # a collector, between load and load
    stats = prior.train_step(examples)                 # the trainer: its version grows by one
    other.load(prior.state(), prior.version)           # a collector, between two collects

A prior belongs to one thread.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from ..core import AsyncTrainingError
from .prompt import Context


@dataclass(frozen=True)
class Example:
    """A searched state: what the model should have said there."""
    context: Context
    actions: tuple[str, ...]  # the valid ones
    target: tuple[float, ...]  # visit distribution over them, sums to 1


@dataclass(frozen=True)
class TrainStats:
    """What one training step did."""
    loss: float  # cross-entropy between target and the softmax over action scores, before the step
    target_entropy: float  # what the loss cannot fall below
    grad_norm: float  # before clipping
    tokens: int  # that went through the model

    @property
    def kl(self) -> float:
        """How far the model is from the targets."""
        return self.loss - self.target_entropy


class LLMPrior(Protocol):
    """A language model's opinion on the valid actions of a text game's states."""

    @property
    def version(self) -> int:
        """Number of the snapshot in force."""

    @property
    def truncated(self) -> int:
        """Prompts so far that lost their oldest tokens."""

    def score(
        self, contexts: Sequence[Context], actions: Sequence[Sequence[str]]
    ) -> tuple[list[np.ndarray], int]:
        """Per context the mean token log-probability of every action (float32), and the version that made them."""

    def train_step(self, batch: Sequence[Example]) -> TrainStats:
        """One gradient step of distillation; the version grows by one."""

    def loss(self, batch: Sequence[Example]) -> float:
        """Cross-entropy on examples that are not trained on."""

    def state(self) -> dict[str, torch.Tensor]:
        """The trainable tensors themselves, not copies; valid until the next step or load."""

    def load(self, state: Mapping[str, torch.Tensor], version: int) -> None:
        """Copy a snapshot in place and put it in force."""

    def close(self) -> None:
        """Release what the prior holds."""


class UniformPrior:
    """No opinion: every action scores zero."""

    truncated = 0  # nothing is read

    def __init__(self) -> None:
        self._version = 0

    @property
    def version(self) -> int:
        return self._version

    def score(
        self, contexts: Sequence[Context], actions: Sequence[Sequence[str]]
    ) -> tuple[list[np.ndarray], int]:
        check_actions(contexts, actions)
        return [np.zeros(len(choices), dtype=np.float32) for choices in actions], self._version

    def train_step(self, batch: Sequence[Example]) -> TrainStats:
        raise AsyncTrainingError(
            "a prior with backend 'uniform' cannot be trained; use backend 'hf', or do not train the prior"
        )

    def loss(self, batch: Sequence[Example]) -> float:
        check_examples(batch)
        return cross_entropy([np.zeros(len(example.actions), dtype=np.float32) for example in batch], batch)

    def state(self) -> dict[str, torch.Tensor]:
        return {}

    def load(self, state: Mapping[str, torch.Tensor], version: int) -> None:
        check_names({}, state)
        self._version = version

    def close(self) -> None:
        pass


def check_actions(contexts: Sequence[Context], actions: Sequence[Sequence[str]]) -> None:
    """Refuse what no prior can score."""
    if len(contexts) != len(actions):
        raise ValueError(f'{len(contexts)} contexts but {len(actions)} lists of actions')
    for index, choices in enumerate(actions):
        if not len(choices):
            raise ValueError(f'context {index} has no valid action: {contexts[index].observation[:80]!r}')


def check_examples(batch: Sequence[Example]) -> None:
    """Refuse examples whose target is no distribution over their actions."""
    if not batch:
        raise ValueError('an empty batch of examples')
    check_actions([example.context for example in batch], [example.actions for example in batch])
    for index, example in enumerate(batch):
        target = np.asarray(example.target, dtype=np.float64)
        if target.shape != (len(example.actions),):
            raise ValueError(f'example {index} has {len(example.actions)} actions but {target.size} targets')
        if not (np.all(target >= 0) and abs(target.sum() - 1) < 1e-3):
            raise ValueError(f'the target of example {index} is no distribution: {example.target!r}')


def check_names(own: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> None:
    """Refuse a snapshot of another model."""
    for name in own.keys() | given.keys():
        ours, theirs = own.get(name), given.get(name)
        if ours is None or theirs is None or ours.shape != theirs.shape:
            shapes = [None if tensor is None else tuple(tensor.shape) for tensor in (ours, theirs)]
            raise AsyncTrainingError(
                f'the snapshot is of another prior: {name} is {shapes[1]} in it and {shapes[0]} here; '
                'all priors of a run need the same path, trainable and rank'
            )


def target_entropy(batch: Sequence[Example]) -> float:
    """Mean entropy of the targets."""
    total = 0.0
    for example in batch:
        target = np.asarray(example.target, dtype=np.float64)
        target = target[target > 0]
        total -= float((target * np.log(target)).sum())
    return total / len(batch)


def cross_entropy(scores: Sequence[np.ndarray], batch: Sequence[Example], temperature: float = 1.0) -> float:
    """Mean cross-entropy between the targets and the softmax over scores."""
    total = 0.0
    for row, example in zip(scores, batch, strict=True):
        logits = np.asarray(row, dtype=np.float64) / temperature
        logits -= logits.max()
        total -= float((np.asarray(example.target) * (logits - np.log(np.exp(logits).sum()))).sum())
    return total / len(batch)
