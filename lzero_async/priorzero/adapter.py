"""Low-rank adapters: what is trained of a language model, so that a snapshot of it is a few megabytes."""
from __future__ import annotations

import math

import torch
from torch import nn


class LowRank(nn.Module):
    """A frozen linear layer plus a trained product of two thin matrices, which starts at zero."""

    def __init__(self, base: nn.Module, inputs: int, outputs: int, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.empty(rank, inputs))
        self.up = nn.Parameter(torch.zeros(outputs, rank))
        self._scale = alpha / rank

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.base(x)
        # In float32 whatever the model's type is: steps of a small learning rate vanish in bfloat16.
        low = nn.functional.linear(x.to(self.down.dtype), self.down)
        return result + (nn.functional.linear(low, self.up) * self._scale).to(result.dtype)


def adapt(model: nn.Module, head: nn.Module | None, rank: int, alpha: float, seed: int) -> int:
    """Freeze a model and put an adapter on every linear layer but its head; how many there are."""
    generator = torch.Generator().manual_seed(seed)
    model.requires_grad_(False)
    found = [(name, module) for name, module in model.named_modules() if module is not head and _size(module)]
    for name, module in found:
        inputs, outputs = _size(module) or (0, 0)
        adapter = LowRank(module, inputs, outputs, rank, alpha)
        with torch.no_grad():
            adapter.down.uniform_(-1 / math.sqrt(inputs), 1 / math.sqrt(inputs), generator=generator)
        parent, _, child = name.rpartition('.')
        setattr(model.get_submodule(parent), child, adapter.to(next(module.parameters()).device))
    return len(found)


def _size(module: nn.Module) -> tuple[int, int] | None:
    """Inputs and outputs of a linear layer; None for any other."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    if type(module).__name__ == 'Conv1D':  # GPT-2's linear layer, whose weight is stored the other way round
        inputs, outputs = module.weight.shape  # type: ignore[union-attr, misc]
        return int(inputs), int(outputs)
    return None
