"""Replays on several devices: each holds a part of the items. Counters and positions are on all of them.

The same places are drawn whatever the number of devices; each device sends what it has of a batch to the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from runnel.replay import shared_axis
from runnel.runtime.programs.carry import ReplayState


def shardings(replays: Mapping[str, ReplayState], mesh: Mesh) -> dict[str, ReplayState]:
    """For each leaf of replays' states, where it is."""
    return {name: _shardings(replay, mesh) for name, replay in replays.items()}


def _shardings(replay: ReplayState, mesh: Mesh) -> ReplayState:
    whole = jax.tree.map(lambda _: NamedSharding(mesh, PartitionSpec()), replay)
    axis = shared_axis(replay.items, mesh.size)
    if axis is None:
        return whole
    part = NamedSharding(mesh, PartitionSpec(*[None] * axis, *mesh.axis_names))
    kept = jax.tree.map(lambda _: part, replay.items.experience)
    return whole._replace(items=whole.items.replace(experience=kept))


def parts(leaf: Any) -> Iterator[tuple[int, np.ndarray]]:
    """Of a leaf whose parts are in several processes, those that are in this one, each with where it begins."""
    for shard in leaf.addressable_shards:
        yield next((part.start for part in shard.index if part.start is not None), 0), np.asarray(shard.data)


def together(parts: Mapping[int, np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """The inverse: a leaf of this shape from all its parts."""
    ordered = [parts[start] for start in sorted(parts)]
    axis = next((k for k, size in enumerate(ordered[0].shape) if size != shape[k]), 0)
    whole = np.concatenate(ordered, axis)
    assert whole.shape == shape, (whole.shape, shape)
    return whole
