"""The types of exchanged values: spaces, specs, acts and trajectories. NumPy only, so that every worker can import it.

Shapes are written `[T, B]`: T steps of an unroll, B columns. A column is one agent of one environment; with one agent
per environment there are as many columns as environments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

Array = Any  # np.ndarray or jax.Array
PyTree = Any

DEFAULT_GROUP = "agent"
"""The name of the only group of an environment that does not name its groups."""


@dataclass(frozen=True, eq=False)
class Box:
    """Real or integer arrays of one shape, each element within `[low, high]`."""

    shape: tuple[int, ...]
    dtype: np.dtype = field(default_factory=lambda: np.dtype(np.float32))
    low: Array = -np.inf  # broadcasts to `shape`
    high: Array = np.inf

    @property
    def bounded(self) -> bool:
        """Whether every element has a finite lower and upper bound."""
        return bool(np.all(np.isfinite(self.low)) and np.all(np.isfinite(self.high)))


@dataclass(frozen=True)
class Discrete:
    """Whole numbers 0 to n - 1."""

    n: int
    shape: tuple[int, ...] = ()
    dtype: np.dtype = np.dtype(np.int32)


@dataclass(frozen=True)
class MultiDiscrete:
    """A vector of whole numbers, element i from 0 to sizes[i] - 1."""

    sizes: tuple[int, ...]
    dtype: np.dtype = np.dtype(np.int32)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.sizes),)


Leaf = Box | Discrete | MultiDiscrete
Space = Leaf | dict[str, Any] | tuple[Any, ...]
"""A leaf, or dicts and tuples of spaces: the same tree as the values it describes."""


def space_map(function: Any, space: Space) -> PyTree:
    """Applies `function` to each leaf of a space, keeping dicts (in sorted order, as JAX does) and tuples."""
    if isinstance(space, dict):
        return {name: space_map(function, space[name]) for name in sorted(space)}
    if isinstance(space, tuple):
        return tuple(space_map(function, part) for part in space)
    return function(space)


def zeros(space: Space, *leading: int) -> PyTree:
    """Writable NumPy arrays shaped `[*leading, ...]` like the values of `space`."""
    return space_map(lambda leaf: np.zeros((*leading, *leaf.shape), leaf.dtype), space)


SMALLEST_IMAGE: Final = 36
"""The smallest side of an image for the three convolutions of the Nature network."""


def channel_axis(leaf: Leaf) -> int | None:
    """The channel axis of an image: -1 for `[H, W, C]` and `[H, W]`, 0 for `[C, H, W]`; None for other leaves."""
    if len(leaf.shape) not in (2, 3):
        return None
    if min(leaf.shape[:2]) >= SMALLEST_IMAGE:
        return -1
    return 0 if len(leaf.shape) == 3 and min(leaf.shape[1:]) >= SMALLEST_IMAGE else None


@dataclass(frozen=True, eq=False)
class NativeFormat:
    """The environment's own format of actions and observations, if it differs from Runnel's spaces.

    Runnel counts from 0 and acts in flat integers or float32; a Gymnasium space may begin at another number, have
    another shape and another type. Training converts in the environment's adapter; a loaded policy converts by this.
    """

    action_shape: tuple[int, ...]
    action_dtype: np.dtype
    action_start: Array = 0  # added to whole numbers; broadcasts to `action_shape`
    observation_starts: tuple[tuple[tuple[str | int, ...], Array], ...] = ()  # by path in the tree: subtracted


@dataclass(frozen=True)
class AgentSpec:
    """The observation and action spaces of one group of agents: the `spec` that `Algorithm.init` receives.

    `observation` is a tree of spaces; `action` a single `Discrete`, `MultiDiscrete` or `Box`. With `agents > 1`, the
    group has that many agents in each environment, all sharing one policy, and the environment's arrays for the group
    have a leading axis of that size. `names` are the environment's names for these agents, in the order of that axis,
    if it has any.

    A group need not play in every environment: with `plays`, it plays in environment i where `plays[i % len(plays)]` is
    true. In the others it receives observations, but its actions have no effect, and its columns are left out of
    trajectories and returns.
    """

    observation: Space
    action: Leaf
    agents: int = 1
    names: tuple[str, ...] = ()
    native: NativeFormat | None = None
    plays: tuple[bool, ...] = ()  # in which environments, in a repeated pattern; in all where empty

    def plays_in(self, index: int) -> bool:
        """Whether the group plays in the environment of this index."""
        return not self.plays or self.plays[index % len(self.plays)]


@dataclass(frozen=True)
class EnvSpec:
    """The name, groups and episode limit of an environment, known before it is stepped."""

    name: str
    groups: Mapping[str, AgentSpec]
    max_episode_steps: int | None = None

    @classmethod
    def single(
        cls, name: str, observation: Space, action: Leaf, max_episode_steps: int | None = None,
        native: NativeFormat | None = None,
    ) -> EnvSpec:  # fmt: skip
        """The spec of an environment with one agent."""
        return cls(name, {DEFAULT_GROUP: AgentSpec(observation, action, native=native)}, max_episode_steps)


class Act(NamedTuple):
    """The result of `Algorithm.act` for one observation."""

    action: Array
    memory: PyTree = ()  # carried to the agent's next step
    extras: PyTree = ()  # whatever learning wants back: log-probability, value, ...


class Trajectory(NamedTuple):
    """An unroll of T steps in B columns, as `Algorithm.learn` sees it.

    Its fields are one list because algorithms name them: `trajectory.reward`.
    """

    observation: PyTree  # [T, B, ...] what the agent saw
    action: Array  # [T, B, ...] what it did
    reward: Array  # [T, B] what it got for it
    terminated: Any  # [T, B] the episode ended: there is no value after it
    truncated: Any  # [T, B] the episode was cut: `last_observation` has a value
    last_observation: PyTree  # [T, B, ...] the true next observation; valid where truncated and at t = T - 1
    first: Array  # [T, B] an episode begins with this observation
    memory: PyTree  # [B, ...] the agent's memory before the first step
    extras: PyTree  # [T, B, ...] from `act`
    discounted_sum: Array  # [B] the episode's discounted rewards before the first step; see `flow.rollout`
    version: Array  # [B] which parameters acted, at the oldest step
    index: Array  # [B] the column: environment index times agents per environment, plus the agent


PER_COLUMN: Final = ("memory", "discounted_sum", "version", "index")
"""Fields of a `Trajectory` without a time axis: [B, ...]. All others are [T, B, ...]."""

OMISSIBLE: Final = tuple(name for name in Trajectory._fields if name not in ("version", "index"))
"""Fields that a rollout may leave out. The others are known where it is received."""
