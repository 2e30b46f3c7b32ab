"""The loop that every worker runs: `boundary(); turn()`, until the supervisor stops it. NumPy only.

| worker | one turn |
|---|---|
| `Actor` | one unroll of its environments; has policies |
| `EnvWorker` | one unroll of host environments whose policies are elsewhere; never imports JAX |
| `InferenceWorker` | actions for one unroll of environments elsewhere, or for the requests that have arrived |
| `TrainerWorker` | one iteration of the nodes after the rollout, with states that are learnt elsewhere |
| `Learner` | one iteration of the nodes after the rollout, which change a learner's state |

`runnel.runtime.workers.worker` picks one by the nodes of a worker's fragment. None of them knows a distribution.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from runnel.runtime.workers.ports import WorkerContext, WorkerHooks


class Worker(WorkerHooks, ABC):
    """One worker. `WorkerHooks` has the methods that its context calls."""

    def compile(self) -> None:
        """Called once, before the first turn: compiles programs that other workers would otherwise wait for."""

    @abstractmethod
    def boundary(self) -> None:
        """Listens to the supervisor between two turns, and pauses where that asks for it."""

    @abstractmethod
    def turn(self) -> None:
        """The work between two boundaries."""


def run(context: WorkerContext, worker: Worker, *, compiles: bool = True) -> None:
    """Runs a worker until the supervisor stops it. With `compiles`, the first turn counts as compiling, not as work."""
    context.worker = worker
    context.enter("compiling" if compiles else "working")
    worker.compile()
    if compiles:
        worker.boundary()
        worker.turn()
        context.enter("working")
        context.restart()
    while True:
        worker.boundary()
        worker.turn()


def listen(context: WorkerContext, between: bool, before_pause: Callable[[], None] = lambda: None) -> None:
    """A boundary of workers other than learners.

    `between`: the state is that between two unrolls, so it may pause, unless it is to catch up first.
    """
    context.poll()
    context.between = between
    if between and context.pausing and not context.too_early():
        before_pause()
        context.pause()
