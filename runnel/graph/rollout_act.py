"""The function that a loop acts with, found without building the graph.

A stored policy knows one group's spaces, and neither the environment nor the other groups. So the loop is called with a
`Flow` that computes no types and takes any name of a group, and is left as soon as the group's rollout is known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from runnel.algorithm import Algorithm
from runnel.graph.flow import Flow, Value
from runnel.types import Act, AgentSpec


def rollout_act(algorithm: Algorithm, group: str, spec: AgentSpec) -> Callable[..., Act]:
    """What `algorithm.loop` passes to `flow.rollout` for a group; `algorithm.act` where that cannot be found out."""
    try:
        algorithm.loop(_SearchingFlow(_Search(group, spec), (group,)))
    except _Found as found:
        return found.function
    except Exception:  # the loop looks at what a stored policy does not know, such as another group's spaces
        return algorithm.act
    return algorithm.act


class _Found(BaseException):
    """Leaves the loop. No Exception, which the loop may catch."""

    def __init__(self, function: Callable[..., Act]):
        self.function = function


class _AnyValue(Value):
    """What a call returns: a value of every group, with every part."""

    node = ""

    def __getitem__(self, key: str | int) -> Value:
        return self

    def of(self, group: str) -> Value:
        return self

    def ref(self, group: str) -> Any:
        return self


class _Search:
    """In the place of a `Builder`."""

    def __init__(self, group: str, spec: AgentSpec):
        self.group, self.groups = group, defaultdict(lambda: spec)

    @property
    def spec(self) -> _Search:
        return self

    def rollout(self, group: str, act: Callable[..., Act], settings: Any) -> None:
        if group == self.group:
            raise _Found(act)

    def add(self, *given: Any) -> None:
        """Every other node."""

    map = learn = replay = priorities = played_columns = add


class _SearchingFlow(Flow):
    def __init__(self, search: Any, groups: tuple[str, ...]):
        super().__init__(search, groups)

    def agents(self, group: str) -> Flow:
        return _SearchingFlow(self._builder, (group,))

    def _each(self, add: Callable[[str], Any]) -> Value:
        for group in self.groups:
            add(group)
        return _AnyValue({})
