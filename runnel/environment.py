"""What an environment is to the run-time: pure functions (JAX) or objects (host).

Both give values by group: an environment with one agent uses plain values, one with several groups gives
dicts from group name to value. Nobody resets but the run-time (`JaxEnvironment`) or the vector
(`HostVector`), so an observation is never lost at an episode's end.
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
    """What the environment reports of its episodes: a dict from name to a number [] (bool, int or float), or a dict of
    such dicts by group. The same names in every step; only the values of an episode's last step are used.

    `return` is the environment's own score, where that differs from the sum of the rewards that are learnt from: it
    takes the place of that sum in everything that is reported. `length` beside it takes the place of the episode's
    length. `is_success` averages to a rate.
    """


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


class EpisodeMetrics(NamedTuple):
    """What an environment reports of an episode that has ended: values at its last step. See `TimeStep.metrics`."""

    row: int  # of the vector
    episode: int  # its number
    values: dict[str, float]  # finite; those of one group alone are called `GROUP/NAME`


class Lives(NamedTuple):
    """The attribute `lives` of a vector whose environments go on after what ends an episode for learning.

    Numbers, seeds, actions to be replayed and metrics are then those of a whole game, from one reset to the next; the
    loss of a life ends an episode for learning alone. The vector keeps both arrays up to date, in place, with every
    reset, step and restore.
    """

    began: np.ndarray  # [n] bool: the environment was reset
    first: np.ndarray  # [n] bool: an episode as learning sees it begins with what is shown


METRIC_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
"""What a metric of the environment can be called."""

MOST_METRICS: Final = 64
"""How many metrics an environment, or a group of one, can report."""

LARGEST_METRIC: Final = 1e100
"""Larger numbers are ignored: their sums would overflow."""


class Episode(NamedTuple):
    """An episode in progress, as much as it takes to play it again."""

    number: int
    actions: dict[str, np.ndarray]  # by group: [steps so far, (agents,) ...]


@dataclass(frozen=True)
class Failure:
    """Something that went wrong in one environment of a vector; the vector went on with an environment made anew."""

    row: int  # of the vector
    index: int  # of the environment in the run
    episode: int  # the number of the episode that was cut, or could not begin
    what: str  # in one line: "step raised ValueError: bad thing"
    traceback: str  # the environment's own, or ""


class HostVector(Protocol):
    """Several host environments of one worker, stepped together, each starting its next episode by itself.

    Episode k of environment i always begins from `episode_seed(seed, i, k)`, so it can be played again.

    An environment that raises, or gives an observation with NaN, a reward that is not finite in the type of its row, or
    what does not fit its spaces, does not disturb the others: its episode is truncated at the last good step (with
    a reward of 0, the last good observation its last), and an environment made anew begins the next. Where that happens
    too often, `EnvironmentFailed` is raised.

    A vector in which one failure may cut the episodes of several environments also has a method `cut_with_others()`:
    the rows and numbers of these episodes since it was last asked.
    """

    stateful: bool
    """Whether all that it is can be read from `state` and set again: episodes then need not be replayed."""

    @property
    def watch(self) -> Callable[[int], None] | None:
        """Where set, it is called with the row of each environment just before that is stepped, reset or replayed, and
        with -1 when all are done; if this process dies or hangs, the supervisor knows which one it was."""
        ...

    @watch.setter
    def watch(self, watch: Callable[[int], None] | None) -> None: ...

    def reset(self, observation: dict[str, PyTree]) -> None:
        """Starts episode 0 of every environment (a later one where that failed) and writes the first observations."""
        ...

    def step(self, action: dict[str, np.ndarray], out: HostStep) -> None:
        """Steps every environment with its row of `action`, and resets those whose episode ended."""
        ...

    def episode_numbers(self) -> np.ndarray:
        """[n] the number of each environment's episode in progress."""
        ...

    def restore(self, episodes: Sequence[Episode], observation: dict[str, PyTree]) -> np.ndarray:
        """Rebuilds episodes in progress by replaying their actions; writes the observations they stand at.

        Gives which of them [n] were cut, because the environment failed or ended the episode earlier than the first
        time: those rows stand at the beginning of a later episode.
        """
        ...

    def condemn(self, row: int, episode: int, what: str) -> None:
        """An episode of an environment is not gone on with, or not begun: its next step counts as one that failed."""
        ...

    def failures(self) -> list[Failure]:
        """What failed since this was last asked, oldest first; of very many, the newest."""
        ...

    def episode_metrics(self) -> list[EpisodeMetrics]:
        """What the environments reported of the episodes that have ended since this was last asked, oldest first; of
        very many, the newest. Episodes without metrics are left out. A vector without this method reports none.
        """
        ...

    def render(self, row: int) -> np.ndarray:
        """[H, W, 3] uint8: a picture of one environment. Only where opened with `render=True`."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class HostEnvironment(Protocol):
    """An environment of Python or C++ objects: knows its spec, and opens vectors of itself.

    One whose rewards are not its own score (clipped, shaped, of lives) says so by an attribute `reports_return = True`,
    and reports the score of every whole episode as the metric `return`.
    """

    spec: EnvSpec

    def open(self, indices: Sequence[int], seed: int, render: bool = False) -> HostVector: ...


Environment = JaxEnvironment | HostEnvironment


def is_traceable(environment: Any) -> bool:
    """Whether an environment's steps can be part of an XLA program."""
    # A gymnasium.Env has methods of the same names, and a spec of another kind.
    return isinstance(environment, JaxEnvironment) and isinstance(environment.spec, EnvSpec)


def reports_return(environment: Any) -> bool:
    """Whether a host environment says that it reports its own score."""
    return bool(getattr(environment, "reports_return", False))


def ended_episodes(vector: HostVector) -> list[EpisodeMetrics]:
    """What a vector reports of the episodes that have ended since this was last asked."""
    ask: Callable[[], list[EpisodeMetrics]] | None = getattr(vector, "episode_metrics", None)
    return ask() if ask is not None else []


def cut_with_others(vector: HostVector) -> list[tuple[int, int]]:
    """Rows and numbers of the episodes that another environment's failure has cut since this was last asked."""
    ask: Callable[[], list[tuple[int, int]]] | None = getattr(vector, "cut_with_others", None)
    return ask() if ask is not None else []


def lives_of(vector: HostVector) -> Lives | None:
    """The lives of the environments of a vector that goes on after an episode's end; None of all others."""
    return getattr(vector, "lives", None)


def episode_seed(seed: int, index: int, episode: int) -> int:
    """The 31-bit seed of one episode of one environment of one run."""
    digest = hashlib.blake2b(struct.pack("<qqq", seed, index, episode), digest_size=4).digest()
    return int.from_bytes(digest, "little") & 0x7FFFFFFF
