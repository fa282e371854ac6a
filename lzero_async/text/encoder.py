"""
The pretrained text encoder: as it was trained, frozen, and asked only once for each text.

LightZero 0.2.0 overwrites it with random numbers (``WorldModel.apply(init_weights)``, world_model.py:94) and leaves
these untrained for ever, as its forward runs without gradients (common.py:441); and while learning, its dropout is
active. Here the pretrained weights are put back, once per process, outside of the model: in no state_dict, no optimizer
and no snapshot.
"""
from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn

from .recent import Recent

logger = logging.getLogger(__name__)

ROWS = 20_000  # texts remembered; 30 MB with MiniLM
ENCODED_AT_ONCE = 64  # rows, as memory grows with them


class CachedEncoder(nn.Module):
    """
    Overview:
        A frozen encoder in the place of ``HFLanguageRepresentationNetwork.model``, which reads the first token of its
        output only. Any number of models and threads may share it.
    Arguments:
        - encoder (:obj:`nn.Module`): a Hugging Face model.
        - path (:obj:`str`): where it came from.
    """

    _encoder: nn.Module

    def __init__(self, encoder: Any, path: str) -> None:
        super().__init__()
        # Past nn.Module's own bookkeeping, so that its weights are nobody's.
        object.__setattr__(self, '_encoder', encoder.eval().requires_grad_(False))
        self.config = encoder.config
        self.path = path
        self.rows: Recent[torch.Tensor] = Recent(ROWS)
        self._doubted = False

    @property
    def device(self) -> torch.device:
        return next(self._encoder.parameters()).device

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        """The first token's last hidden state of each row, as upstream reads it: ``last_hidden_state[:, 0]``."""
        texts = [
            row[:int(length)].tobytes()
            for row, length in zip(x.to('cpu', torch.int32).numpy(), _lengths(attention_mask), strict=True)
        ]
        found = {text: self.rows.get(text) for text in dict.fromkeys(texts)}
        known = {text: vector for text, vector in found.items() if vector is not None}
        missing = sorted(found.keys() - known.keys(), key=lambda text: (len(text), text))
        for start in range(0, len(missing), ENCODED_AT_ONCE):
            some = missing[start:start + ENCODED_AT_ONCE]
            for text, vector in zip(some, self._encoded(some), strict=True):
                known[text] = vector
                self.rows.put(text, vector)
        return SimpleNamespace(last_hidden_state=torch.stack([known[text] for text in texts]).unsqueeze(1))

    def _encoded(self, texts: list[bytes]) -> torch.Tensor:
        # Normal tensors, also where a worker searches in inference mode: they outlive it.
        with torch.inference_mode(False), torch.no_grad():
            rows = [torch.frombuffer(bytearray(text), dtype=torch.int32).long() for text in texts]
            tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True).to(self.device)
            lengths = torch.tensor([len(row) for row in rows], device=self.device)
            mask = torch.arange(tokens.shape[1], device=self.device) < lengths[:, None]
            return self._encoder(tokens, attention_mask=mask.long()).last_hidden_state[:, 0].clone()

    def train(self, mode: bool = True) -> CachedEncoder:
        """It stays as it is: dropout would make the store wrong."""
        return super().train(False)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        """Checkpoints of upstream hold an encoder; the pretrained one stays."""
        pretrained = self._encoder.state_dict()
        stored = {name[len(prefix):]: value for name, value in state_dict.items() if name.startswith(prefix)}
        same = all(
            name in pretrained and torch.equal(value.cpu(), pretrained[name].cpu()) for name, value in stored.items()
        )
        if not same and not self._doubted:
            self._doubted = True
            logger.warning(
                'the checkpoint was made with another text encoder than %s, as LightZero 0.2.0 overwrites it with '
                'random numbers; what it learnt on that one will not fit', self.path
            )

    def __deepcopy__(self, memo: Any) -> CachedEncoder:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return pretrained_encoder, (self.path, str(self.device))


def _lengths(attention_mask: torch.Tensor) -> torch.Tensor:
    """Tokens up to the padding; one where a row is nothing but padding, as upstream's are right after a reset."""
    return attention_mask.sum(1).clamp(min=1).cpu()


# ---------------------------------------------------------------------- one per process

_shared: WeakValueDictionary[tuple[str, str], CachedEncoder] = WeakValueDictionary()
_sharing = threading.Lock()  # protects the dictionary, and that nothing is loaded twice


def pretrained_encoder(path: str, device: str) -> CachedEncoder:
    """The encoder of that path on that device, the same for everyone in this process who uses it at the same time."""
    from transformers import AutoModel

    with _sharing:
        encoder = _shared.get((path, device))
        if encoder is None:
            # Parts that a checkpoint lacks are drawn at random, which is nothing that a run's seed should feel.
            with torch.random.fork_rng():
                model = AutoModel.from_pretrained(path)
            encoder = _shared[path, device] = CachedEncoder(model.to(device), path)
        return encoder


def restore_encoder(policy: Any, path: str) -> None:
    """Put the pretrained encoder into a policy's model and target model, and its optimizer's mind off the old one."""
    encoder = pretrained_encoder(path, str(policy._cfg.device))
    network = policy._learn_model.representation_network
    _forget(policy._optimizer_world_model, network.model)
    for model in (policy._learn_model, policy._target_model):
        model.representation_network.model = encoder


def _forget(optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
    """Take a module's parameters out of an optimizer, which then still loads states that were saved with them."""
    gone = {id(parameter) for parameter in module.parameters()}
    sizes = [len(group['params']) for group in optimizer.param_groups]
    flat = [id(parameter) for group in optimizer.param_groups for parameter in group['params']]
    kept = [index for index, parameter in enumerate(flat) if parameter not in gone]
    for group in optimizer.param_groups:
        group['params'] = [parameter for parameter in group['params'] if id(parameter) not in gone]

    def without(_: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any] | None:
        if [len(group['params']) for group in state['param_groups']] != sizes:
            return None
        number = {old: new for new, old in enumerate(kept)}  # states number parameters from 0 on, over all groups
        return {
            'state': {number[old]: value for old, value in state['state'].items() if old in number},
            'param_groups': [
                {**group, 'params': [number[old] for old in group['params'] if old in number]}
                for group in state['param_groups']
            ],
        }

    optimizer.register_load_state_dict_pre_hook(without)
