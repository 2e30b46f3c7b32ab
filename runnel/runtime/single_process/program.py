"""The interface of programs that a session drives, and the programs of plans of one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import numpy as np

from runnel.environment import Environment, HostEnvironment, JaxEnvironment, is_traceable, reports_return
from runnel.graph.nodes import Graph
from runnel.ops.episodes import Window
from runnel.planning.plan import Plan
from runnel.recording.events import ReportEvent, ignore_event
from runnel.runtime.programs import finite
from runnel.runtime.programs.carry import Carry, StateChange
from runnel.runtime.programs.loop import Loop
from runnel.runtime.programs.metric_window import MetricWindow
from runnel.runtime.programs.snapshots import NO_SNAPSHOTS, SnapshotSchedule, TakenSnapshot
from runnel.runtime.programs.totals import ProgressDelta
from runnel.runtime.single_process.compiled import CompiledProgram
from runnel.runtime.single_process.stepped import SteppedProgram
from runnel.runtime.usage import UsageReport
from runnel.types import Array, PyTree


class Program(Protocol):
    """A plan that runs, in this process or in workers."""

    @property
    def carry(self) -> Carry | None:
        """The state of training; that of the last checkpoint if it is in other processes."""
        ...

    def learnt(self) -> tuple[dict[str, PyTree], dict[str, Any]] | None:
        """The learners' states and their numbers of updates, by group."""
        ...

    @property
    def steps(self) -> int:
        """Steps that host environments have taken in this process; another thread reads it, to detect hangs."""
        ...

    @property
    def metric_window(self) -> MetricWindow:
        """Metrics of the environment over the newest episodes; checkpoints store them among their counters."""
        ...

    def run(self, iterations: int, seconds: float, target: float, stop: Callable[[], bool]) -> ProgressDelta:
        """Trains for at most `iterations` iterations, about `seconds` seconds, or until the target return is
        reached."""
        ...

    def measure(self) -> None:
        """Resets `report`, after the start and the compilation."""
        ...

    def report(self, recent: bool = False) -> UsageReport:
        """The usage of workers and streams since `measure`; `recent`: over the last seconds, if that is measured."""
        ...

    def save(self) -> dict[str, PyTree]: ...

    def begin_from(self, states: Mapping[str, PyTree]) -> None:
        """Sets the initial states by group, before the first `run`."""
        ...

    def exchange(self, change: StateChange) -> tuple[ProgressDelta | None, int]:
        """Replaces the learners' states by those that `change` returns, between two iterations.

        Returns workers' progress since `run`, if any, and the number of truncated episodes.
        """
        ...

    def load(self, saved: dict[str, PyTree] | None, env_steps: int) -> int:
        """Continues from the result of `save`; returns how many episodes could not be replayed and were truncated.

        None: from the beginning. Only programs that can lose their state before the first `save` support that.
        """
        ...

    def snapshots(self, wait: bool = False) -> list[TakenSnapshot]:
        """The snapshots that have been fetched since the last call, oldest first. Programs of one process return from
        `run` where one is taken; with `wait`, they fetch all that were."""
        ...

    def ask_for_snapshot(self) -> None:
        """Requests a snapshot as soon as possible; `snapshots` then returns it with the mark `ASKED`."""
        ...

    def listen(self, seconds: float) -> None:
        """Waits for messages of workers, without letting them train further than they were asked to."""
        ...

    def rest(self) -> ProgressDelta | None:
        """The progress between the return of `run` and the pause for `save`."""
        ...

    def hurry(self) -> None:
        """Shortens the waits of `save` for workers to half a minute, because the user waits."""
        ...

    def close(self) -> None: ...


def make_program(
    plan: Plan, graph: Graph, environment: Environment, seed: int, report_event: ReportEvent = ignore_event,
    snapshots: SnapshotSchedule = NO_SNAPSHOTS,
) -> Program:  # fmt: skip
    """The program of a plan of one worker; `report_event` receives its failures."""
    fragment = plan.fragments[0]
    if isinstance(environment, JaxEnvironment):
        loop = Loop(graph, environment)
        if fragment.compiled:
            by_name = {f"{device.platform}:{device.id}": device for device in jax.devices()}
            devices = [by_name[name] for name in fragment.devices[0]]
            return CompiledProgram(loop, devices, seed, fragment.name, snapshots)
        return SteppedProgram(loop, None, seed, fragment.name, snapshots=snapshots)
    assert isinstance(environment, HostEnvironment)
    vector = environment.open(range(graph.envs), seed)
    scored = reports_return(environment)
    return SteppedProgram(Loop(graph), vector, seed, fragment.name, report_event, scored, snapshots)


def carry_types(graph: Graph, environment: Environment) -> Carry:
    """The types of a run's whole carry."""
    traced = environment if isinstance(environment, JaxEnvironment) and is_traceable(environment) else None
    return jax.eval_shape(Loop(graph, traced).init, jax.ShapeDtypeStruct((), jax.numpy.uint32))


def unsound_states(graph: Graph, states: dict[str, PyTree], seed: int) -> str | None:
    """The reason why states are invalid: they have values that are not finite where a fresh state's are. None if
    valid."""
    loop, first = Loop(graph), jax.numpy.uint32(seed)
    name = finite.entered(states, lambda: {group: loop.init_state(first, group) for group in states})
    return f"{name} of the learner's state is not finite" if name else None


def unsound(graph: Graph, carry: Carry, seed: int) -> str | None:
    """The reason why counters and states are invalid. Values from environments may be infinite."""
    window = carry.window
    if isinstance(window, Window):
        played = {group: _of_those_played(graph, group, ring) for group, ring in window.returns.items()}
        window = window._replace(returns=played)
    counts = {"iteration": carry.iteration, "updates": carry.updates, "episodes": (window, carry.running)}
    for name, counted in counts.items():
        for leaf in map(np.asarray, jax.tree.leaves(counted)):
            if (leaf < 0).any() if leaf.dtype.kind == "i" else not np.isfinite(leaf).all():
                return f"{name} has a number that no run counts"
    return unsound_states(graph, carry.states, seed)


def _of_those_played(graph: Graph, group: str, ring: Array) -> np.ndarray:
    """[WINDOW] the newest returns of a group, without those of episodes in which it did not play."""
    found = np.asarray(ring)
    return found if all(graph.spec.groups[group].plays) else found[~np.isnan(found)]
