"""Learners that are one program wait for the one that compiles longest, however long that takes."""

from pathlib import Path

import pytest

import runnel
from runnel.distributions.replicated import Replicated
from runnel.recording.events import read_events

UNEVEN = """
import time
from dataclasses import dataclass

import jax

from runnel.algorithms.a2c import A2C


@dataclass(frozen=True)
class Uneven(A2C):
    # Only learners of one program have a process index: neither the command nor its fork server waits.
    def act(self, *args, **kwargs):
        if jax.process_index() == 1:
            time.sleep(35)  # longer than gloo waits for a learner to connect
        return super().act(*args, **kwargs)
"""


@pytest.mark.slow
def test_a_learner_that_compiles_for_long_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "uneven.py").write_text(UNEVEN)
    run = runnel.train(
        f"{tmp_path / 'uneven.py'}:Uneven", "CartPole-v1", Replicated(2), envs=4, steps=64, quiet=True,
        run_dir=tmp_path / "run", settings={"unroll": 8, "hidden": (8,)},
    )  # fmt: skip
    assert run.result["status"] == "finished"
    assert run.result["restarts"] == 0, read_events(tmp_path / "run")
