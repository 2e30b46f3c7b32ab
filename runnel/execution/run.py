"""A finished run: the return value of `train` and `resume`, also for a run directory whose run is finished."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runnel.config import serialization
from runnel.config.run_config import RunConfig
from runnel.errors import UserError
from runnel.execution.building import BuiltRun, read_config
from runnel.execution.run_stats import RunCounters
from runnel.recording import member_checkpoints
from runnel.recording.checkpoint import Checkpoints
from runnel.recording.files import read_json
from runnel.runtime.single_process.program import unsound_states
from runnel.types import PyTree


@dataclass(frozen=True, repr=False)
class Run:
    """A run that has ended."""

    result: dict[str, Any]  # as in result.json
    run_dir: Path
    states: dict[str, PyTree]  # by group: the learner's state
    built: BuiltRun | None = None  # its algorithm, environment, distribution and plan

    @property
    def params(self) -> PyTree:
        """The parameters of the only group."""
        if not self.states:
            raise UserError(
                f"{self.run_dir} has no parameters: it was stopped before its first checkpoint; train again"
            )
        if len(self.states) > 1:
            groups = ", ".join(self.states)
            raise UserError(f"{self.run_dir} has {len(self.states)} groups ({groups}); use run.states[group].params")
        (state,) = self.states.values()
        return state.params

    def __repr__(self) -> str:
        names = ("status", "algorithm", "environment", "distribution", "seed", "env_steps", "mean_return")
        facts = [f"{name}={self.result[name]!r}" for name in names if name in self.result]
        return f"Run({', '.join([*facts, f'run_dir={str(self.run_dir)!r}'])})"


def of_run(run: str | Path | Run, algorithm: Any, environment: Any) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """A run's directory and configuration, and its algorithm and environment if they are given or only in a `Run`."""
    directory = run.run_dir if isinstance(run, Run) else Path(run)
    member_checkpoints.take_out(directory)
    config, given = read_config(directory), {"algorithm": algorithm, "environment": environment}
    if isinstance(run, Run) and run.built is not None:
        for part, kept in (("algorithm", run.built.algorithm), ("environment", run.built.made_from)):
            if given[part] is None and serialization.reason(config[part]) is not None:
                given[part] = kept
    return directory, config, given


def finished(run_dir: Path, config: RunConfig, built: BuiltRun) -> Run | None:
    """The finished run, if it has reached everything that `config` asks for; None if something is left to train.

    Nothing is started and nothing is written.
    """
    result = read_result(run_dir)
    if result is None or not may_be_done(result, config):
        return None
    if not _reached(result, config) and result["env_steps"] >= config.steps + built.graph.steps_per_iteration:
        return None  # `config` asks for fewer steps than the run has taken, which is an error
    taken: list[Any] = []

    def refuse(states: PyTree, counters: dict[str, Any]) -> str | None:
        taken.append(counters.get("env_steps"))
        return unsound(built, config.seed, states, counters)

    states, _ = Checkpoints(run_dir).load_states(built.graph.states, lambda text: None, refuse)
    # If the last checkpoint is lost, training resumes from the one before it.
    return Run(result, run_dir, states, built) if taken[-1] == result["env_steps"] else None


def unsound(built: BuiltRun, seed: int, states: PyTree, counters: dict[str, Any]) -> str | None:
    """The reason to refuse a checkpoint's states and counters; None if they are valid."""
    return RunCounters.problem(counters) or unsound_states(built.graph, states, seed)


def may_be_done(result: Mapping[str, Any] | None, config: RunConfig) -> bool:
    """Whether a result is that of a finished run with at least the steps or the return that `config` asks for."""
    if result is None or result.get("status") != "finished" or type(result.get("env_steps")) is not int:
        return False
    return result["env_steps"] >= config.steps or _reached(result, config)


def _reached(result: Mapping[str, Any], config: RunConfig) -> bool:
    return is_reached(result, "mean_return", config.stop_at_return) or is_reached(
        result, "highest_eval_return", config.stop_at_eval_return
    )


def is_reached(result: Mapping[str, Any] | None, name: str, target: float | None) -> bool:
    """Whether the target return that ends a run was reached, according to a result."""
    found = (result or {}).get(name)
    return target is not None and isinstance(found, int | float) and found >= target


def read_result(run_dir: Path) -> dict[str, Any] | None:
    """A run directory's result.json; None if it cannot be read, or was not written by a run."""
    try:
        found = read_json(run_dir, "result.json")
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and all(_proper(name, value) for name, value in found.items()) else None


TEXT: Final = frozenset({"status", "algorithm", "environment", "distribution", "reason", "bottleneck"})
LISTS: Final = frozenset({"workers", "streams", "machines", "evaluation_workers"})
TABLES: Final = frozenset({"group_returns", "restart_reasons", "env"})
EVALUATIONS: Final = frozenset({"evaluation", "best"})


def _proper(name: str, value: Any) -> bool:
    """Whether a value in a result has the type that its name requires; unknown names are not checked."""
    if value is None or name == "network":
        return name not in ("status", "env_steps")
    if name in LISTS:
        return isinstance(value, list) and all(isinstance(each, dict) for each in value) and _usable(name, value)
    if name in EVALUATIONS:
        return isinstance(value, dict)
    if name in TABLES:
        return isinstance(value, dict) and all(type(each) in (int, float) for each in value.values())
    return isinstance(value, str) if name in TEXT else type(value) in (int, float)


def _usable(name: str, value: list[dict[str, Any]]) -> bool:
    busy = (int, float, type(None))
    return name != "workers" or all(
        isinstance(each.get("fragment", each.get("role")), str)  # older runs say role
        and type(each.get("busy")) in busy
        and isinstance(each.get("host", ""), str)
        for each in value
    )
