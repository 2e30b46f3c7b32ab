"""The actions of the episodes in progress, kept outside the environments that play them.

Episodes are replayable: the number of an episode and its actions are enough to stand where it stands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from runnel.environment import Episode

LIMIT_BYTES: Final = 256 * 2**20
"""Episodes that never end would fill the memory; beyond this the oldest actions are forgotten."""


class History:
    """Unrolls' actions, as far back as the oldest episode in progress. Steps are counted from the run's start."""

    def __init__(self, envs: int):
        self.end = 0  # steps taken so far
        self.began = np.zeros(envs, np.int64)  # [E] the step at which each episode in progress began
        self._chunks: deque[tuple[int, dict[str, np.ndarray]]] = deque()  # (first step, actions by group [T, E, ...])
        self._bytes = 0

    def add(self, actions: dict[str, np.ndarray], done: np.ndarray) -> None:
        """An unroll: actions by group [T, E, ...], ends [T, E]."""
        steps = done.shape[0]
        self._append(self.end, {group: action.copy() for group, action in actions.items()})
        ended = done.any(0)
        latest = steps - 1 - np.argmax(done[::-1], axis=0)  # [E] where `ended`, the newest end
        self.began = np.where(ended, self.end + latest + 1, self.began)
        self.end += steps
        while self._chunks and (self._first_kept() < self._oldest() or self._bytes > LIMIT_BYTES):
            _, dropped = self._chunks.popleft()
            self._bytes -= sum(action.nbytes for action in dropped.values())

    def episodes(self, numbers: Sequence[int]) -> tuple[list[Episode], np.ndarray]:
        """Every environment's episode in progress, and which of them [E] could not be kept whole.

        Those are told to begin their next episode instead.
        """
        joined = self._joined()
        kept_from = self._chunks[0][0] if self._chunks else self.end
        cut = self.began < kept_from
        found = []
        for e, number in enumerate(numbers):
            start = self.end if cut[e] else int(self.began[e])
            actions = {group: action[start - kept_from :, e] for group, action in joined.items()}
            found.append(Episode(int(number) + int(cut[e]), actions))
        return found, cut

    def restore(self, episodes: Sequence[Episode], end: int) -> None:
        """Stands after step `end` with these episodes in progress."""
        lengths = np.array([_length(episode) for episode in episodes], np.int64)
        self.end, self.began = end, end - lengths
        self._chunks.clear()
        self._bytes = 0
        longest = int(lengths.max(initial=0))
        if longest:
            actions = {}
            for group, example in episodes[0].actions.items():
                padded = np.zeros((longest, len(episodes), *example.shape[1:]), example.dtype)
                for e, episode in enumerate(episodes):
                    padded[longest - lengths[e] :, e] = episode.actions[group]
                actions[group] = padded
            self._append(end - longest, actions)

    def _append(self, first: int, actions: dict[str, np.ndarray]) -> None:
        self._chunks.append((first, actions))
        self._bytes += sum(action.nbytes for action in actions.values())

    def _oldest(self) -> int:
        return int(self.began.min())

    def _first_kept(self) -> int:
        """The step after the oldest chunk: it can go once no episode reaches back into it."""
        first, actions = self._chunks[0]
        return first + len(next(iter(actions.values()))) - 1

    def _joined(self) -> dict[str, np.ndarray]:
        if not self._chunks:
            return {}
        groups = self._chunks[0][1]
        return {group: np.concatenate([actions[group] for _, actions in self._chunks]) for group in groups}


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
    """What `pack` packed."""
    ends = np.cumsum(packed["lengths"])
    groups = {name.removeprefix("actions/"): value for name, value in packed.items() if name.startswith("actions/")}
    episodes = []
    for e, number in enumerate(packed["numbers"]):
        span = slice(int(ends[e] - packed["lengths"][e]), int(ends[e]))
        episodes.append(Episode(int(number), {group: np.asarray(value)[span] for group, value in groups.items()}))
    return episodes
