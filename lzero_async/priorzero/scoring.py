"""
Log-probabilities of many actions after one prompt, with the prompt run once.

A prompt and all of its actions stand in one row; a mask lets each action see the prompt and itself, and position ids
let it believe that it follows the prompt directly:

    row        p0 p1 p2 | a0 a1 | b0 b1 b2        fed: all tokens of an action but the last, which nothing follows
    position    0  1  2 |  3  4 |  3  4  5
    b1 sees     x  x  x |       |  x  x

One forward pass without a cache serves scoring and training alike. A model for which this is not the same as one
sequence per action (recurrent, sliding windows, positions from the mask) gets one sequence per action.
"""
from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Item:
    """One state in tokens."""
    prompt: list[int]  # at least one
    actions: list[list[int]]  # each ends with the end token

    @property
    def fed(self) -> int:
        """Tokens of its row."""
        return len(self.prompt) + sum(len(action) - 1 for action in self.actions)

    def split(self) -> list[Item]:
        """One item per action."""
        return [Item(self.prompt, [action]) for action in self.actions]


@dataclass(frozen=True)
class _Rows:
    """Items side by side, and where each scored token is predicted."""
    ids: torch.Tensor  # [rows, width]
    positions: torch.Tensor  # [rows, width]
    parts: torch.Tensor  # [rows, width]: -1 padding, 0 prompt, 1, 2 ... actions
    row: torch.Tensor  # per scored token
    source: torch.Tensor  # per scored token: the column that predicts it
    token: torch.Tensor  # per scored token
    action: torch.Tensor  # per scored token: number of its action over all rows
    lengths: torch.Tensor  # per action

    @property
    def first(self) -> int:
        """The leftmost column that predicts anything."""
        return int(self.source.min())


class Scorer:
    """Scores items with a causal language model of ``transformers``."""

    def __init__(self, model: Any, pad: int) -> None:
        parameters = inspect.signature(model.forward).parameters
        self._model = model
        self._pad = pad
        self._keeps = 'logits_to_keep' in parameters
        self.shares_prefix = 'position_ids' in parameters and self._sees_everything() and self._packs_well()

    def cost(self, item: Item) -> int:
        """Tokens that an item sends through the model."""
        return item.fed if self.shares_prefix else sum(part.fed for part in item.split())

    def __call__(self, items: Sequence[Item]) -> list[torch.Tensor]:
        """Mean token log-probability of every action of every item, in one forward pass."""
        flat = self._packed(items) if self.shares_prefix else self._plain(items)
        return list(flat.split([len(item.actions) for item in items]))

    def groups(self, items: Sequence[Item], budget: int) -> list[list[int]]:
        """Indices of items that go together: alike in length, within ``budget`` padded tokens unless one exceeds it."""
        order = sorted(range(len(items)), key=lambda index: -self.cost(items[index]))
        groups: list[list[int]] = []
        for index in order:
            if groups and (len(groups[-1]) + 1) * self.cost(items[groups[-1][0]]) <= budget:
                groups[-1].append(index)
            else:
                groups.append([index])
        return groups

    def _packed(self, items: Sequence[Item]) -> torch.Tensor:
        # Padded on the left, so that the scored columns of all rows stand together at the end.
        rows = self._lay_out(items, left=True)
        query, key = rows.parts.unsqueeze(2), rows.parts.unsqueeze(1)
        width = rows.ids.shape[1]
        before = torch.ones(width, width, dtype=torch.bool, device=rows.ids.device).tril()
        seen = before & ((key == 0) | (key == query))
        # Additive, as eager attention adds it. Padding sees padding, as a row that sees nothing would be no number.
        dtype = self._model.dtype
        mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)
        return self._log_probs(rows, attention_mask=mask.unsqueeze(1), position_ids=rows.positions)

    def _plain(self, items: Sequence[Item]) -> torch.Tensor:
        # Padded on the right, where no model needs to be told.
        rows = self._lay_out([part for item in items for part in item.split()], left=False)
        return self._log_probs(rows, attention_mask=(rows.parts >= 0).long())

    def _log_probs(self, rows: _Rows, **inputs: torch.Tensor) -> torch.Tensor:
        if self._keeps:  # a vocabulary is wide: the head runs only where it is read
            inputs['logits_to_keep'] = rows.ids.shape[1] - rows.first  # type: ignore[assignment]
        logits = self._model(input_ids=rows.ids, use_cache=False, **inputs).logits
        logits = logits[:, -(rows.ids.shape[1] - rows.first):].float()
        source = rows.source - rows.first
        each = logits[rows.row, source, rows.token] - logits.logsumexp(-1)[rows.row, source]
        total = torch.zeros(len(rows.lengths), dtype=each.dtype, device=each.device)
        return total.index_add(0, rows.action, each) / rows.lengths

    def _lay_out(self, items: Sequence[Item], left: bool) -> _Rows:
        width = max(item.fed for item in items)
        ids, positions, parts = [], [], []
        scored: list[tuple[int, int, int, int]] = []
        lengths: list[int] = []
        for row, item in enumerate(items):
            start, end = (width - item.fed, 0) if left else (0, width - item.fed)
            row_ids, row_parts = list(item.prompt), [0] * len(item.prompt)
            row_positions = list(range(len(item.prompt)))
            for part, action in enumerate(item.actions, start=1):
                sources = [start + len(item.prompt) - 1, *range(start + len(row_ids), width)]
                scored += [(row, *pair, len(lengths)) for pair in zip(sources, action, strict=False)]
                lengths.append(len(action))
                row_ids += action[:-1]
                row_positions += range(len(item.prompt), len(item.prompt) + len(action) - 1)
                row_parts += [part] * (len(action) - 1)
            ids.append([self._pad] * start + row_ids + [self._pad] * end)
            positions.append([0] * start + row_positions + [0] * end)
            parts.append([-1] * start + row_parts + [-1] * end)
        tensor = torch.tensor
        device = self._model.device
        row_of, source, token, owner = tensor(scored, device=device).unbind(1)
        return _Rows(
            ids=tensor(ids, device=device), positions=tensor(positions, device=device),
            parts=tensor(parts, device=device), row=row_of, source=source, token=token, action=owner,
            lengths=tensor(lengths, device=device)
        )

    def _sees_everything(self) -> bool:
        """Whether every layer attends to the whole past: a mask of ours replaces a sliding window."""
        config = self._model.config
        kinds = getattr(config, 'layer_types', None) or ['full_attention']
        return getattr(config, 'sliding_window', None) is None and set(kinds) == {'full_attention'}

    @torch.no_grad()
    def _packs_well(self) -> bool:
        """Try it: the architectures are too many to know."""
        top = min(64, self._model.config.vocab_size)
        tokens = [index * 7 % top for index in range(24)]
        items = [Item(tokens[:9], [tokens[3:8], tokens[12:14], tokens[20:24]]), Item(tokens[5:8], [tokens[2:5]])]
        try:
            packed = self._packed(items)
        except Exception as error:  # whatever a foreign model raises, it says that it cannot do this
            logger.warning('prompts are run once per action, as the model takes no packed rows: %r', error)
            return False
        tolerance = 1e-3 if self._model.dtype == torch.float32 else 0.1
        worst = float((packed - self._plain(items)).abs().max())
        if not worst < tolerance:
            logger.warning('prompts are run once per action, as packed rows score %.2g apart with this model', worst)
            return False
        return True
