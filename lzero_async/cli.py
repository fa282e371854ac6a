"""The command ``lzero-async``."""
from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib.util
import logging
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from easydict import EasyDict

from . import entry as entries
from .core import AsyncTrainingError, ConfigError, WorkerError
from .recipes import MUZERO, UNIZERO

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Parse and carry out; the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return arguments.command(arguments)
    except WorkerError as error:
        return _complain(str(error))
    except AsyncTrainingError as error:
        return _complain(str(error).partition('\n')[0])
    except KeyboardInterrupt:
        return INTERRUPTED


def _complain(message: str) -> int:
    sys.stderr.write(f'lzero-async: {message}\n')
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='lzero-async', description='Asynchronous training for LightZero.')
    commands = parser.add_subparsers(required=True, metavar='COMMAND')
    train = commands.add_parser('train', help='train with a config file')
    train.add_argument('config', type=Path, help='a file with main_config, create_config and entry')
    train.add_argument('--seed', type=int, default=0)
    train.add_argument('--max-env-step', type=_count, help="default: the config's max_env_step")
    train.add_argument('--max-train-iter', type=_count, help="default: the config's max_train_iter")
    train.add_argument('--exp-name', help='run directory, exactly ./EXP_NAME; must not exist yet')
    train.add_argument(
        '--set', action='extend', nargs='+', default=[], metavar='KEY=VALUE', dest='settings',
        help="e.g. policy.batch_size=32 policy.async_pipeline.placement=thread; create_config.env_manager.type=base"
    )
    train.set_defaults(command=_train)
    return parser


def _count(text: str) -> int:
    """A positive number of steps; 2e5 is one too."""
    value = float(text)
    if value < 1 or value != int(value):
        raise argparse.ArgumentTypeError(f'{text!r} is not a positive whole number')
    return int(value)


def _train(arguments: argparse.Namespace) -> int:
    module = _load(arguments.config)
    main_config, create_config = copy.deepcopy(module.main_config), copy.deepcopy(module.create_config)
    for setting in arguments.settings:
        _apply(setting, main_config, create_config)
    main_config.exp_name = _run_directory(arguments.exp_name, main_config.get('exp_name', 'default_experiment'))
    limits = {
        name: getattr(arguments, name) or int(getattr(module, name, entries.UNLIMITED))
        for name in ('max_env_step', 'max_train_iter')
    }
    with _console(Path(main_config.exp_name)):
        _entry(module)([main_config, create_config], seed=arguments.seed, model_path=_model_path(main_config), **limits)
    return 0


def _load(path: Path) -> ModuleType:
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


def _entry(module: ModuleType) -> Any:
    """The entry that a config declares; for upstream's, the one that has a recipe for its policy type."""
    recipes = {recipe.entry: recipe for recipe in (UNIZERO, MUZERO)}
    declared = getattr(module, 'entry', None)
    if declared is None:
        policy_type = module.create_config['policy']['type']
        declared = next((name for name, recipe in recipes.items() if policy_type in recipe.policy_types), None)
        if declared is None:
            raise ConfigError(f'create_config.policy.type={policy_type!r}: no entry trains that type')
    if declared not in recipes:
        raise ConfigError(f"{module.__name__}: entry={declared!r} is none of {', '.join(recipes)}")
    return getattr(entries, declared)


def _model_path(main_config: EasyDict) -> str | None:
    return main_config.policy.get('model_path')


def _apply(setting: str, main_config: EasyDict, create_config: EasyDict) -> None:
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


def _run_directory(wanted: str | None, configured: str) -> str:
    """Where the run will be. An explicit name is kept to the letter; a configured one that is taken gets a suffix."""
    name = wanted or configured
    path = Path(name)
    if path.is_dir() and not any(path.iterdir()):
        path.rmdir()
    if path.exists():
        if wanted:
            raise ConfigError(f'--exp-name {name}: ./{name} exists already; choose another name or remove it')
        name += datetime.now().strftime('_%y%m%d_%H%M%S')
    return name


class _LazyFile:
    """A text file that waits for the run directory to be made, as upstream would rename one that exists."""

    def __init__(self, run_directory: Path, name: str) -> None:
        self._run_directory = run_directory
        self._name = name
        self._early: list[str] = []
        self._file: TextIO | None = None

    def write(self, text: str) -> int:
        if self._file is None:
            if not self._run_directory.exists():
                self._early.append(text)
                return len(text)
            self._file = open(self._run_directory / self._name, 'a', buffering=1, encoding='utf-8')
            self._file.writelines(self._early)
        return self._file.write(text)

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


@contextlib.contextmanager
def _console(run_directory: Path) -> Iterator[None]:
    """Our progress goes to the terminal; what upstream prints goes to a file of the run, its tables to their own."""
    ours, root = logging.getLogger(__package__), logging.getLogger()
    progress = logging.StreamHandler(sys.stderr)
    progress.setFormatter(logging.Formatter('%(asctime)s %(message)s', '%H:%M:%S'))
    warnings = logging.StreamHandler(sys.stderr)
    warnings.setLevel(logging.WARNING)
    before = list(root.handlers), ours.propagate
    root.handlers[:] = [warnings]
    ours.addHandler(progress)
    ours.propagate = False
    printed: Any = _LazyFile(run_directory, 'stdout.txt')
    try:
        with contextlib.redirect_stdout(printed):
            yield
    finally:
        printed.close()
        root.handlers[:] = before[0]
        ours.removeHandler(progress)
        ours.propagate = before[1]


if __name__ == '__main__':
    sys.exit(main())
