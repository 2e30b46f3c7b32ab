"""Learners in lockstep pause at the same iteration, whichever receives the request first."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from supervision import train_at
from toys import Drift

from runnel.config.run_config import RunConfig
from runnel.distributions import load
from runnel.execution.building import build
from runnel.launch.site import LocalSite, WorkerProcess


class SlowPauses:
    """A worker's process whose requests to pause are sent late."""

    def __init__(self, process: WorkerProcess):
        self._process = process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)

    @property
    def control(self) -> Any:
        return _SlowLine(self._process.control)


class _SlowLine:
    def __init__(self, line: Any):
        self._line = line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._line, name)

    def send(self, value: Mapping[str, Any]) -> None:
        if value["type"] == "pause":
            time.sleep(0.5)  # the first to be asked has paused, and the others have begun what they cannot finish
        self._line.send(value)


class SlowSite(LocalSite):
    @property
    def processes(self) -> Mapping[str, Any]:
        return {name: SlowPauses(process) for name, process in super().processes.items()}


def test_a_learner_for_each_group_pauses_with_the_others(tmp_path: Path) -> None:
    built = build(Drift(), "toys:Tag", load("environments")(actors=1), 2)
    run = train_at(SlowSite, built, tmp_path / "run", RunConfig(steps=2000, checkpoint_every_s=0.2))
    assert run.result["status"] == "finished"
    assert run.result["restarts"] == 0
    assert run.result["env_steps"] <= 2000
