"""The environment steps at which a program takes snapshots are those of the run, not those of its iterations."""

from __future__ import annotations

import math
import threading

import jax
import numpy as np
import pytest
from toys import Corridor, Reinforce

import runnel
from runnel.recording.parameters import as_numpy
from runnel.runtime.programs import snapshots
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
    assert [taken.env_steps for taken in made.snapshots(wait=True)] == [8 * per_iteration]


@pytest.mark.parametrize("distribution", ["inline", "fused"])
def test_training_goes_on_while_a_snapshot_is_fetched(distribution: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fetching, go_on = threading.Event(), threading.Event()

    def slow(leaf: jax.Array) -> np.ndarray:
        fetching.set()
        assert go_on.wait(60)
        return as_numpy(leaf)

    made, per_iteration = program(distribution, 64)
    iterate(made, 2)
    whole = made.snapshots(wait=True)
    monkeypatch.setattr(snapshots, "as_numpy", slow)
    again, _ = program(distribution, 64)
    iterate(again, 2)
    assert fetching.wait(60)
    iterate(again, 3)  # the states that were copied are overwritten
    assert again.snapshots() == []
    go_on.set()
    found = again.snapshots(wait=True)
    assert [taken.mark for taken in found] == list(range(0, 5 * per_iteration + 1, 64))
    for one, other in zip(whole, found, strict=False):
        assert (one.mark, one.env_steps, one.versions) == (other.mark, other.env_steps, other.versions)
        for name, array in one.arrays["agent"].items():
            np.testing.assert_array_equal(other.arrays["agent"][name], array, err_msg=name)
    assert again.snapshots(wait=True) == []
