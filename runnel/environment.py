"""What an environment is to the run-time: pure functions (JAX) or objects (host).

Both give values by group: an environment with one agent uses plain values, one with several groups gives
dicts from group name to value. Nobody resets but the run-time (`JaxEnvironment`) or the vector
(`HostVector`), so an observation is never lost at an episode's end.
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from runnel.types import Array, EnvSpec, PyTree


class TimeStep(NamedTuple):
    """One step of one JAX environment."""

    observation: PyTree  # the true next observation, also where the episode ended
    reward: PyTree  # [] (or [agents]); a dict by group where the environment has groups
    terminated: Any  # []
    truncated: Any  # []


@runtime_checkable
class JaxEnvironment(Protocol):
    """One environment as pure functions; the run-time batches, resets and places them.

    state, observation = environment.reset(key)
    state, timestep = environment.step(state, action, key)
    """

    spec: EnvSpec

    def reset(self, key: Array) -> tuple[PyTree, PyTree]: ...

    def step(self, state: PyTree, action: PyTree, key: Array) -> tuple[PyTree, TimeStep]: ...


class HostStep(NamedTuple):
    """Where a vector of n host environments writes what a step gave: preallocated arrays, rows in index order.

    `observation`, `reward` and `last_observation` are dicts by group with `n * agents` rows each.
    """

    observation: dict[str, PyTree]  # the next thing the agent sees: a new episode's first where one ended
    reward: dict[str, np.ndarray]  # floats
    terminated: np.ndarray  # [n] bool
    truncated: np.ndarray  # [n] bool; never both
    last_observation: dict[str, PyTree]  # rows of ended episodes are written, others left as they are


class Episode(NamedTuple):
    """An episode in progress, as much as it takes to play it again."""

    number: int
    actions: dict[str, np.ndarray]  # by group: [steps so far, (agents,) ...]


class HostVector(Protocol):
    """Several host environments of one worker, stepped together, each starting its next episode by itself.

    Episode k of environment i always begins from `episode_seed(seed, i, k)`, so it can be played again.
    """

    def reset(self, observation: dict[str, PyTree]) -> None:
        """Starts episode 0 of every environment and writes the first observations."""
        ...

    def step(self, action: dict[str, np.ndarray], out: HostStep) -> None:
        """Steps every environment with its row of `action`, and resets those whose episode ended."""
        ...

    def episode_numbers(self) -> np.ndarray:
        """[n] the number of each environment's episode in progress."""
        ...

    def restore(self, episodes: Sequence[Episode], observation: dict[str, PyTree]) -> None:
        """Rebuilds episodes in progress by replaying their actions; writes the observations they stand at."""
        ...

    def render(self, row: int) -> np.ndarray:
        """[H, W, 3] uint8: a picture of one environment. Only where opened with `render=True`."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class HostEnvironment(Protocol):
    """An environment of Python or C++ objects: knows its spec, and opens vectors of itself."""

    spec: EnvSpec

    def open(self, indices: Sequence[int], seed: int, render: bool = False) -> HostVector: ...


Environment = JaxEnvironment | HostEnvironment


def is_traceable(environment: Any) -> bool:
    """Whether an environment's steps can be part of an XLA program."""
    # A gymnasium.Env has methods of the same names, and a spec of another kind.
    return isinstance(environment, JaxEnvironment) and isinstance(environment.spec, EnvSpec)


def episode_seed(seed: int, index: int, episode: int) -> int:
    """The 31-bit seed of one episode of one environment of one run."""
    digest = hashlib.blake2b(struct.pack("<qqq", seed, index, episode), digest_size=4).digest()
    return int.from_bytes(digest, "little") & 0x7FFFFFFF
