"""The command ``lzero-async``."""
from __future__ import annotations

import argparse
import contextlib
import copy
import logging
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from . import entry as entries
from .bench import command as bench
from .config_file import apply, entry_of, load
from .core import AsyncTrainingError, ConfigError, WorkerError
from .doctor import command as doctor
from .options import count

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
    train.add_argument('--max-env-step', type=count, help="default: the config's max_env_step")
    train.add_argument('--max-train-iter', type=count, help="default: the config's max_train_iter")
    train.add_argument('--exp-name', help='run directory, exactly ./EXP_NAME; must not exist yet')
    train.add_argument(
        '--set', action='extend', nargs='+', default=[], metavar='KEY=VALUE', dest='settings',
        help="e.g. policy.batch_size=32 policy.async_pipeline.placement=thread; create_config.env_manager.type=base"
    )
    train.set_defaults(command=_train)
    bench.add_parser(commands)
    doctor.add_parser(commands)
    return parser


def _train(arguments: argparse.Namespace) -> int:
    module = load(arguments.config)
    main_config, create_config = copy.deepcopy(module.main_config), copy.deepcopy(module.create_config)
    for setting in arguments.settings:
        apply(setting, main_config, create_config)
    main_config.exp_name = _run_directory(arguments.exp_name, main_config.get('exp_name', 'default_experiment'))
    limits = {
        name: getattr(arguments, name) or int(getattr(module, name, entries.UNLIMITED))
        for name in ('max_env_step', 'max_train_iter')
    }
    with _console(Path(main_config.exp_name)):
        entry_of(module)(
            [main_config, create_config], seed=arguments.seed, model_path=main_config.policy.get('model_path'), **limits
        )
    return 0


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
