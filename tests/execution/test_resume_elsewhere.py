"""A run resumes under another distribution with its whole state: a checkpoint does not depend on the distribution."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import runnel
from runnel.distributions import load
from runnel.execution.building import rebuild
from runnel.recording.array_store import named_leaves
from runnel.recording.checkpoint import Checkpoints
from runnel.runtime.single_process.program import carry_types, make_program

SMALL = {"dqn": {"capacity": 4096, "min_size": 64, "batch": 32}, "impala": {}, "ppo": {}}


def small(algorithm: str) -> dict[str, Any]:
    from dataclasses import fields

    from runnel import algorithms

    known = {field.name for field in fields(algorithms.load(algorithm))}  # type: ignore[arg-type]
    return {name: value for name, value in SMALL[algorithm].items() if name in known}


def carried_over(run_dir: Path, distribution: Any) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A checkpoint's arrays, and those of a program of another distribution that was given it and asked for it back."""
    config = runnel.execution.building.read_config(run_dir)
    built = rebuild(run_dir, config, distribution)
    like = {"carry": carry_types(built.graph, built.environment)}
    saved, counters = Checkpoints(run_dir).load(like, print)
    with contextlib.ExitStack() as stack:
        if built.plan.workers == 1:
            program: Any = make_program(built.plan, built.graph, built.environment, config["seed"])
        else:
            from runnel.execution.supervision.distributed_program import DistributedProgram
            from runnel.execution.supervision.machine_pool import SingleMachine

            config["distribution"] = runnel.config.serialization.to_json(built.distribution)
            here = SingleMachine()
            program = DistributedProgram(built, config, run_dir, here.site(run_dir / "logs"), here.machines)
        stack.callback(program.close)
        program.load(saved, counters["env_steps"])
        again = program.save()
        return named_leaves(saved), named_leaves({"carry": jax.device_get(again["carry"]), "host": again["host"]})


@pytest.mark.parametrize(
    ("algorithm", "environment", "before", "after"),
    [
        ("impala", "CartPole-v1", load("async")(actors=4), load("coarse")(actors=2)),
        pytest.param(
            "impala", "gymnax:CartPole-v1", load("async")(actors=4), load("fused")(), marks=pytest.mark.slow
        ),
        pytest.param("dqn", "CartPole-v1", load("async")(actors=4), load("coarse")(actors=2), marks=pytest.mark.slow),
        pytest.param("dqn", "CartPole-v1", load("coarse")(actors=2), load("inline")(), marks=pytest.mark.slow),
        pytest.param("ppo", "Pendulum-v1", load("fine")(actors=2), load("coarse")(actors=4), marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_everything_is_carried_over(tmp_path: Path, algorithm: str, environment: str, before: Any, after: Any) -> None:
    run_dir = tmp_path / "run"
    run = runnel.train(
        algorithm, environment, before, envs=8, steps=4096, run_dir=run_dir, quiet=True, settings=small(algorithm)
    )
    wanted, found = carried_over(run_dir, after)
    assert wanted.keys() == found.keys()
    for name in wanted:
        np.testing.assert_array_equal(wanted[name], found[name], err_msg=name)
    went_on = runnel.resume(run_dir, steps=8192, distribution=after, quiet=True)
    assert went_on.result["status"] == "finished"
    assert went_on.result["updates"] > run.result["updates"]
    assert went_on.result["env_steps"] >= 8192
