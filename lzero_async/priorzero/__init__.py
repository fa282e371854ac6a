"""
PriorZero's language models: who tells the search which actions of a text game make sense.

Importing this needs no ``transformers``; making a prior of backend ``hf`` does.
"""
from __future__ import annotations

from .cache import CachedPrior
from .hf import HFOptions, HFPrior
from .make import make_prior
from .openai import OpenAIOptions, OpenAIPrior
from .prior import Example, LLMPrior, TrainStats, UniformPrior, cross_entropy, target_entropy
from .prompt import Context, continuation, write_prompt

__all__ = [
    'CachedPrior',
    'Context',
    'Example',
    'HFOptions',
    'HFPrior',
    'LLMPrior',
    'OpenAIOptions',
    'OpenAIPrior',
    'TrainStats',
    'UniformPrior',
    'continuation',
    'cross_entropy',
    'make_prior',
    'target_entropy',
    'write_prompt',
]
