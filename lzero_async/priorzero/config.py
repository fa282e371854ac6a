"""``policy.priorzero``: what the user asked of the language model, checked once, before anything starts."""
from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any

from ..core import ConfigError
from .mixing import Mixing

SECTION = 'policy.priorzero'


@dataclass(frozen=True)
class PriorTraining:
    """How the language model learns. ``enabled=False`` leaves it as it is."""
    enabled: bool = True
    off_policy_degree: int | None = None  # of the language model's axis; None is the world model's
    replay_ratio: float = 0.25  # records trained per record collected
    batch_size: int = 4  # records per update
    store_size: int = 10_000  # records kept
    device: str | None = None  # None is llm_device
    threads: int = 1  # torch threads
    held_out: int = 32  # records at most, of states never trained on, to look at when the run ends; 0 looks at none

    def __post_init__(self) -> None:
        for name, least in (('batch_size', 1), ('store_size', 1), ('threads', 1), ('held_out', 0)):
            if getattr(self, name) < least:
                raise ConfigError(f'{SECTION}.train.{name}={getattr(self, name)!r}: must be at least {least}')
        if not self.replay_ratio > 0:
            raise ConfigError(f'{SECTION}.train.replay_ratio={self.replay_ratio!r}: must be greater than 0')
        if self.off_policy_degree is not None and self.off_policy_degree < -1:
            raise ConfigError(
                f'{SECTION}.train.off_policy_degree={self.off_policy_degree!r}: must be -1 (automatic), 0 or positive'
            )

    def budget(self, records: int) -> Fraction:
        """The updates that so many new records pay for."""
        return Fraction(str(self.replay_ratio)) * records / self.batch_size


@dataclass(frozen=True)
class PriorZeroConfig:
    """The whole section."""
    llm: Mapping[str, Any] = field(default_factory=lambda: {'backend': 'hf'})  # see make_prior
    llm_device: str | None = None  # where workers keep it; None is the world model's device
    mixing: Mixing = Mixing()
    train: PriorTraining = PriorTraining()

    @classmethod
    def from_policy(cls, policy_cfg: Mapping[str, Any]) -> PriorZeroConfig:
        """Read ``policy_cfg.priorzero``; absent, everything is by default."""
        section = dict(policy_cfg.get('priorzero', {}))
        _refuse_unknown(section, tuple(each.name for each in fields(cls)), SECTION)
        config = cls(
            llm={'backend': 'hf', **section.get('llm', {})}, llm_device=section.get('llm_device'),
            mixing=_part(Mixing, section, 'mixing'),
            train=_part(PriorTraining, section, 'train')
        )
        if config.trains and config.llm['backend'] != 'hf':
            raise ConfigError(
                f"{SECTION}.llm.backend={config.llm['backend']!r} cannot be trained: set {SECTION}.train.enabled=False"
            )
        return config

    def device(self, default: str) -> str:
        """Where workers keep the language model."""
        return self.llm_device or default

    @property
    def trains(self) -> bool:
        return self.train.enabled and self.mixing.needs_llm


@dataclass(frozen=True)
class Asking:
    """How a worker asks: what travels to it, beside what every worker gets."""
    llm: Mapping[str, Any]  # see make_prior
    device: str  # of the language model
    mixing: Mixing
    recording: bool  # whether someone learns from what it sees


def _part(cls: Any, section: Mapping[str, Any], name: str) -> Any:
    given = dict(section.get(name, {}))
    _refuse_unknown(given, tuple(each.name for each in fields(cls)), f'{SECTION}.{name}')
    return cls(**given)


def _refuse_unknown(given: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in given:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f'did you mean {close[0]!r}?' if close else f"known are {', '.join(known)}"
            raise ConfigError(f'{where}.{key} is no known key: {hint}')
