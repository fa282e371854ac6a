"""
AsyncConfig: what the user asked for, checked once, before anything starts.

Five keys stand flat in ``policy`` (``FLAT_KEYS``), all others in ``policy.async_pipeline``, where upstream main's names
for the same things are accepted too (``UPSTREAM_NAMES``). Whatever cannot work is a ``ConfigError`` of one sentence
that names the key, the value seen and the remedy; what merely looks odd is a warning.
"""
from __future__ import annotations

import difflib
import importlib.util
import logging
import math
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args

import numpy as np
import torch

from lzero_async.core import ConfigError, Placement, Role
from lzero_async.sizing import Given, available_cores, choose, default_threads

logger = logging.getLogger(__name__)

ROLES: tuple[Role, ...] = ('learner', 'collector', 'evaluator')
PLACEMENTS: tuple[str, ...] = get_args(Placement)
SECTION = 'async_pipeline'
FLAT_KEYS = (
    'enable_async_training', 'off_policy_degree', 'data_queue_size', 'enable_async_eval', 'enable_async_debug_log'
)

# Upstream main's names in ``policy.async_pipeline`` and what becomes of them here. ``shutdown_timeout_s``,
# ``weight_sync_interval`` and ``eval_at_start`` have the same name and meaning on both sides.
UPSTREAM_NAMES: Mapping[str, str] = {
    'enabled': 'enable_async_training',
    'num_collector_actors': 'num_collectors',
    'num_evaluator_actors': 'evaluate: False at 0; one evaluator serves for any other number',
    'max_eval_inflight': 'enable_async_eval: True from 1 on, unless set or the degree is 0; evaluate: False at 0',
    'max_collect_inflight': 'num_collectors: not more than this',
    'max_train_budget_queue_size': 'off_policy_degree: num_collectors + this, unless set',
    'max_policy_lag': 'weight_sync_interval: not more than this + 1; None or a negative number is no bound',
    'collector_num_gpus': "devices['collector']: 'cpu' at 0, the learner's device otherwise, unless set",
    'evaluator_num_gpus': "devices['evaluator']: 'cpu' at 0, the learner's device otherwise, unless set",
    'collector_num_cpus': 'nothing: a Ray resource; see threads',
    'evaluator_num_cpus': 'nothing: a Ray resource; see threads',
    'max_train_chunk_steps': 'nothing: the learner has its own thread and need not yield',
    'poll_interval_s': 'nothing: nothing polls',
    'buffer_stats_interval': 'nothing: buffer statistics cost O(1)',
    'ray_local_mode': 'nothing: set placement instead',
    'ray_ignore_reinit_error': 'nothing: Ray is not started',
}
RENAMED: Mapping[str, str] = {'enabled': 'enable_async_training', 'num_collector_actors': 'num_collectors'}


@dataclass(frozen=True)
class _Rule:
    """What a value must be."""
    kind: type  # bool, int, float or str
    least: int | None = None  # the smallest allowed
    above: int | None = None  # every allowed value is greater
    meaning: str = ''  # said when the value is out of range


_RULES: Mapping[str, _Rule] = {
    'enable_async_training': _Rule(bool),
    'off_policy_degree': _Rule(int, least=-1, meaning='N >= 1 batches outstanding, 0 in series, -1 automatic'),
    'data_queue_size': _Rule(int, least=1, meaning='finished batches that may wait for the learner'),
    'enable_async_eval': _Rule(bool),
    'enable_async_debug_log': _Rule(bool),
    'placement': _Rule(str),
    'num_collectors': _Rule(int, least=1, meaning='workers that collect, each with collector_env_num environments'),
    'deterministic': _Rule(bool),
    'weight_sync_interval': _Rule(int, least=1, meaning='updates between two publications of weights'),
    'min_buffer_size': _Rule(int, least=0, meaning='transitions wanted before the first update'),
    'max_restarts': _Rule(int, least=0, meaning='0 ends the run at the first failure of a worker'),
    'worker_timeout_s': _Rule(float, above=0, meaning='seconds without an answer after which a worker is given up'),
    'shutdown_timeout_s': _Rule(float, above=0, meaning='seconds that a worker has to end by itself'),
    'eval_at_start': _Rule(bool),
    'evaluate': _Rule(bool),
}
_PER_ROLE = ('devices', 'threads')
_SECTION_KEYS = (*_RULES, *_PER_ROLE, *UPSTREAM_NAMES)
_THREADS = _Rule(int, least=1, meaning='torch threads of that role')
_KINDS = {bool: 'True or False', int: 'a whole number', float: 'a finite number', str: 'a string'}


@dataclass(frozen=True)
class AsyncConfig:
    """
    Overview:
        All settings of one asynchronous run, resolved and checked. Made from a config by ``from_policy``; a direct
        construction is checked just as strictly.
    """
    enable_async_training: bool = True  # False: upstream's own function runs
    off_policy_degree: int = 2  # batches that may be outstanding; ``from_policy`` derives num_collectors + 1
    data_queue_size: int = 10  # finished batches that may wait
    enable_async_eval: bool = False  # evaluate beside training instead of pausing it
    enable_async_debug_log: bool = False  # log every admission, publication, take and wait
    placement: Placement = 'process'  # where collect and eval workers live
    num_collectors: int = 1  # each owns collector_env_num environments
    devices: Mapping[str, str | None] = field(default_factory=dict)  # by role; None is the learner's device
    threads: Mapping[str, int] = field(default_factory=dict)  # torch threads by role
    deterministic: bool = False  # the schedule does not depend on time
    weight_sync_interval: int = 1  # updates between two publications
    min_buffer_size: int = 0  # transitions wanted before the first update
    max_restarts: int = 3  # of failed workers
    worker_timeout_s: float = 300.0  # without an answer
    shutdown_timeout_s: float = 10.0  # to end by itself
    eval_at_start: bool = False  # evaluate once before the first update
    evaluate: bool = True  # False: no evaluator at all
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)  # why a value is what it is

    def __post_init__(self) -> None:
        """Check every value and normalise it (numpy numbers to Python's, partial per-role settings to full ones)."""
        for name in _RULES:
            object.__setattr__(self, name, _checked(_key(name), getattr(self, name), _RULES[name]))
        _check_placement(self.placement)
        object.__setattr__(self, 'devices', _full_devices(_per_role('devices', self.devices)))
        threads = default_threads(available_cores(), self.num_collectors, self.placement)
        object.__setattr__(self, 'threads', {**threads, **_per_role('threads', self.threads)})
        _check_combination(self)

    @classmethod
    def from_policy(cls, policy_cfg: Mapping[str, Any]) -> AsyncConfig:
        """
        Overview:
            Read the flat keys of ``policy_cfg`` and its section ``async_pipeline``; log a warning for what looks odd.
        Arguments:
            - policy_cfg (:obj:`Mapping[str, Any]`): The user's ``main_config.policy``. It is not changed.
        Returns:
            - config (:obj:`AsyncConfig`): The settings, every default resolved.
        """
        section = policy_cfg.get(SECTION)
        if section is None:
            section = {}
        if not isinstance(section, Mapping):
            raise ConfigError(f'policy.{SECTION} is {section!r}: it must be a dict of settings.')
        _refuse_unknown(policy_cfg, section)
        read = _Reading()
        for name in FLAT_KEYS:
            if name in policy_cfg:
                read.put(name, f'policy.{name}', policy_cfg[name])
        for key, value in section.items():
            name = RENAMED.get(key, key)
            if name in _PER_ROLE:
                read.derive(name, _per_role(name, value), _key(name))
            elif name in _RULES:
                read.put(name, f'policy.{SECTION}.{key}', value)
        _apply_upstream_names(read, section)
        _resolve_defaults(read)
        config = cls(**read.values, sources=read.sources)
        _warn_of_oddities(config)
        return config

    def explain(self) -> str:
        """
        Overview:
            Every value and why it is what it is, one per line.
        Returns:
            - text (:obj:`str`): The lines.
        """
        lines = ['asynchronous training:' if self.enable_async_training else 'asynchronous training is off:']
        for item in fields(self):
            if item.name == 'sources':
                continue
            value = getattr(self, item.name)
            if item.name in _PER_ROLE:
                unset = {role: 'as upstream chooses' if role == 'learner' else 'as the learner' for role in ROLES}
                value = ', '.join(f'{role} {value[role] or unset[role]}' for role in ROLES)
            lines.append(f"  {_key(item.name)} = {value} ({self.sources.get(item.name, 'default')})")
        return '\n'.join(lines)


class _Reading:
    """What was read so far: values by our names, and where each came from."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}

    def put(self, name: str, path: str, value: Any) -> None:
        """Take a value that the user wrote at ``path``; refuse it where another place says otherwise."""
        value = _checked(path, value, _RULES[name])
        if name in self.values and self.values[name] != value:
            raise ConfigError(
                f'{self.sources[name]} is {self.values[name]!r} but {path}, the same setting, is {value!r}: keep one.'
            )
        self.values.setdefault(name, value)
        self.sources.setdefault(name, path)

    def derive(self, name: str, value: Any, why: str) -> None:
        """Set a value that follows from others."""
        self.values[name] = value
        self.sources[name] = why


def _key(name: str) -> str:
    """The full path of a setting."""
    return f'policy.{name}' if name in FLAT_KEYS else f'policy.{SECTION}.{name}'


def nearest(name: Any, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that looks most like ``name``."""
    found = difflib.get_close_matches(str(name), list(known), n=1, cutoff=cutoff)
    return found[0] if found else None


def _suggest(name: Any, known: Iterable[str]) -> str:
    """The end of a sentence that refuses ``name``."""
    known = list(known)
    match = nearest(name, known)
    return f'did you mean {match!r}?' if match else f"known are {', '.join(known)}."


def _checked(path: str, value: Any, rule: _Rule) -> Any:
    """``value`` as a plain Python one, if it is of the right kind and in range."""
    is_bool = isinstance(value, (bool, np.bool_))
    fits = {
        bool: is_bool,
        int: isinstance(value, numbers.Integral) and not is_bool,
        float: isinstance(value, numbers.Real) and not is_bool and math.isfinite(value),
        str: isinstance(value, str),
    }[rule.kind]
    if not fits:
        raise ConfigError(f'{path} is {value!r} ({type(value).__name__}): it must be {_KINDS[rule.kind]}.')
    value = rule.kind(value)
    if rule.least is not None and value < rule.least:
        raise ConfigError(f'{path} is {value}: it must be at least {rule.least} ({rule.meaning}).')
    if rule.above is not None and value <= rule.above:
        raise ConfigError(f'{path} is {value}: it must be greater than {rule.above} ({rule.meaning}).')
    return value


def _per_role(name: str, value: Any) -> dict[str, Any]:
    """A per-role setting, given as one value for all roles, as a dict for some, or as None for none."""
    path = _key(name)
    if value is None:
        return {}
    given = value if isinstance(value, Mapping) else {role: value for role in ROLES}
    result: dict[str, Any] = {}
    for role, item in given.items():
        if role not in ROLES:
            raise ConfigError(f'{path} names the role {role!r}: {_suggest(role, ROLES)}')
        where = f'{path}.{role}' if given is value else path
        if name == 'threads':
            result[role] = _checked(where, item, _THREADS)
        elif item is None or (isinstance(item, str) and item):
            result[role] = item
        else:
            raise ConfigError(f"{where} is {item!r}: it must be a device such as 'cpu' or 'cuda:0', or None.")
    return result


def _full_devices(devices: Mapping[str, str | None]) -> dict[str, str | None]:
    """One entry for every role."""
    return {role: devices.get(role) for role in ROLES}


def _refuse_unknown(policy: Mapping[str, Any], section: Mapping[str, Any]) -> None:
    """Refuse keys that nobody knows; ``policy`` is full of upstream's, so there only what nearly is one of ours."""
    for key in policy:
        match = None if key in FLAT_KEYS or key == SECTION else nearest(key, (*FLAT_KEYS, SECTION), cutoff=0.85)
        if match:
            raise ConfigError(f'policy.{key} is no known key: did you mean {match!r}?')
        if key in _RULES and key not in FLAT_KEYS or key in _PER_ROLE:
            logger.warning('policy.%s has no effect there; it belongs into policy.%s.', key, SECTION)
    for key in section:
        if key not in _SECTION_KEYS:
            raise ConfigError(f'policy.{SECTION}.{key} is no known key: {_suggest(key, _SECTION_KEYS)}')


def _apply_upstream_names(read: _Reading, section: Mapping[str, Any]) -> None:
    """Translate those of upstream main's names that are not plain renamings; see ``UPSTREAM_NAMES``."""

    def number(key: str, least: int | None, kind: type = int) -> Any:
        """The checked value of an upstream key, None where it is absent."""
        if key not in section:
            return None
        return _checked(f'policy.{SECTION}.{key}', section[key], _Rule(kind, least=least, meaning='as upstream has it'))

    for key in section:
        if UPSTREAM_NAMES.get(key, '').startswith('nothing'):
            logger.debug('policy.%s.%s is accepted and has no effect here (%s).', SECTION, key, UPSTREAM_NAMES[key])
    evaluators, evaluations = number('num_evaluator_actors', 0), number('max_eval_inflight', 0)
    for key, value in (('num_evaluator_actors', evaluators), ('max_eval_inflight', evaluations)):
        if value == 0:
            read.put('evaluate', f'policy.{SECTION}.{key}', False)
    if evaluators is not None and evaluators > 1:
        logger.warning('policy.%s.num_evaluator_actors is %d; one evaluator is used.', SECTION, evaluators)
    if evaluations and 'enable_async_eval' not in read.values and read.values.get('off_policy_degree') != 0:
        read.derive('enable_async_eval', True, f'policy.{SECTION}.max_eval_inflight is {evaluations}')
    cap = number('max_collect_inflight', 1)
    if cap is not None and cap < read.values.get('num_collectors', 1):
        logger.warning(
            'policy.%s.max_collect_inflight is %d, so %d of the %d collectors are used.', SECTION, cap, cap,
            read.values['num_collectors']
        )
        read.derive('num_collectors', cap, f'policy.{SECTION}.max_collect_inflight is {cap}')
    waiting = number('max_train_budget_queue_size', 1)
    if waiting is not None and 'off_policy_degree' not in read.values:
        why = f'num_collectors + policy.{SECTION}.max_train_budget_queue_size'
        read.derive('off_policy_degree', read.values.get('num_collectors', 1) + waiting, why)
    lag = None if section.get('max_policy_lag') is None else number('max_policy_lag', None)
    if lag is not None and 0 <= lag < read.values.get('weight_sync_interval', 1) - 1:
        read.derive('weight_sync_interval', lag + 1, f'policy.{SECTION}.max_policy_lag is {lag}')
    for role in ('collector', 'evaluator'):
        gpus = number(f'{role}_num_gpus', 0, float)
        if gpus == 0 and role not in read.values.get('devices', {}):
            sources = (read.sources.get('devices'), f'policy.{SECTION}.{role}_num_gpus')
            devices = {**read.values.get('devices', {}), role: 'cpu'}
            read.derive('devices', devices, ', '.join(source for source in sources if source))


def _resolve_defaults(read: _Reading) -> None:
    """Fill in what the rule in ``sizing`` chooses where the user did not, and say why."""
    names = ('placement', 'num_collectors', 'off_policy_degree')
    threads = read.values.get('threads', {})
    given = Given(**{name: read.values[name] for name in names if name in read.values}, threads=threads)
    choice = choose(available_cores(), torch.cuda.is_available(), given=given)
    for name in names:
        if name not in read.values:
            read.derive(name, getattr(choice, name), f'default: {choice.reasons[name]}')
    missing = [role for role in ROLES if role not in threads]
    if missing:
        why = f"default for {', '.join(missing)}: {choice.reasons['threads']}"
        read.derive('threads', dict(choice.threads), f"{read.sources['threads']}, {why}" if threads else why)


def _check_placement(placement: str) -> None:
    """Refuse a placement that is unknown, or that cannot be had here."""
    path = _key('placement')
    if placement not in PLACEMENTS:
        raise ConfigError(f'{path} is {placement!r}: it must be one of {", ".join(PLACEMENTS)}.')
    if placement == 'ray':
        if importlib.util.find_spec('ray') is None:
            raise ConfigError(
                f"{path} is 'ray' but Ray is not installed: pip install lzero-async[ray], or use 'process'."
            )
        raise ConfigError(f"{path} is 'ray': placement 'ray' is not built yet; use 'process'.")


def _check_combination(config: AsyncConfig) -> None:
    """Refuse settings that are fine by themselves and cannot work together."""
    degree = f"{_key('off_policy_degree')} is {config.off_policy_degree}"
    if config.off_policy_degree == 0 and config.num_collectors > 1:
        raise ConfigError(
            f"{degree} (in series) but {_key('num_collectors')} is {config.num_collectors}: "
            f'use one collector, or a degree of {config.num_collectors + 1}.'
        )
    if config.off_policy_degree == 0 and config.enable_async_eval:
        raise ConfigError(
            f"{degree} (in series) but {_key('enable_async_eval')} is True: "
            'set it to False, or use a degree of 1 or more.'
        )
    if config.off_policy_degree < 1 and config.deterministic:
        reason = 'in series' if config.off_policy_degree == 0 else 'tuned by measured times'
        raise ConfigError(f"{degree} ({reason}) but {_key('deterministic')} is True: use a degree of 1 or more.")


def _warn_of_oddities(config: AsyncConfig) -> None:
    """Warn of settings that work but are hardly meant."""
    if 0 < config.off_policy_degree <= config.num_collectors:
        logger.warning(
            'policy.off_policy_degree is %d with num_collectors %d: some collector always waits for the learner; '
            '%d or more lets all of them work.', config.off_policy_degree, config.num_collectors,
            config.num_collectors + 1
        )
    if config.deterministic and config.enable_async_eval:
        logger.warning(
            'policy.%s.deterministic with policy.enable_async_eval: weights do not depend on time, but the batch at '
            'which an evaluation stops the run does.', SECTION
        )
