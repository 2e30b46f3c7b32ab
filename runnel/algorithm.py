"""The `Algorithm` protocol: a few pure functions and a short training loop.

An algorithm is a frozen dataclass of hyper-parameters. Runnel traces its `loop` into a dataflow graph, and
this is what then happens, in one process or in a thousand:

    state = algorithm.init(key, spec)
    while True:
        for each step of an unroll, for each column:
            act = algorithm.act(state.params, observation, memory, key, explore=True)
        state, out = algorithm.learn(state, trajectory, key)
"""

from __future__ import annotations

import abc
import inspect
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from runnel.types import Act, AgentSpec, Array, Box, Discrete, Leaf, MultiDiscrete, PyTree

if TYPE_CHECKING:
    from runnel.graph.flow import Flow


class HasParams(Protocol):
    """A learner's state: any pytree whose `params` are all that acting needs."""

    @property
    def params(self) -> PyTree: ...


class Algorithm(abc.ABC):
    """Base of all algorithms. Subclasses are frozen dataclasses and hold nothing but hyper-parameters."""

    actions: ClassVar[tuple[type[Leaf], ...]] = (Discrete, MultiDiscrete, Box)
    """The kinds of action space it can act in."""

    max_staleness: ClassVar[int] = 0
    """How many versions old a sample may be under an asynchronous distribution; a property, if a setting decides."""

    central: ClassVar[bool] = False
    """Whether learning looks at the whole environment's state: observations then carry it (`runnel.observations`)."""

    @abc.abstractmethod
    def init(self, key: Array, spec: AgentSpec) -> Any:
        """The learner's first state: a pytree with a field `params`."""

    @abc.abstractmethod
    def act(self, params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: bool) -> Act:
        """One agent's action on one observation; Runnel batches it. `explore` is False in evaluation.

        An `act` that also names a parameter `index` is given the column's index.
        """

    @abc.abstractmethod
    def loop(self, flow: Flow) -> None:
        """One iteration of training, said once, as calls on `flow`."""

    def initial_memory(self, spec: AgentSpec) -> PyTree:
        """One agent's memory at the start of an episode; a recurrent algorithm overrides this."""
        del spec
        return ()

    def learn(self, state: Any, batch: PyTree, key: Array, /) -> tuple[Any, PyTree]:
        """One update: the new state, and `out`, whose scalars are metrics.

        An algorithm whose update is a gradient step leaves this and gives `gradient` and `apply`.
        """
        grads, out = self.gradient(state, batch, key)
        return self.apply(state, grads), out

    def gradient(self, state: Any, batch: PyTree, key: Array, /) -> tuple[PyTree, PyTree]:
        """The gradient of one update, and `out`."""
        raise NotImplementedError

    def apply(self, state: Any, grads: PyTree, /) -> Any:
        """The state after taking the step that `grads` asks for."""
        raise NotImplementedError


def has_gradient(algorithm: Algorithm) -> bool:
    """Whether the algorithm's update is a gradient step that can be cut in two."""
    cls = type(algorithm)
    return cls.gradient is not Algorithm.gradient and cls.apply is not Algorithm.apply


def asks_for(function: Any, name: str) -> bool:
    """Whether a user's function names a parameter, and so wants to be given it."""
    return name in inspect.signature(function).parameters


def act_one(
    act: Any, params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: bool, index: Array
) -> Act:
    """Calls an `act`, with the column's index where it asks for one."""
    if asks_for(act, "index"):
        return act(params, observation, memory, key, explore, index=index)
    return act(params, observation, memory, key, explore)
