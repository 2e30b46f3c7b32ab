"""Replays on several devices: each holds a part of what is kept. What says where things lie is on all of them.

Sampling draws the same places whatever the number of devices; each sends what it has of a batch to the others.
"""

from __future__ import annotations

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from runnel.replay import shared_axis
from runnel.runtime.programs.carry import ReplayState


def shardings(replay: ReplayState, mesh: Mesh) -> ReplayState:
    """For each leaf of a replay's state, where it is."""
    whole = jax.tree.map(lambda _: NamedSharding(mesh, PartitionSpec()), replay)
    axis = shared_axis(replay.items, mesh.size)
    if axis is None:
        return whole
    part = NamedSharding(mesh, PartitionSpec(*[None] * axis, *mesh.axis_names))
    kept = jax.tree.map(lambda _: part, replay.items.experience)
    return whole._replace(items=whole.items.replace(experience=kept))
