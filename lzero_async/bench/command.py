"""``lzero-async bench`` on the command line; the work is done elsewhere, and imported only when it is wanted."""
from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..core import ConfigError
from ..options import count

SPEED_STEPS, LEARN_STEPS, PRIOR_STEPS, REPEATS = 4000, 5000, 1500, 3


def add_parser(commands: Any) -> None:
    """Add ``bench`` to the subcommands of ``lzero-async``."""
    bench = commands.add_parser('bench', help="compare speed and memory with upstream's serial entry")
    bench.add_argument('--config', type=Path, help='a config file; default: a pinned setting of CartPole UniZero')
    steps = f'{SPEED_STEPS}, with --learn {LEARN_STEPS}, with --prior {PRIOR_STEPS}'
    bench.add_argument('--env-steps', type=count, help=f'of every run; default: {steps}')
    bench.add_argument('--repeats', type=count, help=f'of every row, alternating; default: {REPEATS}')
    bench.add_argument('--rows', type=_names, metavar='ROW,ROW', help='of serial, serial_best_threads, thread, process')
    bench.add_argument('--disturb', action='store_true', help='another process keeps one core busy during every run')
    bench.add_argument('--json', type=Path, metavar='OUT', help='write everything that was measured to this file')
    bench.add_argument('--learn', action='store_true', help='compare returns instead of speed, on the drop-in config')
    bench.add_argument('--seeds', type=count, help=f'runs of every kind with --learn or --prior; default: {REPEATS}')
    bench.add_argument('--scale', action='store_true', help='cost against buffer size, model size, collectors')
    bench.add_argument('--prior', action='store_true', help='compare returns without, with a frozen, a trained prior')
    bench.add_argument('--plot', type=Path, metavar='OUT', help='draw what --learn or --scale found (.svg, .png)')
    bench.set_defaults(command=_bench)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(',') if name.strip())


def _bench(arguments: argparse.Namespace) -> int:
    _refuse_ignored(arguments)
    if arguments.learn:
        return _learn(arguments)
    if arguments.prior:
        return _prior(arguments)
    return _scale(arguments) if arguments.scale else _speed(arguments)


def _refuse_ignored(arguments: argparse.Namespace) -> None:
    """An option that this benchmark does not read was meant for another."""
    chosen = [name for name in ('learn', 'scale', 'prior') if getattr(arguments, name)]
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(f'--{name}' for name in chosen)} are different benchmarks: choose one")
    ignored = ['rows', 'repeats', 'disturb'] if arguments.learn else ['seeds', 'plot']
    if arguments.scale:
        ignored = ['rows', 'repeats', 'disturb', 'seeds', 'env_steps', 'config']
    if arguments.prior:
        ignored = ['rows', 'repeats', 'disturb', 'plot']
    if given := [f"--{name.replace('_', '-')}" for name in ignored if getattr(arguments, name)]:
        kind = f'--{chosen[0]}' if chosen else 'speed'
        raise ConfigError(f"{', '.join(given)}: of no use to the benchmark {kind}; leave it out")


def _learn(arguments: argparse.Namespace) -> int:
    from . import learn
    plan = learn.Plan(arguments.env_steps or LEARN_STEPS, arguments.seeds or REPEATS, arguments.config)
    learn.run(plan, arguments.json, arguments.plot)
    return 0


def _prior(arguments: argparse.Namespace) -> int:
    from . import prior
    prior.run(
        prior.Plan(arguments.env_steps or PRIOR_STEPS, arguments.seeds or REPEATS, arguments.config), arguments.json
    )
    return 0


def _scale(arguments: argparse.Namespace) -> int:
    from . import scale
    scale.run(arguments.json, arguments.plot)
    return 0


def _speed(arguments: argparse.Namespace) -> int:
    from . import speed
    rows = arguments.rows or speed.ROWS
    steps, repeats = arguments.env_steps or SPEED_STEPS, arguments.repeats or REPEATS
    plan = speed.Plan(steps, repeats, rows, arguments.config, arguments.disturb)
    speed.run(plan, arguments.json)
    return 0
