"""From a plan to the program that runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import jax
import numpy as np

from runnel.environment import Environment, HostEnvironment, JaxEnvironment, is_traceable
from runnel.graph.nodes import Graph
from runnel.planning.plan import Plan
from runnel.recording.events import Tell, nobody
from runnel.runtime.programs import finite
from runnel.runtime.programs.carry import Carry
from runnel.runtime.programs.loop import Loop
from runnel.runtime.programs.totals import Progress
from runnel.runtime.single_process.compiled import CompiledProgram
from runnel.runtime.single_process.stepped import SteppedProgram
from runnel.runtime.usage import UsageReport
from runnel.types import PyTree


class Program(Protocol):
    """A plan at work."""

    @property
    def carry(self) -> Carry | None:
        """Everything that training carries on, where it is here: of workers elsewhere, as it was last saved."""
        ...

    @property
    def steps(self) -> int:
        """Steps that host environments have taken in this process; read by another thread, to see whether they hang."""
        ...

    def run(self, iterations: int, seconds: float, target: float, stop: Callable[[], bool]) -> Progress:
        """Trains for at most so many iterations, about so many seconds, or until the target return is reached."""
        ...

    def measure(self) -> None:
        """From here on `report` counts: what came before was starting and compiling."""
        ...

    def report(self, recent: bool = False) -> UsageReport:
        """How workers and streams fared since `measure`; `recent`: over the last seconds, where that can be told."""
        ...

    def save(self) -> dict[str, PyTree]: ...

    def load(self, saved: dict[str, PyTree] | None, env_steps: int) -> int:
        """Goes on from what `save` gave; says how many episodes could not be replayed and were cut.

        Nothing: from the beginning. Only programs that can lose their state before it was ever saved need know that.
        """
        ...

    def rest(self) -> Progress | None:
        """What was done and told since `run` came back, once `save` has brought everybody to a stop."""
        ...

    def hurry(self) -> None:
        """The user waits: from here on, `save` waits for workers half a minute and no longer."""
        ...

    def close(self) -> None: ...


def make_program(plan: Plan, graph: Graph, environment: Environment, seed: int, tell: Tell = nobody) -> Program:
    """The program of a plan of one worker; `tell` hears of what breaks in it."""
    fragment = plan.fragments[0]
    if isinstance(environment, JaxEnvironment):
        loop = Loop(graph, environment)
        if fragment.compiled:
            by_name = {f"{device.platform}:{device.id}": device for device in jax.devices()}
            return CompiledProgram(loop, [by_name[name] for name in fragment.devices[0]], seed, fragment.name)
        return SteppedProgram(loop, None, seed, fragment.name)
    assert isinstance(environment, HostEnvironment)
    return SteppedProgram(Loop(graph), environment.open(range(graph.envs), seed), seed, fragment.name, tell)


def carry_types(graph: Graph, environment: Environment) -> Carry:
    """The types of everything that a run carries on."""
    traced = environment if isinstance(environment, JaxEnvironment) and is_traceable(environment) else None
    return jax.eval_shape(Loop(graph, traced).init, jax.ShapeDtypeStruct((), jax.numpy.uint32))


def unsound_states(graph: Graph, states: dict[str, PyTree], seed: int) -> str | None:
    """What no training leaves in learners' states: numbers that are not finite where those of a fresh one are."""
    loop, first = Loop(graph), jax.numpy.uint32(seed)
    name = finite.entered(states, lambda: {group: loop.init_state(first, group) for group in states})
    return f"{name} of the learner's state is not finite" if name else None


def unsound(graph: Graph, carry: Carry, seed: int) -> str | None:
    """The same of everything that is counted and learnt. What environments say, and what follows, may be infinite."""
    counts = {"iteration": carry.iteration, "updates": carry.updates, "episodes": (carry.window, carry.running)}
    for name, counted in counts.items():
        for leaf in map(np.asarray, jax.tree.leaves(counted)):
            if (leaf < 0).any() if leaf.dtype.kind == "i" else not np.isfinite(leaf).all():
                return f"{name} has a number that no run counts"
    return unsound_states(graph, carry.states, seed)
