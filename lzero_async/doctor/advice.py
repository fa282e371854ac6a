"""What to do: the rule of ``sizing`` applied to what was measured. Arithmetic only."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..config import ROLES, AsyncConfig
from ..sizing import BatchCosts, Choice, Outlook, choose, outlook, pays, serial_s
from .machine import gigabytes
from .trial import Spent, Trial

SETTINGS = {
    'placement': 'policy.async_pipeline.placement',
    'num_collectors': 'policy.async_pipeline.num_collectors',
    'off_policy_degree': 'policy.off_policy_degree',
    'threads': 'policy.async_pipeline.threads',
}


@dataclass(frozen=True)
class Advice:
    """What to do and what to expect of it."""
    costs: Mapping[int, BatchCosts]  # of a batch, by the learner's torch threads
    serial_s: float  # wall seconds per batch in series, with the torch threads that suit learning best
    outlooks: Sequence[Outlook]  # for 1 collector, 2, ... as many as there are cores
    choice: Choice
    speed_up: float  # against serial, at best
    differences: Sequence[str]  # where the config says something else
    lines: Sequence[str]  # to paste into policy
    notes: Sequence[str]  # what else there is to know


def costs_of(trial: Trial) -> dict[int, BatchCosts]:
    """
    Overview:
        A trial in the terms of the bound. CPU seconds, as other programs change them least; what more threads make of
        learning is the ratio of wall times. Wall seconds for a role whose time passes elsewhere too.
    Arguments:
        - trial (:obj:`Trial`): What was measured.
    Returns:
        - costs (:obj:`dict[int, BatchCosts]`): By the learner's torch threads.
    """
    evaluation = (trial.evaluation or Spent(0.0, 0.0)) * trial.evaluations_per_batch
    collect_s = trial.collect.wall_s if 'collector' in trial.outside else trial.collect.cpu_s
    evaluate_s = evaluation.wall_s if 'evaluator' in trial.outside else evaluation.cpu_s
    costs = {}
    for threads, learn in trial.learn.items():
        single = trial.learn[1]
        learn_s = learn.wall_s if 'learner' in trial.outside else single.cpu_s * learn.wall_s / single.wall_s
        work = trial.collect.cpu_s + learn.cpu_s + evaluation.cpu_s
        costs[threads] = BatchCosts(collect_s, learn_s, evaluate_s, work)
    return costs


def advise(trial: Trial, config: AsyncConfig, cores: int, memory_available: int) -> Advice:
    """
    Overview:
        What the rule says about a trial.
    Arguments:
        - trial (:obj:`Trial`): What was measured.
        - config (:obj:`AsyncConfig`): What the config says so far; ``enable_async_eval`` is taken from it.
        - cores (:obj:`int`): Cores that a run may use.
        - memory_available (:obj:`int`): Bytes.
    Returns:
        - advice (:obj:`Advice`): What to do.
    """
    costs = costs_of(trial)
    serial = min(serial_s(item) for item in costs.values())
    accelerator = trial.device != 'cpu'
    choice = choose(cores, accelerator, costs, config.enable_async_eval)
    chosen = outlook(costs, choice.num_collectors, cores, config.enable_async_eval)
    speed_up = serial / chosen.best_s
    notes = []
    if not pays(serial, chosen.best_s):
        notes.append('Hardly anything can be gained here: off_policy_degree=0 is as fast, and never stale.')
    if not config.enable_async_eval:
        collectors = choose(cores, accelerator, costs, async_eval=True).num_collectors
        beside = outlook(costs, collectors, cores, async_eval=True)
        if pays(chosen.best_s, beside.best_s):
            best = f'{beside.best_s:.3g} s at best with num_collectors={collectors}, bound by {beside.bound_by}'
            notes.append(f'With enable_async_eval=True a batch would take {best}.')
    if trial.cut_short:
        notes.append('The evaluation was cut short: E is more than this.')
    elif trial.evaluation is not None:
        notes.append('The policy is hardly trained yet: where episodes grow longer with skill, so does E.')
    workers = choice.num_collectors + (trial.evaluation is not None)
    needed = (1 + workers) * trial.memory
    if needed > memory_available:
        notes.append(
            f'The learner and {workers} workers may take {gigabytes(needed)} of memory, and '
            f'{gigabytes(memory_available)} are available.'
        )
    return Advice(
        costs, serial, [outlook(costs, n, cores, config.enable_async_eval) for n in range(1, cores + 1)], choice,
        speed_up, _differences(config, choice), _lines(choice), notes
    )


def _differences(config: AsyncConfig, choice: Choice) -> list[str]:
    """Every setting that is another in the config, and whether somebody set it so."""
    found = []

    def compare(name: str, key: str, now: object, picked: object) -> None:
        if now != picked:
            origin = 'by default' if 'default' in config.sources.get(name, 'default') else 'as set'
            found.append(f'{key} is {now} {origin}, not {picked}')

    for name, key in SETTINGS.items():
        if name != 'threads':
            compare(name, key, getattr(config, name), getattr(choice, name))
    for role in ROLES:
        compare('threads', f"{SETTINGS['threads']}.{role}", config.threads[role], choice.threads[role])
    return found


def _lines(choice: Choice) -> list[str]:
    """The settings as Python, to stand in ``policy=dict(...)``."""
    threads = ', '.join(f'{role}={choice.threads[role]}' for role in ROLES)
    return [
        f'off_policy_degree={choice.off_policy_degree},',
        f'async_pipeline=dict(placement={choice.placement!r}, num_collectors={choice.num_collectors}, '
        f'threads=dict({threads})),',
    ]
