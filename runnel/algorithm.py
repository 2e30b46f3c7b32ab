"""The `Algorithm` protocol: a few pure functions and a short training loop.

An algorithm is a frozen dataclass of hyper-parameters. Runnel traces its `loop` into a dataflow graph, which then
computes the following, in one process or in a thousand:

    state = algorithm.init(key, spec)
    while True:
        for each step of an unroll, for each column:
            act = algorithm.act(state.params, observation, memory, key, explore=True)
        state, out = algorithm.learn(state, trajectory, key)
"""

from __future__ import annotations

import abc
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from runnel.errors import UserError, nearest
from runnel.types import Act, AgentSpec, Array, Box, Discrete, Leaf, MultiDiscrete, PyTree

if TYPE_CHECKING:
    from runnel.graph.flow import Flow


class HasParams(Protocol):
    """A learner's state: any pytree whose `params` are all that `act` needs."""

    @property
    def params(self) -> PyTree: ...


class Algorithm(abc.ABC):
    """Base of all algorithms. Subclasses are frozen dataclasses with hyper-parameters only."""

    actions: ClassVar[tuple[type[Leaf], ...]] = (Discrete, MultiDiscrete, Box)
    """The kinds of action space it can act in."""

    max_staleness: ClassVar[int] = 0
    """The largest staleness of samples, in versions, under an asynchronous distribution; a property, if a setting
    decides."""

    reuses: int = 1
    """The largest number of updates from one unroll under an asynchronous distribution. An unroll is reused while it is
    not older than `max_staleness` and no newer one has arrived. A field, where the user decides."""

    learns: ClassVar[bool] = True
    """Whether its groups learn; returns of groups that do not are left out of the run's return."""

    central: ClassVar[bool] = False
    """Whether learning uses the whole environment's state: observations then carry it (`runnel.observations`)."""

    @abc.abstractmethod
    def init(self, key: Array, spec: AgentSpec) -> Any:
        """The learner's first state: a pytree with a field `params`.

        An `init` with a parameter `group` receives the name of the group whose state it makes.
        """

    @abc.abstractmethod
    def act(self, params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: bool) -> Act:
        """One agent's action on one observation; Runnel batches it. `explore` is False in evaluation.

        An `act` with a parameter `index` receives the column's index; one with a parameter `environment_key` receives a
        key that all agents of its group in the same environment share.
        """

    @abc.abstractmethod
    def loop(self, flow: Flow) -> None:
        """Describes one iteration of training as calls on `flow`; the graph is traced from them."""

    def initial_memory(self, spec: AgentSpec) -> PyTree:
        """One agent's memory at the start of an episode; a recurrent algorithm overrides this."""
        del spec
        return ()

    def for_group(self, group: str) -> Algorithm:
        """The algorithm of one group of agents: this one, unless groups have different ones (`PerGroup`)."""
        del group
        return self

    def for_staleness(self, staleness: int) -> Algorithm:
        """Returns this algorithm with the settings that depend on the staleness of samples filled in.

        Called once, before a run starts. `staleness` is the plan's bound in versions, at most `max_staleness`; it is 0
        where actors wait for the learner. The result is what runs and what is stored. An algorithm without such
        settings returns itself.
        """
        del staleness
        return self

    def learn(self, state: Any, batch: PyTree, key: Array, /) -> tuple[Any, PyTree]:
        """One update: the new state, and `out`, whose scalars are metrics.

        An algorithm whose update is a gradient step defines `gradient` and `apply` instead.
        """
        grads, out = self.gradient(state, batch, key)
        return self.apply(state, grads), out

    def gradient(self, state: Any, batch: PyTree, key: Array, /) -> tuple[PyTree, PyTree]:
        """The gradient of one update, and `out`."""
        raise NotImplementedError

    def apply(self, state: Any, grads: PyTree, /) -> Any:
        """The state after a step along `grads`."""
        raise NotImplementedError


@dataclass(frozen=True)
class PerGroup(Algorithm):
    """A different algorithm for each group of agents: `PerGroup({"prey": PPO(), "predator": DQN()})`.

    Groups step together, so the unrolls of all algorithms have the same number of steps.
    """

    algorithms: Mapping[str, Algorithm]

    def for_group(self, group: str) -> Algorithm:
        if group not in self.algorithms:
            raise UserError(f"group '{group}' has no algorithm; found {', '.join(self.algorithms) or 'none'}")
        return self.algorithms[group]

    @property
    def max_staleness(self) -> int:  # type: ignore[override]
        """The staleness of the most tolerant group; a plan bounds each group by its own algorithm's."""
        return max(algorithm.max_staleness for algorithm in self.algorithms.values())

    @property
    def central(self) -> bool:  # type: ignore[override]
        return any(algorithm.central for algorithm in self.algorithms.values())

    def loop(self, flow: Flow) -> None:
        for group in self.algorithms:
            if group not in flow.groups:
                raise UserError(f"the environment has no group '{group}'{nearest(group, flow.groups)}")
        # Those that learn say how long an unroll is.
        for group in sorted(flow.groups, key=lambda group: not self.for_group(group).learns):
            self.for_group(group).loop(flow.agents(group))

    def init(self, key: Array, spec: AgentSpec) -> Any:
        raise TypeError("PerGroup has no policy of its own; take the algorithm of a group by `for_group`")

    def act(self, params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: bool) -> Act:
        raise TypeError("PerGroup has no policy of its own; take the algorithm of a group by `for_group`")


def algorithm_name(algorithm: Algorithm) -> str:
    """The display name of an algorithm: its class, or `group=class` for each group."""
    if isinstance(algorithm, PerGroup):
        return ",".join(f"{group}={algorithm_name(each)}" for group, each in algorithm.algorithms.items())
    return type(algorithm).__name__


def has_gradient(algorithm: Algorithm) -> bool:
    """Whether the algorithm's update is a gradient step, which `gradient` and `apply` divide."""
    cls = type(algorithm)
    return cls.gradient is not Algorithm.gradient and cls.apply is not Algorithm.apply


def asks_for(function: Any, name: str) -> bool:
    """Whether a user's function has a parameter of this name, and so receives it."""
    return name in inspect.signature(function).parameters


def first_state(algorithm: Algorithm, key: Array, spec: AgentSpec, group: str) -> Any:
    """Calls `init`, with the group's name if it names a parameter `group`."""
    named = {"group": group} if asks_for(algorithm.init, "group") else {}
    return algorithm.init(key, spec, **named)


def act_one(
    act: Any, params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: bool, index: Array,
    environment_key: Array | None = None,
) -> Act:  # fmt: skip
    """Calls an `act` with the optional arguments that it names. `environment_key`: `key` if there is one agent."""
    given = {"index": index, "environment_key": key if environment_key is None else environment_key}
    named = {name: value for name, value in given.items() if asks_for(act, name)}
    return act(params, observation, memory, key, explore, **named)
