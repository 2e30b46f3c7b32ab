"""From a plan to the program that runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import jax

from runnel.environment import Environment, HostEnvironment, JaxEnvironment
from runnel.errors import UserError
from runnel.graph import Graph
from runnel.plan import Plan, plural
from runnel.runtime.compiled import CompiledProgram
from runnel.runtime.loop import Carry, Loop
from runnel.runtime.stepped import SteppedProgram
from runnel.runtime.totals import Progress
from runnel.types import PyTree


class Program(Protocol):
    """A plan at work."""

    carry: Carry

    def run(self, iterations: int, seconds: float, target: float, stop: Callable[[], bool]) -> Progress:
        """Trains for at most so many iterations, about so many seconds, or until the target return is reached."""
        ...

    def phases(self) -> dict[str, float]:
        """Seconds spent so far in each phase of an iteration, as far as they can be told apart."""
        ...

    def save(self) -> dict[str, PyTree]: ...

    def load(self, saved: dict[str, PyTree]) -> int:
        """Goes on from what `save` gave; says how many episodes could not be replayed and were cut."""
        ...

    def close(self) -> None: ...


def check_runnable(plan: Plan) -> None:
    """Refuses a plan that this version can make but not run."""
    if plan.workers > 1:
        raise UserError(
            f"distribution {plan.distribution} needs {plural(plan.workers, 'worker')} in processes of their own, which "
            "this version can plan but not yet run; train with inline or fused"
        )


def make_program(plan: Plan, graph: Graph, environment: Environment, seed: int) -> Program:
    """The program of a plan of one worker."""
    check_runnable(plan)
    fragment = plan.fragments[0]
    if isinstance(environment, JaxEnvironment):
        loop = Loop(graph, environment)
        if fragment.compiled:
            by_name = {f"{device.platform}:{device.id}": device for device in jax.devices()}
            return CompiledProgram(loop, [by_name[name] for name in fragment.devices[0]], seed)
        return SteppedProgram(loop, None, seed)
    assert isinstance(environment, HostEnvironment)
    return SteppedProgram(Loop(graph), environment.open(range(graph.envs), seed), seed)
