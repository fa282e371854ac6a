"""
The prior enters a search at its root and nowhere else.

UniZero's forwards read root logits only from ``initial_inference`` of their model, and search with
``recurrent_inference`` (lzero/policy/unizero.py:644, 665, 775, 791). A proxy of the model that mixes a prior into the
former is therefore root-only by construction, and no code of upstream's is copied.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from .mixing import Mixing
from .prior import Context, LLMPrior


class RootModel:
    """Upstream's model, but for the logits of roots while there is something to mix in."""

    def __init__(self, model: Any, mixing: Mixing) -> None:
        self._model = model
        self._mixing = mixing
        self.pending: Sequence[tuple[np.ndarray, np.ndarray]] | None = None  # per row: valid actions, log-probs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def initial_inference(self, *args: Any, **kwargs: Any) -> Any:
        output = self._model.initial_inference(*args, **kwargs)
        if self.pending is not None:
            rows = output.policy_logits.detach().cpu().numpy()
            mixed = [
                self._mixing.logits(row, log_probs, valid)
                for row, (valid, log_probs) in zip(rows, self.pending, strict=True)
            ]
            output.policy_logits = torch.as_tensor(np.stack(mixed), device=output.policy_logits.device)
        return output


class RootPrior:
    """Scores what a forward is about to search, in one batch, and mixes it in. One thread uses it."""

    def __init__(self, policy: Any, prior: LLMPrior, mixing: Mixing) -> None:
        self._prior = prior
        self._mixing = mixing
        self._scores: dict[int, np.ndarray] = {}
        self.version = 0  # of the prior, in the forward at hand
        # Collect and eval mode share one model (lzero/policy/unizero.py:582, 729).
        self._model = RootModel(policy._collect_model, mixing)
        policy._collect_model = policy._eval_model = self._model

    def before_search(self, ready: Mapping[int, Mapping[str, Any]]) -> None:
        """Ask the language model about every environment that is about to be searched."""
        if not self._mixing.needs_llm:
            return
        scores, self.version = self._prior.score(
            [context_of(obs) for obs in ready.values()], [obs['valid_actions'] for obs in ready.values()]
        )
        self._scores = dict(zip(ready, scores, strict=True))
        self._model.pending = [
            (np.flatnonzero(np.asarray(obs['action_mask'])), self._scores[env_id]) for env_id, obs in ready.items()
        ]

    def after_search(self) -> Mapping[int, np.ndarray]:
        """The log-probabilities that went in, by environment."""
        self._model.pending = None
        scores, self._scores = self._scores, {}
        return scores


def context_of(obs: Mapping[str, Any]) -> Context:
    """What the language model is told of an observation."""
    return Context(obs['raw_text'], tuple(tuple(turn) for turn in obs['history']))
