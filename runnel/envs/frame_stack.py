"""The `frame_stack` setting, for host environments; shared with `frame_stack_jax`. No JAX is imported here.

`--set env.frame_stack=4` shows an agent its last 4 observations as one, the newest last. The first observation of an
episode is repeated to fill the stack, so that nothing of an episode is seen in the next.

| observation | stacked |
|---|---|
| a number, `Discrete` too | a vector of k |
| a vector, `MultiDiscrete` too | a vector of k times its length |
| a grid or picture `[H, W]` | `[H, W, k]` |
| a picture `[H, W, C]`, and anything else | k times as long along its last axis |
| a picture `[C, H, W]` | `[k C, H, W]` |

Each leaf of a dict or tuple is stacked by itself. Of an observation in parts (`runnel.observations`) only what the
agent sees is stacked: its mask, whether it is active, and the state are those of now.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from runnel.environment import (
    Episode,
    HostEnvironment,
    HostStep,
    HostVector,
)
from runnel.envs.wrappers import HostWrapper, VectorWrapper
from runnel.errors import UserError
from runnel.observations import is_parted
from runnel.types import (
    Box,
    Discrete,
    EnvSpec,
    Leaf,
    MultiDiscrete,
    NativeFormat,
    PyTree,
    Space,
    channel_axis,
    space_map,
    zeros,
)

SETTING: Final = "frame_stack"
"""The name of the setting, unless an environment has its own setting of that name."""

MOST_FRAMES: Final = 128

SEEN: Final = "observation"
"""The part of an observation in parts that is stacked."""

Path = tuple[str | int, ...]


def checked(value: Any) -> int:
    """The number of frames that a setting asks for."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value <= MOST_FRAMES:
        found = f"text '{value}'" if isinstance(value, str) else repr(value)
        raise UserError(f"env.{SETTING}={value}: found {found}, expected a whole number from 1 to {MOST_FRAMES}")
    return int(value)


class FrameAxis(NamedTuple):
    """The axis along which the frames of one leaf are joined."""

    number: int  # counted from the end
    new: bool  # whether a single frame does not have it

    def join(self, frames: Sequence[Any], concatenate: Callable[..., Any] = np.concatenate, **out: Any) -> Any:
        """Frames, the oldest first, as one array. They may have more axes in front."""
        return concatenate([frame[..., None] if self.new else frame for frame in frames], axis=self.number, **out)


def axis_of(leaf: Leaf) -> FrameAxis:
    if len(leaf.shape) in (0, 2):
        return FrameAxis(-1, new=True)
    return FrameAxis(-3 if channel_axis(leaf) == 0 else -1, new=False)


class LeafPlace(NamedTuple):
    """The position of a leaf in observations by group; `axis` is None if the leaf is not stacked."""

    group: str
    path: Path
    axis: FrameAxis | None

    def of(self, observations: dict[str, PyTree]) -> Any:
        tree = observations[self.group]
        for key in self.path:
            tree = tree[key]
        return tree


def places(spec: EnvSpec) -> list[LeafPlace]:
    """Every leaf of the observations of an environment whose frames are not stacked."""
    found = []
    for group, agents in spec.groups.items():
        parted = is_parted(agents.observation)
        for path, leaf in _leaves(agents.observation):
            seen = not parted or path[0] == SEEN
            found.append(LeafPlace(group, path, axis_of(leaf) if seen else None))
    return found


def _leaves(space: Space, path: Path = ()) -> Iterator[tuple[Path, Leaf]]:
    if isinstance(space, dict | tuple):
        for key in sorted(space) if isinstance(space, dict) else range(len(space)):
            yield from _leaves(space[key], (*path, key))  # type: ignore[index]
    else:
        yield path, space


def stacked_spec(spec: EnvSpec, frames: int) -> EnvSpec:
    """The spec of an environment whose observations are stacks of `frames` frames."""

    def stacked(space: Space) -> Space:
        return space_map(lambda leaf: _stacked(leaf, frames), space)

    def native(format: NativeFormat | None) -> NativeFormat | None:
        if format is None:
            return None
        starts = tuple((path, np.tile(start, frames) if np.ndim(start) else start)
                       for path, start in format.observation_starts)  # fmt: skip
        return dataclasses.replace(format, observation_starts=starts)

    groups = {}
    for group, agents in spec.groups.items():
        space: Any = agents.observation
        observation = {**space, SEEN: stacked(space[SEEN])} if is_parted(space) else stacked(space)
        groups[group] = dataclasses.replace(agents, observation=observation, native=native(agents.native))
    return dataclasses.replace(spec, groups=groups)


def _stacked(leaf: Leaf, frames: int) -> Leaf:
    if isinstance(leaf, Discrete):
        return MultiDiscrete((leaf.n,) * frames, leaf.dtype)
    if isinstance(leaf, MultiDiscrete):
        return MultiDiscrete(leaf.sizes * frames, leaf.dtype)
    axis = axis_of(leaf)

    def repeated(bound: Any) -> Any:
        return axis.join([np.broadcast_to(bound, leaf.shape)] * frames) if np.ndim(bound) else bound

    shape = axis.join([np.broadcast_to(np.int8(0), leaf.shape)] * frames).shape
    return Box(shape, leaf.dtype, repeated(leaf.low), repeated(leaf.high))


class FrameStackedEnvironment(HostWrapper):
    """A host environment whose observations are stacks of frames."""

    def __init__(self, environment: HostEnvironment, frames: int):
        super().__init__(environment, stacked_spec(environment.spec, frames))
        self.frames = frames

    def open(self, indices: Sequence[int], seed: int, render: bool = False) -> FrameStackedVector:
        vector = self.environment.open(indices, seed, render)
        return FrameStackedVector(vector, self.environment.spec, len(indices), self.frames)


class FrameStackedVector(VectorWrapper):
    """A vector whose observations are stacks of frames: it keeps the newest k observations of the vector inside."""

    def __init__(self, vector: HostVector, spec: EnvSpec, envs: int, frames: int):
        """`spec` is that of the vector inside."""
        super().__init__(vector)
        self._agents = {group: agents.agents for group, agents in spec.groups.items()}
        self._places = places(spec)

        def observations() -> dict[str, PyTree]:
            return {group: zeros(agents.observation, envs * agents.agents) for group, agents in spec.groups.items()}

        self._frames = deque(observations() for _ in range(frames))  # the oldest first
        self._last = observations()

    def reset(self, observation: dict[str, PyTree]) -> None:
        self._vector.reset(self._frames[-1])
        self._fill(None)
        self._show(observation)

    def step(self, action: dict[str, np.ndarray], out: HostStep) -> None:
        newest = self._frames[0]  # the oldest is not needed any more
        self._vector.step(action, out._replace(observation=newest, last_observation=self._last))
        self._frames.rotate(-1)
        ended = out.terminated | out.truncated
        if ended.any():
            self._end(ended, out)
        self._show(out.observation)

    def restore(self, episodes: Sequence[Episode], observation: dict[str, PyTree]) -> np.ndarray:
        """Rebuilds episodes and their stacks: replays each to each of its last k steps, finally to its end.

        Replay is repeated because a vector returns only an episode's current observation, not earlier ones.
        """
        stand, cut = list(episodes), np.zeros(len(episodes), np.bool_)
        oldest = min(len(self._frames) - 1, max(map(_length, episodes), default=0))
        for back in range(oldest, -1, -1):
            newest = self._frames[0]
            failed = self._vector.restore([_without_last(episode, back) for episode in stand], newest)
            self._frames.rotate(-1)
            cut |= failed
            for row, number in enumerate(self._vector.episode_numbers().tolist()):
                if cut[row]:
                    stand[row] = _without_last(Episode(number, episodes[row].actions), _length(episodes[row]))
            if back == oldest:
                self._fill(None)
            elif self.lives is not None:
                self._fill(self.lives.first)  # for learning, an episode begins here
            if cut.all():  # all are at the beginning of other episodes
                break
        if cut.any():
            self._fill(cut)
        self._show(observation)
        return cut

    def _show(self, observation: dict[str, PyTree]) -> None:
        for place in self._places:
            frames = [place.of(frame) for frame in self._frames]
            if place.axis is None:
                place.of(observation)[...] = frames[-1]
            else:
                place.axis.join(frames, out=place.of(observation))

    def _end(self, ended: np.ndarray, out: HostStep) -> None:
        """Writes the last stacks of episodes that ended; the next ones begin with a stack of their first frame."""
        for place in self._places:
            rows = self._rows(ended, place.group)
            last = place.of(self._last)[rows]
            if place.axis is not None:
                *before, _ = self._frames  # the newest is of the next episode already
                last = place.axis.join([*(place.of(frame)[rows] for frame in before), last])
            place.of(out.last_observation)[rows] = last
        self._fill(ended)

    def _fill(self, envs: np.ndarray | None) -> None:
        """Repeats the newest frame of these environments, or of all of them, throughout the stack."""
        *older, newest = self._frames
        for place in self._places:
            rows = slice(None) if envs is None else self._rows(envs, place.group)
            for frame in older:
                place.of(frame)[rows] = place.of(newest)[rows]

    def _rows(self, envs: np.ndarray, group: str) -> np.ndarray:
        return envs.repeat(self._agents[group])


def _length(episode: Episode) -> int:
    return max(map(len, episode.actions.values()), default=0)


def _without_last(episode: Episode, steps: int) -> Episode:
    """An episode without its last steps; at its beginning, if it has no more than these."""
    left = max(0, _length(episode) - steps)
    return Episode(episode.number, {group: actions[:left] for group, actions in episode.actions.items()})
