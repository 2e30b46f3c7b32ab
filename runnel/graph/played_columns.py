"""The columns of a trajectory that belong to environments in which a group plays.

    seats = AgentSpec(observation, action, plays=(True, True, False))   # it plays in two environments of three
    trajectory = columns_played(seats, trajectory)                      # [T, B, ...] -> [T, 2 * B / 3, ...]

A group that does not play in an environment acts there without effect. What it saw and did there is not its own, so
learners and replays do not get it.
"""

from __future__ import annotations

import jax
import numpy as np

from runnel.types import PER_COLUMN, AgentSpec, Array, Trajectory


def columns_played(agents: AgentSpec, trajectory: Trajectory) -> Trajectory:
    """Columns are whole patterns of `agents.plays`, one after the other; their order is kept."""
    chosen = np.flatnonzero(agents.plays)

    def take(x: Array, axis: int) -> Array:
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        patterns = x.reshape(*before, -1, len(agents.plays), agents.agents, *after)
        return patterns.take(chosen, axis + 1).reshape(*before, -1, *after)

    return Trajectory(*(
        jax.tree.map(lambda x, axis=0 if name in PER_COLUMN else 1: take(x, axis), value)
        for name, value in trajectory._asdict().items()
    ))  # fmt: skip
