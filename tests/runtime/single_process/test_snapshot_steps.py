"""The environment steps at which a program takes snapshots are those of the run, not those of its iterations."""

from __future__ import annotations

import math

import jax
import pytest
from toys import Corridor, Reinforce

import runnel
from runnel.runtime.programs.snapshots import SnapshotSchedule
from runnel.runtime.single_process.program import Program, make_program


def program(distribution: str, *periods: int) -> tuple[Program, int]:
    built = runnel.build(Reinforce(), Corridor(), distribution, envs=4)
    schedule = SnapshotSchedule(periods)
    made = make_program(built.plan, built.graph, built.environment, 3, snapshots=schedule)
    return made, built.graph.steps_per_iteration


def iterate(made: Program, count: int) -> None:
    while count:
        count -= made.run(count, 60.0, math.inf, lambda: False).iterations


@pytest.mark.parametrize("distribution", ["inline", "fused"])
def test_a_run_whose_iterations_were_of_other_sizes_is_evaluated_at_its_own_steps(distribution: str) -> None:
    """As after `central`, whose iterations are of a part of the environments."""
    before, per_iteration = program(distribution)
    iterate(before, 3)
    saved = jax.device_get(before.save())
    made, _ = program(distribution, 4 * per_iteration)
    made.load(saved, 6 * per_iteration)
    iterate(made, 4)
    assert [taken.env_steps for taken in made.snapshots()] == [8 * per_iteration]
