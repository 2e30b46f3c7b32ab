"""What a stretch of training did, summed on the device and read once."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from runnel.ops import episodes as ops_episodes
from runnel.runtime.loop import Carry, Metrics
from runnel.types import Array


class Progress(NamedTuple):
    """A stretch of training, as plain numbers."""

    iterations: int
    updates: int
    episodes: int
    mean_return: float | None  # over the newest 100 episodes; None before the first ends
    mean_length: float | None
    group_returns: dict[str, float]  # by group, over the newest 100 episodes
    out: dict[str, float]  # means of what learning gave out
    reached: bool  # the return that was asked for


def empty(metrics: Any) -> Metrics:
    """Zeros of the types of `metrics`."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metrics)


def add(total: Metrics, metrics: Metrics) -> Metrics:
    return jax.tree.map(jnp.add, total, metrics)


def window_mean(carry: Carry) -> Array:
    """[] the mean return of the newest 100 episodes; NaN before there are as many."""
    full = carry.episodes.filled >= ops_episodes.WINDOW
    return jnp.where(full, ops_episodes.mean_return(carry.episodes), jnp.nan)


def read(iterations: int, total: Metrics, carry: Carry, stopped: bool) -> Progress:
    """Waits for the device and brings the sums to the host."""
    total, episodes = jax.device_get((total, carry.episodes))
    filled = int(episodes.filled)
    groups = {g: float(np.sum(r) / filled) for g, r in episodes.returns.items()} if filled else {}
    out: dict[str, float] = {}
    for node, sums in total.out.items():
        times = int(total.updates[node])
        prefix = node.rpartition("/")[0]
        for name, value in sums.items():
            if times:
                out[f"{prefix}/{name}" if prefix else name] = float(value) / times
    return Progress(
        iterations=iterations,
        updates=sum(int(n) for n in total.updates.values()),
        episodes=int(total.ended.count),
        mean_return=float(np.mean(list(groups.values()))) if groups else None,
        mean_length=float(np.sum(episodes.lengths) / filled) if filled else None,
        group_returns=groups,
        out=out,
        reached=stopped,
    )
