"""The specification of a sweep, from what a user asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from runnel.config import search_space
from runnel.config.run_config import MOST_MEMBERS, MOST_SEED, RunConfig
from runnel.errors import UserError, nearest
from runnel.execution.members.training import chosen_seeds
from runnel.execution.sweeps.schedule import rungs as rungs_of
from runnel.recording.sweep_file import MOST_RUNGS, SAMPLERS, SweepSpec

TRIALS: Final = 32
BATCH: Final = 16
RUNGS: Final = 3
"""The number of rungs by default."""


def made_spec(
    cls: type, over: Mapping[str, Any] | Sequence[str], run: RunConfig, *, trials: int | None, sampler: str,
    batch: int | None, seeds: int | Sequence[int], halving: int | None, rungs: int | None, winner_seeds: int,
) -> SweepSpec:  # fmt: skip
    """A specification with every default filled in, so that sweep.json is complete."""
    space = search_space.parse(cls, over) if _is_text(over) else search_space.checked(cls, over)  # type: ignore[arg-type]
    if sampler not in SAMPLERS:
        raise UserError(f"sampler={sampler}: found '{sampler}'{nearest(str(sampler), SAMPLERS)}", keywords=("sampler",))
    trials = _trials(space, sampler, trials)
    chosen = chosen_seeds(seeds, run.seed)
    _check("seeds", trials * len(chosen), 1, MOST_MEMBERS, "members in all (trials times seeds)")
    if rungs is not None and halving is None:
        raise UserError(f"rungs={rungs}: found it without halving=, expected both", keywords=("rungs", "halving"))
    if halving is not None:
        _check("halving", halving, 2, MOST_MEMBERS)
    if batch is None:  # with halving, of a size that fills the rungs
        batch = min(BATCH, trials if halving is None else math.ceil(trials / halving ** (RUNGS - 1)))
    _check("batch", batch, 1, trials)
    _check("winner_seeds", winner_seeds, 0, MOST_MEMBERS)
    first = max(chosen) + 1
    if first + winner_seeds - 1 > MOST_SEED:
        raise UserError(
            f"winner_seeds={winner_seeds}: found no unseen seeds above {first - 1}, expected seeds below "
            f"{MOST_SEED + 1 - winner_seeds}",
            keywords=("winner_seeds",),
        )
    eta = halving or 2
    return SweepSpec(
        space, sampler, trials, batch, run.seed, tuple(chosen), tuple(range(first, first + winner_seeds)), eta,
        _rungs(run.steps, trials, batch, eta, rungs) if halving else (run.steps,),
    )  # fmt: skip


def _rungs(steps: int, trials: int, batch: int, eta: int, asked: int | None) -> tuple[int, ...]:
    """The steps of each rung. There are no more rungs than batches fill."""
    if asked is not None:
        _check("rungs", asked, 2, MOST_RUNGS)
    most, batches = 1, math.ceil(trials / batch)
    while batches > 1:
        most, batches = most + 1, math.ceil(batches / eta)
    if most < (asked or 2):
        raise UserError(
            f"batch={batch}: found {math.ceil(trials / batch)} batches, which are too few for {asked or 2} rungs with "
            f"halving={eta}; use more trials= or a smaller batch=",
            keywords=("batch", "halving", "trials"),
        )
    found = rungs_of(steps, eta, asked or min(most, RUNGS))
    if len(set(found)) < len(found):
        raise UserError(f"steps={steps}: found too few for {len(found)} rungs, expected more", keywords=("steps",))
    return found


def in_iterations(spec: SweepSpec, steps_per_iteration: set[int]) -> SweepSpec:
    """The specification with rungs of whole iterations, or as given if trials differ in the length of an iteration."""
    if len(steps_per_iteration) != 1:
        return spec
    (per,) = steps_per_iteration
    rungs = tuple(-(-steps // per) * per for steps in spec.rungs)
    if len(set(rungs)) < len(rungs):
        raise UserError(
            f"steps={spec.rungs[-1]}: found rungs of {', '.join(map(str, spec.rungs))} steps and iterations of {per}, "
            "expected each rung to have more iterations than the one before; use more steps=, fewer rungs= or envs=",
            keywords=("steps", "rungs"),
        )
    return replace(spec, rungs=rungs)


def _trials(space: search_space.Space, sampler: str, trials: int | None) -> int:
    if trials is not None:
        _check("trials", trials, 1, MOST_MEMBERS)
    if sampler != "grid":
        return TRIALS if trials is None else trials
    points = len(search_space.grid(space))
    if trials is not None and trials > points:
        raise UserError(f"trials={trials}: found a grid of {points}, expected as many or fewer", keywords=("trials",))
    return points if trials is None else trials


def _check(name: str, value: Any, low: int, high: int, what: str = "") -> None:
    if type(value) is not int or not low <= value <= high:
        expected = f"{low} to {high} {what}".strip()
        raise UserError(f"{name}={value!r}: found {value!r}, expected {expected}", keywords=(name,))


def _is_text(over: Any) -> bool:
    return isinstance(over, Sequence) and not isinstance(over, str) and all(isinstance(each, str) for each in over)
