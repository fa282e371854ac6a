"""A prior from its settings."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..core import ConfigError
from .cache import CachedPrior
from .hf import HFOptions, HFPrior
from .models import locate
from .openai import OpenAIOptions, OpenAIPrior
from .prior import LLMPrior, UniformPrior
from .spec import SECTION, check_choice, check_number, read_options

CACHE_SIZE = 4096


@dataclass(frozen=True)
class _UniformOptions:
    """Backend ``uniform`` has no settings."""


_OPTIONS: Mapping[str, type] = {'hf': HFOptions, 'openai': OpenAIOptions, 'uniform': _UniformOptions}


def make_prior(spec: Mapping[str, Any], device: str | torch.device = 'cpu') -> LLMPrior:
    """
    Overview:
        Make the prior that ``spec`` describes.
    Arguments:
        - spec (:obj:`Mapping`): ``backend`` ('hf', 'openai' or 'uniform'); ``cache_size``, the states whose scores \
            are remembered, 0 for none; and the fields of ``HFOptions`` or ``OpenAIOptions``.
        - device (:obj:`Union[str, torch.device]`): where a model of backend 'hf' lives.
    Returns:
        - prior (:obj:`LLMPrior`): to be closed by whoever asked for it.
    """
    options, cache_size = check_spec(spec)
    prior: LLMPrior
    if isinstance(options, HFOptions):
        prior = HFPrior(options, device)
    elif isinstance(options, OpenAIOptions):
        prior = OpenAIPrior(options)
    else:
        return UniformPrior()
    return CachedPrior(prior, cache_size) if cache_size else prior


def check_spec(spec: Mapping[str, Any]) -> tuple[HFOptions | OpenAIOptions | _UniformOptions, int]:
    """The options of a spec and its cache size, with nothing loaded yet; a model must be where the spec says."""
    rest = dict(spec)
    if 'backend' not in rest:
        raise ConfigError(f'{SECTION}.backend is missing: it must be one of {", ".join(map(repr, _OPTIONS))}.')
    backend = rest.pop('backend')
    check_choice('backend', backend, _OPTIONS)
    cache_size = rest.pop('cache_size', CACHE_SIZE)
    check_number('cache_size', cache_size, int, least=0)
    options: HFOptions | OpenAIOptions | _UniformOptions = read_options(_OPTIONS[backend], backend, rest)
    if isinstance(options, HFOptions):
        locate(options.path)
    return options, cache_size
