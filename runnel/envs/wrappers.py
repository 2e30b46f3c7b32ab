"""Base classes of wrappers, which forward everything that they do not change to the environment inside.

No JAX is imported here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from runnel.environment import (
    EpisodeMetrics,
    Failure,
    HostEnvironment,
    HostVector,
    JaxEnvironment,
    Lives,
    cut_with_others,
    ended_episodes,
    lives_of,
    reports_return,
)
from runnel.types import EnvSpec, PyTree


class HostWrapper:
    """A host environment around another."""

    def __init__(self, environment: HostEnvironment, spec: EnvSpec):
        self.environment, self.spec = environment, spec
        self.fixed_envs: int | None = getattr(environment, "fixed_envs", None)
        self.one_vector = bool(getattr(environment, "one_vector", False))
        self.reports_return = reports_return(environment)


class VectorWrapper:
    """A vector around another, which resets and recovers its environments as it does alone."""

    stateful = False

    def __init__(self, vector: HostVector):
        self._vector = vector

    @property
    def watch(self) -> Callable[[int], None] | None:
        return self._vector.watch

    @watch.setter
    def watch(self, watch: Callable[[int], None] | None) -> None:
        self._vector.watch = watch

    @property
    def lives(self) -> Lives | None:
        """The lives of the vector inside, if its environments continue after an episode has ended for learning."""
        return lives_of(self._vector)

    def episode_numbers(self) -> np.ndarray:
        return self._vector.episode_numbers()

    def condemn(self, row: int, episode: int, what: str) -> None:
        self._vector.condemn(row, episode, what)

    def failures(self) -> list[Failure]:
        return self._vector.failures()

    def episode_metrics(self) -> list[EpisodeMetrics]:
        return ended_episodes(self._vector)

    def cut_with_others(self) -> list[tuple[int, int]]:
        return cut_with_others(self._vector)

    def render(self, row: int) -> np.ndarray:
        return self._vector.render(row)

    def close(self) -> None:
        self._vector.close()


class JaxWrapper:
    """A JAX environment around another, whose state it contains as `inner`."""

    def __init__(self, environment: JaxEnvironment, spec: EnvSpec):
        self.environment, self.spec = environment, spec
        if hasattr(environment, "render"):
            self.render = lambda state: environment.render(state.inner)  # type: ignore[attr-defined]


def copy_rows(source: PyTree, rows: Any, target: PyTree, own: Any) -> None:
    """Copies rows of each array of a tree to rows of its counterpart: `target[own] = source[rows]`."""
    if isinstance(source, dict):
        for name in source:
            copy_rows(source[name], rows, target[name], own)
    elif isinstance(source, tuple):
        for part, into in zip(source, target, strict=True):
            copy_rows(part, rows, into, own)
    else:
        target[own] = source[rows]
