"""
How large a run should be: the one rule behind the entries' defaults and ``lzero-async doctor``.

Arithmetic only. Whoever has measured what a batch costs passes it in; without costs the rule is cautious. The bound is
explained in ``docs/staleness.md``, the rule in ``docs/doctor.md``.
"""
from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from .core import Placement

WORTHWHILE = 0.05  # what one more collector or thread must gain to be taken


@dataclass(frozen=True)
class BatchCosts:
    """Seconds that one batch costs each stage: C, L and E of the bound."""
    collect: float  # C
    learn: float  # L: sampling and updates
    evaluate: float = 0.0  # E: one evaluation, spread over the batches from one to the next
    cpu: float | None = None  # CPU seconds of all stages; None where it is their sum (one thread each, no device)

    @property
    def work(self) -> float:
        """What the cores have to do."""
        return serial_s(self) if self.cpu is None else self.cpu


def serial_s(costs: BatchCosts) -> float:
    """Seconds per batch where one stage follows the other."""
    return costs.collect + costs.learn + costs.evaluate


def stages_s(costs: BatchCosts, collectors: int, cores: int, async_eval: bool) -> dict[str, float]:
    """Seconds per batch that each stage needs at least, and all of them on so many cores."""
    return {
        'collecting': costs.collect / collectors,
        'learning': costs.learn if async_eval else costs.learn + costs.evaluate,
        'evaluating': costs.evaluate,
        'the cores': costs.work / cores,
    }


def best_s(costs: BatchCosts, collectors: int, cores: int, async_eval: bool) -> float:
    """
    Overview:
        The bound: overlapping stages take as long as the slowest of them, and as all work spread over all cores.
    Arguments:
        - costs (:obj:`BatchCosts`): Seconds per batch.
        - collectors (:obj:`int`): Number of collect workers.
        - cores (:obj:`int`): Cores that the run may use.
        - async_eval (:obj:`bool`): Whether learning goes on during an evaluation.
    Returns:
        - seconds (:obj:`float`): The least wall time per batch.
    """
    return max(stages_s(costs, collectors, cores, async_eval).values())


def pays(now_s: float, then_s: float) -> bool:
    """Whether so much less is worth one more of something; a gain of just WORTHWHILE is not, however it is rounded."""
    return then_s < (1 - WORTHWHILE - 1e-9) * now_s


def available_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_threads(cores: int, num_collectors: int, placement: str) -> dict[str, int]:
    """
    Overview:
        Torch threads per role where the user names none. Searching with a small model is slower with two threads than
        with one, so collectors and the evaluator get one each. The learner gets the cores that the collectors leave,
        and never less than one; the evaluator runs seldom and is not counted. Ray workers may live on other machines:
        there the learner gets all cores of this one.
    Arguments:
        - cores (:obj:`int`): Cores that this process may use.
        - num_collectors (:obj:`int`): Number of collect workers.
        - placement (:obj:`str`): Where the workers live.
    Returns:
        - threads (:obj:`dict[str, int]`): Torch threads by role.
    """
    taken = 0 if placement == 'ray' else num_collectors
    return {'learner': max(1, cores - taken), 'collector': 1, 'evaluator': 1}


@dataclass(frozen=True)
class Outlook:
    """What so many collectors can bring at best."""
    collectors: int
    learner_threads: int  # the fewest that are not worse by more than WORTHWHILE
    best_s: float  # wall seconds per batch
    bound_by: str  # the stage that takes so long


def outlook(
        costs: Mapping[int, BatchCosts], collectors: int, cores: int, async_eval: bool,
        learner_threads: int | None = None
) -> Outlook:
    """
    Overview:
        The bound with so many collectors, and the learner's threads that reach it.
    Arguments:
        - costs (:obj:`Mapping[int, BatchCosts]`): What a batch costs, by the learner's torch threads.
        - collectors (:obj:`int`): Number of collect workers.
        - cores (:obj:`int`): Cores that the run may use.
        - async_eval (:obj:`bool`): Whether learning goes on during an evaluation.
        - learner_threads (:obj:`Optional[int]`): Given, the nearest measured number below is taken; None chooses among
            those that fit on the cores which the collectors leave.
    Returns:
        - outlook (:obj:`Outlook`): The bound.
    """
    room = max(1, cores - collectors) if learner_threads is None else learner_threads
    fitting = sorted(threads for threads in costs if threads <= room) or [min(costs)]
    chosen = fitting[0] if learner_threads is None else fitting[-1]
    for threads in fitting:
        now, then = (best_s(costs[count], collectors, cores, async_eval) for count in (chosen, threads))
        if pays(now, then):
            chosen = threads
    stages = stages_s(costs[chosen], collectors, cores, async_eval)
    slowest = max(stages, key=lambda stage: stages[stage])
    return Outlook(collectors, chosen, stages[slowest], slowest)


@dataclass(frozen=True)
class Given:
    """What the user has decided already; None and missing roles are the rule's to choose."""
    placement: Placement | None = None
    num_collectors: int | None = None
    off_policy_degree: int | None = None
    threads: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """What the rule says."""
    placement: Placement
    num_collectors: int
    off_policy_degree: int
    threads: Mapping[str, int]  # by role
    reasons: Mapping[str, str]  # one sentence for each of the four


def choose(
        cores: int,
        accelerator: bool,
        costs: Mapping[int, BatchCosts] | None = None,
        async_eval: bool = False,
        given: Given = Given(),  # noqa: B008 (frozen)
) -> Choice:
    """
    Overview:
        The rule. Measured costs decide the number of collectors and the learner's threads; without them there is one
        collector, and the learner gets the cores that are left.
    Arguments:
        - cores (:obj:`int`): Cores that the run may use.
        - accelerator (:obj:`bool`): Whether there is a device beside the CPU.
        - costs (:obj:`Optional[Mapping[int, BatchCosts]]`): What a batch costs, by the learner's torch threads.
        - async_eval (:obj:`bool`): Whether learning goes on during an evaluation.
        - given (:obj:`Given`): What is decided already.
    Returns:
        - choice (:obj:`Choice`): Every setting, and why.
    """
    placement, why_there = _placement(accelerator, given)
    collectors, why_so_many = _collectors(cores, costs, async_eval, given)
    threads, why_threads = _threads(cores, costs, async_eval, given, placement, collectors)
    degree, why_degree = given.off_policy_degree, 'given'
    if degree is None:
        degree = collectors + 1
        why_degree = 'num_collectors + 1, so that every collector can work while the learner has a batch'
    return Choice(placement, collectors, degree, threads, {
        'placement': why_there,
        'num_collectors': why_so_many,
        'off_policy_degree': why_degree,
        'threads': why_threads,
    })


def _placement(accelerator: bool, given: Given) -> tuple[Placement, str]:
    if given.placement is not None:
        return given.placement, 'given'
    if accelerator:
        return 'process', 'processes overlap everywhere; whether threads are faster beside an accelerator is not ' \
                          'measured yet'
    return 'process', "searching and learning hold Python's lock, so that on a CPU only processes overlap"


def _collectors(
        cores: int, costs: Mapping[int, BatchCosts] | None, async_eval: bool, given: Given
) -> tuple[int, str]:
    if given.num_collectors is not None:
        return given.num_collectors, 'given'
    if cores == 1:
        return 1, 'on one core nothing can overlap, so that nothing can be gained'
    if costs is None:
        return 1, 'nothing was measured; lzero-async doctor CONFIG tells whether more would pay'
    return _measured_collectors(cores, costs, async_eval, given)


def _measured_collectors(
        cores: int, costs: Mapping[int, BatchCosts], async_eval: bool, given: Given
) -> tuple[int, str]:
    """The fewest to which one more would not add enough, and not more than leave the learner a core."""
    degree, threads = given.off_policy_degree, given.threads.get('learner')
    most, limit = cores - 1, 'more would leave no core for the learner'
    if degree is not None and 0 <= degree <= most:
        most, limit = max(1, degree - 1), f'more would wait, as off_policy_degree is {degree}'
    now = outlook(costs, 1, cores, async_eval, threads)
    while True:
        more = outlook(costs, now.collectors + 1, cores, async_eval, threads)
        if not pays(now.best_s, more.best_s):
            gain = max(0.0, now.best_s - more.best_s)
            limit = f'one more would gain {gain:.2g} s' if gain else 'one more would gain nothing'
            break
        if now.collectors == most:
            break
        now = more
    some = 'one collector' if now.collectors == 1 else f'{now.collectors} collectors'
    return now.collectors, f'with {some} a batch takes at best {now.best_s:.3g} s, bound by {now.bound_by}; {limit}'


def _threads(
        cores: int, costs: Mapping[int, BatchCosts] | None, async_eval: bool, given: Given, placement: str,
        collectors: int
) -> tuple[dict[str, int], str]:
    threads = default_threads(cores, collectors, placement)
    if set(threads) <= set(given.threads):
        return dict(given.threads), 'given'
    of = 'of one core' if cores == 1 else f'of {cores} cores'
    why = f'{of} each collector takes one and the learner the rest, at least one'
    if costs is not None:
        threads['learner'] = outlook(costs, collectors, cores, async_eval).learner_threads
        measured = ', '.join(f'{costs[count].learn:.3g} s with {count}' for count in sorted(costs))
        why = f'learning a batch takes {measured}; {why}'
    return {**threads, **given.threads}, why
