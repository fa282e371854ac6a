"""``lzero-async doctor [CONFIG]``."""
from __future__ import annotations

import argparse
import copy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import ConfigError

if TYPE_CHECKING:
    from ..config import AsyncConfig
    from ..recipes import Recipe

SECONDS = 30.0


def add_parser(commands: Any) -> None:
    """The command's options."""
    parser = commands.add_parser('doctor', help='what this machine can do, and which settings suit a config on it')
    parser.add_argument('config', type=Path, nargs='?', help='a config file to try; without one, the machine alone')
    parser.add_argument(
        '--seconds', type=_seconds, default=SECONDS,
        help=f'how long to try the config (default: {SECONDS:g}); with less all figures are rougher'
    )
    parser.add_argument('--json', type=Path, metavar='OUT', help='write the findings to this file too')
    parser.add_argument(
        '--set', action='extend', nargs='+', default=[], metavar='KEY=VALUE', dest='settings', help='as for train'
    )
    parser.set_defaults(command=doctor)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float('inf'):
        raise argparse.ArgumentTypeError(f'{text!r} is not a positive number of seconds')
    return value


def doctor(arguments: argparse.Namespace) -> int:
    """Look, measure, print."""
    # Not at the top: whoever trains need not load what only a doctor uses.
    from ..telemetry.report import write_report
    from . import gil, machine
    from .advice import advise
    from .render import Findings, as_json, as_text
    from .trial import run_trial

    out: Path | None = arguments.json
    if out is not None and not out.parent.is_dir():
        raise ConfigError(f'--json {out}: there is no directory {out.parent}')
    patient = _patient_of(arguments.config, arguments.settings) if arguments.config else None
    here = machine.look()
    bystanders = machine.Bystanders()
    lock = None
    if here.cores > 1:
        _say('measuring the GIL, at most about 20 s')
        lock = gil.measure(round(gil.SIMULATIONS * min(1.0, max(0.1, arguments.seconds / SECONDS))))
    trial = advice = None
    if patient is not None:
        _say(f'trying {arguments.config}, about {arguments.seconds:g} s, or as long as a batch takes')
        trial = run_trial(
            (patient.main_config, patient.create_config), patient.recipe, patient.config, patient.model_path,
            arguments.seconds, here.cores
        )
        advice = advise(trial, patient.config, here.cores, here.memory_available)
    others = bystanders.cores()
    warnings = [*machine.troubles(here), *machine.crowded(here, others)]
    findings = Findings(
        here, lock, others, warnings, str(arguments.config) if arguments.config else None, trial, advice
    )
    sys.stdout.write(as_text(findings))
    if out is not None:
        write_report(out, as_json(findings))
    return 0


def _say(progress: str) -> None:
    sys.stderr.write(f'{progress} ...\n')


@dataclass(frozen=True)
class Patient:
    """A config, ready to be tried."""
    main_config: Any
    create_config: Any
    recipe: Recipe
    config: AsyncConfig
    model_path: str | None


def _patient_of(path: Path, settings: list[str]) -> Patient:
    """Read and checked as ``train`` does; what cannot work is refused before anything is measured."""
    from ..config import AsyncConfig
    from ..config_file import apply, entry_of, load
    from ..recipes import MUZERO, UNIZERO, recipe_for
    from ..validate import prepare, validate_run

    module = load(path)
    main_config, create_config = copy.deepcopy(module.main_config), copy.deepcopy(module.create_config)
    for setting in settings:
        apply(setting, main_config, create_config)
    entry = entry_of(module).__name__
    plain = next(recipe for recipe in (UNIZERO, MUZERO) if recipe.entry == entry)
    main_config, create_config = prepare(main_config, create_config)
    recipe = recipe_for(plain, main_config)
    config = AsyncConfig.from_policy(main_config.policy)
    model_path = main_config.policy.get('model_path')
    validate_run(main_config, create_config, config, recipe.policy_types, entry, model_path)
    return Patient(main_config, create_config, recipe, config, model_path)
