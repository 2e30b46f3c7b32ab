"""The cost of evaluations in the run's clock."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from runnel.execution.run_stats import RunStats
from runnel.execution.session.evaluation import SessionEvaluation

EVALUATION_S = 0.2


class Policies:
    """A recorder in which each evaluation takes a while."""

    reached = False

    def __init__(self, evaluates_here: bool):
        self.evaluates_here = evaluates_here

    def poll(self) -> list[Any]:
        time.sleep(EVALUATION_S)
        return []

    wait = poll

    def evaluation_due(self, env_steps: int) -> bool:
        return False


@pytest.mark.parametrize(
    ("workers", "evaluates_here", "eval_wait", "excluded"),
    [(1, True, False, True), (1, False, False, False), (3, True, False, False), (3, False, False, False),
     (3, False, True, True), (3, True, True, True)],
    ids=["alone", "alone with evaluation workers", "workers train on", "workers train on beside evaluation workers",
         "waiting for evaluation workers", "waiting"],
)  # fmt: skip
def test_only_evaluations_that_training_waits_for_are_left_out_of_its_speed(
    workers: int, evaluates_here: bool, eval_wait: bool, excluded: bool
) -> None:
    stats = RunStats(time.monotonic())
    state: Any = SimpleNamespace(
        policies=Policies(evaluates_here), run_config=SimpleNamespace(eval_wait=eval_wait), stats=stats,
        built=SimpleNamespace(plan=SimpleNamespace(workers=workers)), counters=SimpleNamespace(env_steps=0),
    )  # fmt: skip
    program: Any = SimpleNamespace(snapshots=lambda wait: [])
    stats.rate.start(0)
    began = time.monotonic()
    SessionEvaluation(state).hand_over(program, view=None)  # type: ignore[arg-type]
    took_s = time.monotonic() - began
    stats.rate.stop(1000)
    speed = stats.rate.overall()
    assert speed is not None
    assert (speed > 2 * 1000 / took_s) == excluded
