"""A group of agents for which a user's function acts, and which does not learn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from runnel.algorithm import Algorithm
from runnel.types import OMISSIBLE, Act, AgentSpec, Array, PyTree, Trajectory

if TYPE_CHECKING:
    from runnel.graph.flow import Flow


class ScriptedState(NamedTuple):
    """Nothing is learnt."""

    params: tuple[()] = ()


@dataclass(frozen=True)
class Scripted(Algorithm):
    """Acts by `function(observation, key) -> action`: traceable by JAX, of one observation."""

    function: Callable[[PyTree, Array], Any]
    unroll: int = 128
    """Steps of an unroll, where no other group has one: all groups of an environment have the same."""

    learns: ClassVar[bool] = False

    @property
    def max_staleness(self) -> int:  # type: ignore[override]
        """The function does not depend on learning, so samples are never too old."""
        return 1 << 20

    def init(self, key: Array, spec: AgentSpec) -> ScriptedState:
        return ScriptedState()

    def act(self, params: PyTree, observation: PyTree, memory: PyTree, key: Array, explore: bool) -> Act:
        return Act(self.function(observation, key))

    def learn(self, state: ScriptedState, trajectory: Trajectory, key: Array) -> tuple[ScriptedState, dict[str, Array]]:
        return state, {}

    def loop(self, flow: Flow) -> None:
        flow.learn(self.learn, flow.rollout(self.act, steps=flow.unroll or self.unroll, omits=OMISSIBLE))
