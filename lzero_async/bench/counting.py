"""What a run is credited with. Arithmetic only, the same for serial and for asynchronous runs."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Collect:
    """One collect whose batch was taken by the learner. Moments are Unix seconds."""
    env_steps: int  # steps taken
    began_at: float  # when the collect began
    ended_at: float  # when it ended
    warmup: bool  # its batch paid for no updates, as data were insufficient


@dataclass(frozen=True)
class Update:
    """One update. Moments are Unix seconds."""
    began_at: float  # when it began
    ended_at: float  # when it ended


def fraction_within(collect: Collect, began_at: float, ended_at: float) -> float:
    """The part of a collect's time that lies between two moments."""
    whole = collect.ended_at - collect.began_at
    if whole <= 0:
        return float(began_at <= collect.ended_at <= ended_at)
    return max(0.0, min(collect.ended_at, ended_at) - max(collect.began_at, began_at)) / whole


def steps_within(collects: Sequence[Collect], began_at: float, ended_at: float) -> float:
    """Env steps taken between two moments; a collect is taken to go at an even pace."""
    return sum(collect.env_steps * fraction_within(collect, began_at, ended_at) for collect in collects)


def credited(collects: Sequence[Collect], updates: Sequence[Update]) -> dict[str, float]:
    """
    Overview:
        The speeds of one run. The clock goes from the begin of the first update to the end of the last one. Env steps
        count where they were taken while it went, so that what was collected before the first update helps nobody.
    Arguments:
        - collects (:obj:`Sequence[Collect]`): Of all batches that the learner took.
        - updates (:obj:`Sequence[Update]`): All updates, in order; at least one.
    Returns:
        - speeds (:obj:`dict[str, float]`): Env steps and updates on the clock, their speeds, updates per env step.
    """
    began_at, ended_at = updates[0].began_at, updates[-1].ended_at
    clock_s = ended_at - began_at
    env_steps = steps_within(collects, began_at, ended_at)
    trained = sum(collect.env_steps for collect in collects if not collect.warmup)
    return {
        'clock_s': clock_s,
        'env_steps': env_steps,
        'updates': len(updates),
        'env_steps_per_s': env_steps / clock_s,
        'updates_per_s': len(updates) / clock_s,
        # Of whole batches, on the clock or not: a batch pays for its own updates.
        'updates_per_env_step': len(updates) / trained,
    }
