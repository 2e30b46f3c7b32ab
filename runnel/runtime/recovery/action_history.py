"""The actions of the episodes in progress, kept outside of the environments.

Episodes are replayable: an episode's number and its actions are enough to rebuild its state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from runnel.environment import Episode

LIMIT_BYTES: Final = 256 * 2**20
"""Bounds the history of episodes that never end: beyond this the oldest actions are dropped."""

RowSpec = tuple[tuple[int, ...], np.dtype]
"""The shape and dtype of a group's actions in one step: [E, (agents,) ...]."""


class ActionBuffer(NamedTuple):
    """A ring buffer of actions."""

    steps: int
    actions: dict[str, np.ndarray]  # by group: [steps, E, ...]


class ActionBuffers(Protocol):
    """Allocates buffers, numbered from 0, each larger than the one before it."""

    def buffer(self, number: int) -> ActionBuffer | None: ...

    def moved_to(self, number: int) -> None:
        """Records that the history is in this buffer from now on."""
        ...


class PrivateBuffers:
    """Buffers in the memory of this process."""

    def __init__(self, rows: Mapping[str, RowSpec], steps: int):
        self._rows, self._steps = dict(rows), max(64, 2 * steps)

    def buffer(self, number: int) -> ActionBuffer | None:
        steps = self._steps << number
        if number and steps * row_bytes(self._rows) > LIMIT_BYTES:
            return None
        return ActionBuffer(
            steps, {group: np.zeros((steps, *shape), dtype) for group, (shape, dtype) in self._rows.items()}
        )

    def moved_to(self, number: int) -> None:
        pass


def row_bytes(rows: Mapping[str, RowSpec]) -> int:
    return sum(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize for shape, dtype in rows.values())


class ActionHistory:
    """Actions as far back as the oldest episode in progress. Steps are counted from the run's start."""

    def __init__(self, envs: int, buffers: ActionBuffers, number: int = 0):
        """`number`: the buffer to begin with. A replacement finds the previous worker's history in it."""
        self.end = 0  # steps taken so far
        self.began = np.zeros(envs, np.int64)  # [E] the step at which each episode in progress began
        self._kept_from = 0  # the first step whose actions are here
        self._buffers, self._number = buffers, number
        buffer = buffers.buffer(number)
        assert buffer is not None
        self._buffer = buffer

    def add(self, actions: dict[str, np.ndarray], done: np.ndarray) -> None:
        """Appends an unroll: actions by group [T, E, ...], ends [T, E]."""
        steps = done.shape[0]
        # Keeps what was needed before this unroll too: a replacement that repeats the unroll needs it.
        self._reserve(self.end + steps - int(self.began.min()))
        self._write(self.end, actions)
        ended = done.any(0)
        latest = steps - 1 - np.argmax(done[::-1], axis=0)  # [E] where `ended`, the newest end
        self.began = np.where(ended, self.end + latest + 1, self.began)
        self.end += steps
        self._kept_from = max(self._kept_from, self.end - self._buffer.steps)

    def episodes(self, numbers: Sequence[int]) -> tuple[list[Episode], np.ndarray]:
        """Every environment's episode in progress, and which of them [E] are incomplete. The next episode replaces
        those."""
        cut = self.began < self._kept_from
        oldest = int(np.where(cut, self.end, self.began).min(initial=self.end))
        kept = self._read(oldest)
        found = []
        for e, number in enumerate(numbers):
            start = self.end if cut[e] else int(self.began[e])
            actions = {group: action[start - oldest :, e] for group, action in kept.items()}
            found.append(Episode(int(number) + int(cut[e]), actions))
        return found, cut

    def restore(self, episodes: Sequence[Episode], end: int) -> None:
        """Continues after step `end` with these episodes in progress."""
        lengths = np.array([_length(episode) for episode in episodes], np.int64)
        longest = int(lengths.max(initial=0))
        self.end, self.began, self._kept_from = end, end - lengths, end - longest
        if longest:
            self._reserve(longest)
            actions = {}
            for group, example in episodes[0].actions.items():
                padded = np.zeros((longest, len(episodes), *example.shape[1:]), example.dtype)
                for e, episode in enumerate(episodes):
                    padded[longest - lengths[e] :, e] = episode.actions[group]
                actions[group] = padded
            self._write(end - longest, actions)
            self._kept_from = max(self._kept_from, end - self._buffer.steps)

    def resume_at(self, end: int, began: np.ndarray, kept_from: int) -> None:
        """Continues after step `end` with the content of the buffer."""
        self.end, self.began, self._kept_from = end, began.copy(), kept_from

    @property
    def kept_from(self) -> int:
        return self._kept_from

    def _reserve(self, steps: int) -> None:
        """Moves to a larger buffer if this one is too small for `steps` steps."""
        number, buffer = self._number, self._buffer
        while buffer.steps < steps:
            larger = self._buffers.buffer(number + 1)
            if larger is None:
                break
            number, buffer = number + 1, larger
        if number == self._number:
            return
        oldest = max(self._kept_from, min(int(self.began.min()), self.end))
        kept = self._read(oldest)
        self._buffer, self._number = buffer, number
        self._write(oldest, kept)
        self._buffers.moved_to(number)

    def _write(self, first: int, actions: Mapping[str, np.ndarray]) -> None:
        """Writes the actions of the steps from `first` on; of more than the buffer holds, the newest."""
        size = self._buffer.steps
        for group, rows in actions.items():
            late = rows[-size:]
            at = (first + len(rows) - len(late)) % size
            until_end = min(len(late), size - at)
            self._buffer.actions[group][at : at + until_end] = late[:until_end]
            self._buffer.actions[group][: len(late) - until_end] = late[until_end:]

    def _read(self, first: int) -> dict[str, np.ndarray]:
        """The actions from step `first` to the end."""
        where = np.arange(first, self.end) % self._buffer.steps
        return {group: rows[where] for group, rows in self._buffer.actions.items()}


def _length(episode: Episode) -> int:
    return len(next(iter(episode.actions.values()))) if episode.actions else 0


def pack(episodes: Sequence[Episode]) -> dict[str, np.ndarray]:
    """Episodes as a few arrays, for a checkpoint."""
    packed = {
        "numbers": np.array([episode.number for episode in episodes], np.int64),
        "lengths": np.array([_length(episode) for episode in episodes], np.int64),
    }
    groups = max((episode.actions for episode in episodes), key=len).keys()
    for group in groups:
        packed[f"actions/{group}"] = np.concatenate([episode.actions[group] for episode in episodes])
    return packed


def unpack(packed: dict[str, np.ndarray]) -> list[Episode]:
    """The inverse of `pack`."""
    ends = np.cumsum(packed["lengths"])
    groups = {name.removeprefix("actions/"): value for name, value in packed.items() if name.startswith("actions/")}
    episodes = []
    for e, number in enumerate(packed["numbers"]):
        span = slice(int(ends[e] - packed["lengths"][e]), int(ends[e]))
        episodes.append(Episode(int(number), {group: np.asarray(value)[span] for group, value in groups.items()}))
    return episodes
