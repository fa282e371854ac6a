"""Reading a prior's settings: what cannot work is refused by name before anything is loaded."""
from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

import numpy as np

from ..core import ConfigError

SECTION = 'policy.priorzero.llm'
Options = TypeVar('Options')


def read_options(kind: type[Options], backend: str, spec: Mapping[str, Any]) -> Options:
    """Settings of a backend from a mapping that holds nothing else."""
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for key, value in spec.items():
        if key not in known:
            raise ConfigError(
                f'{SECTION}.{key} is {value!r}, but backend {backend!r} has no such key: {suggest(key, known)}'
            )
    for key, field in known.items():
        if field.default is MISSING and key not in spec:
            meaning = field.metadata['meaning']
            raise ConfigError(f'{SECTION}.{key} is missing: backend {backend!r} needs it ({meaning}).')
    return kind(**spec)


def suggest(name: Any, known: Iterable[str]) -> str:
    """The end of a sentence that refuses ``name``."""
    known = list(known)
    found = difflib.get_close_matches(str(name), known, n=1)
    return f'did you mean {found[0]!r}?' if found else f'known are {", ".join(known) or "none"}.'


def check_number(
    key: str, value: Any, kind: type, least: float | None = None, above: float | None = None, most: float | None = None
) -> None:
    """Refuse what is no number of that kind and range."""
    fits = isinstance(value, (int, np.integer) if kind is int else (int, float, np.integer, np.floating))
    if not fits or isinstance(value, bool) or not math.isfinite(value):
        raise ConfigError(
            f'{SECTION}.{key} is {value!r}: it must be {"a whole" if kind is int else "a finite"} number.'
        )
    if least is not None and value < least:
        raise ConfigError(f'{SECTION}.{key} is {value}: it must be at least {least}.')
    if above is not None and value <= above:
        raise ConfigError(f'{SECTION}.{key} is {value}: it must be greater than {above}.')
    if most is not None and value > most:
        raise ConfigError(f'{SECTION}.{key} is {value}: it must be at most {most}.')


def check_text(key: str, value: Any, remedy: str) -> None:
    """Refuse what is no text."""
    if not isinstance(value, str) or not value:
        raise ConfigError(f'{SECTION}.{key} is {value!r}: {remedy}')


def check_choice(key: str, value: Any, choices: Iterable[str]) -> None:
    """Refuse what is not among the choices."""
    choices = list(choices)
    if value not in choices:
        raise ConfigError(f'{SECTION}.{key} is {value!r}: it must be one of {", ".join(map(repr, choices))}.')
