"""Config files: Python files with ``main_config``, ``create_config`` and, where it is not upstream's own, ``entry``."""
from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from easydict import EasyDict

from . import entry as entries
from .core import ConfigError
from .recipes import MUZERO, PRIORZERO, UNIZERO


def load(path: Path) -> ModuleType:
    """A config file as a module."""
    if not path.is_file():
        raise ConfigError(f'{path}: there is no such config file')
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f'{path}: a config is a Python file')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ('main_config', 'create_config'):
        if not hasattr(module, name):
            raise ConfigError(f'{path}: the config has no {name}')
    return module


def entry_of(module: ModuleType) -> Any:
    """The entry that a config declares; for upstream's, the one that has a recipe for its policy type."""
    recipes = {recipe.entry: recipe for recipe in (UNIZERO, MUZERO, PRIORZERO)}
    declared = getattr(module, 'entry', None)
    if declared is None:
        policy_type = module.create_config['policy']['type']
        declared = next((name for name, recipe in recipes.items() if policy_type in recipe.policy_types), None)
        if declared is None:
            raise ConfigError(f'create_config.policy.type={policy_type!r}: no entry trains that type')
    if declared not in recipes:
        raise ConfigError(f"{module.__name__}: entry={declared!r} is none of {', '.join(recipes)}")
    return getattr(entries, declared)


def apply(setting: str, main_config: EasyDict, create_config: EasyDict) -> None:
    """Put one KEY=VALUE into a config; VALUE is a Python literal, or else a string; missing sections are made."""
    key, equals, text = setting.partition('=')
    if not equals or not all(key.split('.')):
        raise ConfigError(f'--set {setting!r}: expected KEY=VALUE, as in policy.batch_size=32')
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    *sections, last = key.split('.')
    target = main_config
    if sections and sections[0] in ('main_config', 'create_config'):
        target = create_config if sections.pop(0) == 'create_config' else main_config
    for section in sections:
        if section not in target:
            target[section] = EasyDict()
        target = target[section]
        if not isinstance(target, dict):
            raise ConfigError(f'--set {setting!r}: {section} is a value, not a section')
    target[last] = value
