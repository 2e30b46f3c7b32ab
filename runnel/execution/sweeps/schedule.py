"""Selects the trials that a sweep trains next, and their steps: successive halving in batches of one size, as a pure
function.

    step = next_step(schedule, recorded)
    step.batch, step.ended

Rung 0 has all trials, batch by batch. The best of `eta` batches of one rung form a batch of the next, which continues
their training: so each batch fills a program of the same size, and other trials take the places of those that stop. A
batch is trained as soon as the batches that it is selected from have ended.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

TrialOutcome = Literal["complete", "pruned", "failed"]


class HalvingSchedule(NamedTuple):
    """The number of trials, the batch size and the rungs. A schedule of one rung stops no trial."""

    trials: int
    batch: int
    rungs: tuple[int, ...]  # environment steps at the end of each
    eta: int = 3  # the best of this many batches are one batch of the next rung


class TrialRecord(NamedTuple):
    """The recorded results of a trial."""

    values: Mapping[int, float]  # by rung: the objective
    failed: bool = False  # at the first rung that has no value

    def done(self, rung: int) -> bool:
        return rung in self.values or self.failed


class TrialBatch(NamedTuple):
    """Trials that are trained together, up to the steps of a rung."""

    rung: int
    trials: tuple[int, ...]


class NextStep(NamedTuple):
    """The next step of a sweep, given its record."""

    batch: TrialBatch | None  # to be trained next; None at the end
    ended: dict[int, TrialOutcome]  # trials that have nothing left to train


def next_step(schedule: HalvingSchedule, recorded: Sequence[TrialRecord]) -> NextStep:
    """The first batch that is not done, in an order that depends only on the results."""
    chosen: dict[tuple[int, int], tuple[int, ...]] = {}
    ended: dict[int, TrialOutcome] = {}
    for rung, number in order(schedule):
        if rung == 0:
            trials = tuple(range(number * schedule.batch, min((number + 1) * schedule.batch, schedule.trials)))
        else:
            sources = [t for source in _sources(schedule, rung, number) for t in chosen[rung - 1, source]]
            trials = promoted(schedule, rung, sources, recorded)
            ended |= {t: "pruned" for t in sources if t not in trials and rung - 1 in recorded[t].values}
        chosen[rung, number] = trials
        if not all(t < len(recorded) and recorded[t].done(rung) for t in trials):
            return NextStep(TrialBatch(rung, trials), ended)
        ended |= {t: "failed" for t in trials if rung not in recorded[t].values}
        if rung == len(schedule.rungs) - 1:
            ended |= {t: "complete" for t in trials if rung in recorded[t].values}
    return NextStep(None, ended)


def promoted(
    schedule: HalvingSchedule, rung: int, sources: Sequence[int], recorded: Sequence[TrialRecord]
) -> tuple[int, ...]:  # fmt: skip
    """The best of the trials that have ended the rung below, in the order of their numbers; ties go to the first.

    A last, smaller group gets the same share.
    """
    places = min(schedule.batch, math.ceil(len(sources) / schedule.eta))
    sound = [t for t in sources if rung - 1 in recorded[t].values]
    best = sorted(sound, key=lambda t: (-recorded[t].values[rung - 1], t))
    return tuple(sorted(best[:places]))


def best(schedule: HalvingSchedule, recorded: Sequence[TrialRecord]) -> int | None:
    """The trial with the highest objective among those that were trained to the end; of equals, the first."""
    last = len(schedule.rungs) - 1
    whole = [t for t, each in enumerate(recorded) if last in each.values]
    return min(whole, key=lambda t: (-recorded[t].values[last], t), default=None)


def rungs(steps: int, eta: int, count: int) -> tuple[int, ...]:
    """The environment steps of `count` rungs, each `eta` times those of the one before; the last has all."""
    return tuple(max(1, math.ceil(steps / eta ** (count - 1 - k))) for k in range(count))


def order(schedule: HalvingSchedule) -> Iterator[tuple[int, int]]:
    """The batches as (rung, number), each after those that it is chosen from."""

    def up_to(rung: int, number: int) -> Iterator[tuple[int, int]]:
        for source in _sources(schedule, rung, number) if rung else ():
            yield from up_to(rung - 1, source)
        yield rung, number

    top = len(schedule.rungs) - 1
    for number in range(_batches(schedule, top)):
        yield from up_to(top, number)


def _batches(schedule: HalvingSchedule, rung: int) -> int:
    return math.ceil(math.ceil(schedule.trials / schedule.batch) / schedule.eta**rung)


def _sources(schedule: HalvingSchedule, rung: int, number: int) -> range:
    return range(number * schedule.eta, min((number + 1) * schedule.eta, _batches(schedule, rung - 1)))
