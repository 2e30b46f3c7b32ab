"""Protocols of environments: JAX environments (pure functions) and host environments (objects).

Both return values by group: plain values for an environment with one agent, a dict from group name to value for one
with several groups. Only the runtime resets JAX environments (`JaxEnvironment`), and only the vector resets host
environments (`HostVector`), so the last observation of an episode is never lost.
"""

import hashlib
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np

from runnel.types import Array, EnvSpec, PyTree


class TimeStep(NamedTuple):
    """One step of one JAX environment."""

    observation: PyTree  # the true next observation, also where the episode ended
    reward: PyTree  # [] (or [agents]); a dict by group where the environment has groups
    terminated: Any  # []
    truncated: Any  # []
    metrics: PyTree = ()
    """Metrics of the environment's episodes: a dict from name to a number [] (bool, int or float), or a dict of such
    dicts by group. Every step has the same names; only the values at an episode's last step are used.

    `return` is the environment's own score where it differs from the sum of the rewards that are learnt from: it
    replaces that sum in all reports. `length` beside it replaces the length of the episode. `is_success` averages to a
    rate.
    """


@runtime_checkable
class JaxEnvironment(Protocol):
    """One environment as pure functions; the runtime batches, resets and places them.

    state, observation = environment.reset(key)
    state, timestep = environment.step(state, action, key)
    """

    spec: EnvSpec

    def reset(self, key: Array) -> tuple[PyTree, PyTree]: ...

    def step(self, state: PyTree, action: PyTree, key: Array) -> tuple[PyTree, TimeStep]: ...


class HostStep(NamedTuple):
    """Preallocated arrays into which a vector of n host environments writes its step, rows in index order.

    `observation`, `reward` and `last_observation` are dicts by group with `n * agents` rows each.
    """

    observation: dict[str, PyTree]  # the next thing the agent sees: a new episode's first where one ended
    reward: dict[str, np.ndarray]  # floats
    terminated: np.ndarray  # [n] bool
    truncated: np.ndarray  # [n] bool; never both
    last_observation: dict[str, PyTree]  # rows of ended episodes are written, others left as they are


class EpisodeMetrics(NamedTuple):
    """Metrics of an episode that has ended, taken from its last step. See `TimeStep.metrics`."""

    row: int  # of the vector
    episode: int  # its number
    values: dict[str, float]  # finite; those of one group alone are called `GROUP/NAME`


class Lives(NamedTuple):
    """The attribute `lives` of a vector whose environments continue after an episode has ended for learning.

    Episode numbers, seeds, replayed actions and metrics then refer to a whole game, from one reset to the next; the
    loss of a life ends an episode for learning only. The vector updates both arrays in place with every reset, step and
    restore.
    """

    began: np.ndarray  # [n] bool: the environment was reset
    first: np.ndarray  # [n] bool: an episode as learning sees it begins with what is shown


METRIC_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
"""The pattern that names of environment metrics must match."""

MOST_METRICS: Final = 64
"""The largest number of metrics of an environment, or of a group of one."""

LARGEST_METRIC: Final = 1e100
"""Larger numbers are ignored: their sums would overflow."""


class Episode(NamedTuple):
    """An episode in progress: the data to replay it."""

    number: int
    actions: dict[str, np.ndarray]  # by group: [steps so far, (agents,) ...]


@dataclass(frozen=True)
class Failure:
    """A failure of one environment of a vector, which then continued with a new environment in its place."""

    row: int  # of the vector
    index: int  # of the environment in the run
    episode: int  # the number of the episode that was cut, or could not begin
    what: str  # in one line: "step raised ValueError: bad thing"
    traceback: str  # the environment's own, or ""


class HostVector(Protocol):
    """Several host environments of one worker, stepped together; the vector resets each when its episode ends.

    Episode k of environment i always begins from `episode_seed(seed, i, k)`, so it can be replayed.

    The failure of one environment does not disturb the others. Failures are an exception, an observation with NaN, a
    reward that is not finite in its row's dtype, and values that do not fit the spaces. The episode is truncated at its
    last valid step (reward 0, the last valid observation), and a new environment begins the next episode. After too
    many failures the vector raises `EnvironmentFailed`.

    A vector in which one failure may truncate the episodes of several environments also has a method
    `cut_with_others()`: the rows and numbers of these episodes since the last call.
    """

    stateful: bool
    """Whether `state` is the vector's whole state and can be set: episodes then need not be replayed."""

    @property
    def watch(self) -> Callable[[int], None] | None:
        """If set, it is called with the row of each environment just before that is stepped, reset or replayed, and
        with -1 when all are done. If this process dies or hangs, the supervisor knows which environment caused it."""
        ...

    @watch.setter
    def watch(self, watch: Callable[[int], None] | None) -> None: ...

    def reset(self, observation: dict[str, PyTree]) -> None:
        """Starts episode 0 of every environment (or the first that succeeds) and writes the first observations."""
        ...

    def step(self, action: dict[str, np.ndarray], out: HostStep) -> None:
        """Steps every environment with its row of `action`, and resets those whose episode ended."""
        ...

    def episode_numbers(self) -> np.ndarray:
        """[n] the number of each environment's episode in progress."""
        ...

    def restore(self, episodes: Sequence[Episode], observation: dict[str, PyTree]) -> np.ndarray:
        """Rebuilds episodes in progress by replaying their actions, and writes their current observations.

        Returns which of them [n] were truncated, because the environment failed or ended the episode earlier than the
        first time. Those rows are at the beginning of a later episode.
        """
        ...

    def condemn(self, row: int, episode: int, what: str) -> None:
        """Condemns an episode of an environment: its next step or reset counts as failed."""
        ...

    def failures(self) -> list[Failure]:
        """The failures since the last call, oldest first; only the newest if there were very many."""
        ...

    def episode_metrics(self) -> list[EpisodeMetrics]:
        """Metrics of the episodes that ended since the last call, oldest first; only the newest of very many. Episodes
        without metrics are left out. A vector without this method reports none."""
        ...

    def render(self, row: int) -> np.ndarray:
        """[H, W, 3] uint8: a picture of one environment. Only if opened with `render=True`."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class HostEnvironment(Protocol):
    """An environment of Python or C++ objects: it knows its spec and creates vectors of itself.

    If its rewards differ from its score (clipped, shaped or per life), it sets `reports_return = True` and reports the
    score of every whole episode as the metric `return`.
    """

    spec: EnvSpec

    def open(self, indices: Sequence[int], seed: int, render: bool = False) -> HostVector: ...


Environment = JaxEnvironment | HostEnvironment


def is_traceable(environment: Any) -> bool:
    """Whether an environment's steps can be part of an XLA program."""
    # A gymnasium.Env has methods of the same names, and a spec of another kind.
    return isinstance(environment, JaxEnvironment) and isinstance(environment.spec, EnvSpec)


def reports_return(environment: Any) -> bool:
    """Whether a host environment reports its own score (`reports_return`)."""
    return bool(getattr(environment, "reports_return", False))


def ended_episodes(vector: HostVector) -> list[EpisodeMetrics]:
    """Metrics of a vector's episodes that ended since the last call; [] if the vector reports none."""
    ask: Callable[[], list[EpisodeMetrics]] | None = getattr(vector, "episode_metrics", None)
    return ask() if ask is not None else []


def cut_with_others(vector: HostVector) -> list[tuple[int, int]]:
    """Rows and numbers of the episodes that another environment's failure truncated since the last call."""
    ask: Callable[[], list[tuple[int, int]]] | None = getattr(vector, "cut_with_others", None)
    return ask() if ask is not None else []


def lives_of(vector: HostVector) -> Lives | None:
    """The lives of a vector whose environments continue after an episode's end; None for other vectors."""
    return getattr(vector, "lives", None)


def episode_seed(seed: int, index: int, episode: int) -> int:
    """The 31-bit seed of one episode of one environment of one run."""
    digest = hashlib.blake2b(struct.pack("<qqq", seed, index, episode), digest_size=4).digest()
    return int.from_bytes(digest, "little") & 0x7FFFFFFF
