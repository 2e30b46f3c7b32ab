"""Episodes of a block of environments, counted from each unroll's rewards and ends. NumPy only.

What `runnel.ops.episodes` does inside a compiled program, for workers that have none.
"""

from __future__ import annotations

import numpy as np


class EpisodeCounter:
    """Returns and lengths of the episodes in progress in E environments."""

    def __init__(self, envs: int, groups: dict[str, int], real: str = "<f4"):
        self.real = np.dtype(real)  # of rewards
        self.agents = groups  # by group: how many agents an environment has
        self.reward = {group: np.zeros(envs, np.float32) for group in groups}  # [E] so far, the mean over the agents
        self.length = np.zeros(envs, np.int32)  # [E] steps so far
        self.discounted = {group: np.zeros(envs * agents, self.real) for group, agents in groups.items()}  # [B]

    def unroll(self, rewards: dict[str, np.ndarray], ended: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Counts rewards by group [T, B] and ends [T, E]; returns, where an episode ended, its return and length."""
        steps, envs = ended.shape
        ends = np.argwhere(ended)  # in order of (step, environment)
        lengths = np.zeros((steps, envs), np.int32)
        began = -self.length  # [E] the step at which the episode in progress began, counted from this unroll
        for t, e in ends:
            lengths[t, e] = t + 1 - began[e]
            began[e] = t + 1
        self.length = (steps - began).astype(np.int32)
        returns = {}
        for group, reward in rewards.items():
            mean = reward.reshape(steps, envs, self.agents[group]).mean(-1, dtype=np.float32)
            mean[~np.isfinite(mean)] = 0  # no reward: in a running sum it would be one of all episodes to come
            running = np.cumsum(mean, axis=0, dtype=np.float32)
            so_far, offset = self.reward[group], np.zeros(envs, np.float32)
            returns[group] = np.zeros((steps, envs), np.float32)
            for t, e in ends:
                returns[group][t, e] = so_far[e] + running[t, e] - offset[e]
                so_far[e], offset[e] = 0.0, running[t, e]
            self.reward[group] = so_far + running[-1] - offset
        return returns, lengths

    def discount(self, group: str, reward: np.ndarray, ended: np.ndarray, discount: float | None) -> None:
        """Carries the discounted sums [B] through an unroll: rewards [T, B], ends [T, E]."""
        if discount is None:
            return
        steps = len(reward)
        time = np.arange(steps)[:, None]
        end = np.where(ended, time, -1).max(0).repeat(self.agents[group])  # [B] the newest end, or -1
        weighted = np.where((time > end) & np.isfinite(reward), discount ** (steps - 1.0 - time) * reward, 0.0)
        before = np.where(end < 0, self.discounted[group] * discount**steps, 0.0)
        self.discounted[group] = (before + weighted.sum(0)).astype(self.real)

    def forget(self, cut: np.ndarray) -> None:
        """Episodes [E] that were cut begin again at 0."""
        self.length[cut] = 0
        for group, agents in self.agents.items():
            self.reward[group][cut] = 0
            self.discounted[group][cut.repeat(agents)] = 0
