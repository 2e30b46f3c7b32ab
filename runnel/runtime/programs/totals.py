"""What a stretch of training did, summed on the device and read once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from runnel.ops import episodes as ops_episodes
from runnel.ops.episode_window import WINDOW
from runnel.runtime.programs.carry import Carry, IterationMetrics
from runnel.runtime.programs.episode_sums import EpisodeSums
from runnel.runtime.programs.finite import NonFiniteCounts
from runnel.types import Array


class ReuseSums(NamedTuple):
    """How often unrolls were learnt from again."""

    repeated: int  # updates from unrolls that were learnt from before
    dropped: int  # batches that a pause let go before they were learnt from as often as asked


class ProgressDelta(NamedTuple):
    """A stretch of training, as plain numbers."""

    iterations: int
    updates: int
    episodes: int
    mean_return: float | None  # over the newest 100 episodes; None before the first ends
    mean_length: float | None
    group_returns: dict[str, float]  # by group, over the newest 100 episodes
    out: dict[str, float]  # means of what learning gave out
    reached: bool  # the return that was asked for
    env_steps: int | None = None  # None: computed from iterations
    staleness: tuple[float, int] = (0.0, 0)  # mean and most, in updates, since this process began to train
    reuse: ReuseSums = ReuseSums(0, 0)  # since this process began to train
    broken: Mapping[str, int] = MappingProxyType({})  # updates refused, by what was the first not to be finite
    env: dict[str, float] = {}  # noqa: RUF012  (never changed) metrics of the environment, over the newest 100 episodes
    learner_return: float | None = None  # the mean return as learning sees it, where the environment reports its own


def empty(metrics: Any) -> IterationMetrics:
    """Zeros of the types of `metrics`."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metrics)


def add(total: IterationMetrics, metrics: IterationMetrics) -> IterationMetrics:
    return jax.tree.map(jnp.add, total, metrics)


def window_mean(carry: Carry) -> Array:
    """[] the mean return of the newest 100 episodes; NaN before there are as many."""
    assert isinstance(carry.window, ops_episodes.Window)
    return window_mean_of(carry.window)


def window_mean_of(window: ops_episodes.Window) -> Array:
    return jnp.where(window.filled >= WINDOW, ops_episodes.mean_return(window), jnp.nan)


def read(iterations: int, total: IterationMetrics, carry: Carry, stopped: bool) -> tuple[ProgressDelta, EpisodeSums]:
    """Waits for the device and brings the sums to the host: the progress, and metrics of the environment."""
    total, window = jax.device_get((total, carry.window))
    return read_host(iterations, total, window, stopped)


def read_host(
    iterations: int, total: IterationMetrics, window: ops_episodes.Window, stopped: bool
) -> tuple[ProgressDelta, EpisodeSums]:
    """The same of what is on the host already."""
    filled = int(window.filled)
    counts = {group: filled - int(np.isnan(ring).sum()) for group, ring in window.returns.items()}
    groups = {group: float(np.nansum(window.returns[group]) / count) for group, count in counts.items() if count}
    out: dict[str, float] = {}
    for node, sums in total.out.items():
        times = int(total.updates[node])
        prefix = node.rpartition("/")[0]
        for name, value in sums.items():
            if times:
                out[f"{prefix}/{name}" if prefix else name] = float(value) / times
    progress = ProgressDelta(
        iterations=iterations,
        updates=sum(int(n) + _times(total.broken.get(node)) for node, n in total.updates.items()),
        episodes=int(total.episodes),
        mean_return=float(np.mean(list(groups.values()))) if groups else None,
        mean_length=float(np.sum(window.lengths) / filled) if filled else None,
        group_returns=groups,
        out=out,
        reached=stopped,
        broken=_broken(total.broken.values()),
    )
    return progress, sums_of(total.env)


def no_progress(window: ops_episodes.Window) -> ProgressDelta:
    """Of a stretch in which nothing was trained."""
    return read_host(0, IterationMetrics(jnp.zeros((), jnp.int32), {}, {}), window, False)[0]


def sums_of(env: Mapping[str, np.ndarray]) -> EpisodeSums:
    """Metrics of the environment that are on the host already."""
    return {name: (float(total), int(count)) for name, (total, count) in env.items() if count}


class Summed(NamedTuple):
    """Metrics of a worker, as plain numbers that add up."""

    episodes: int
    updates: dict[str, int]  # by learning node: those that were made
    out: dict[str, dict[str, float]]  # by learning node: sums over its updates
    broken: dict[str, int]  # updates refused, by what was the first not to be finite


def summed(metrics: Sequence[IterationMetrics]) -> Summed:
    """The sum of metrics that are on the host already; programs differ in the nodes they know of."""
    total = Summed(0, {}, {}, {})
    for each in metrics:
        total = total._replace(episodes=total.episodes + int(each.episodes))
        for node, times in each.updates.items():
            total.updates[node] = total.updates.get(node, 0) + int(times)
        for node, out in each.out.items():
            sums = total.out.setdefault(node, {})
            for name, value in out.items():
                sums[name] = sums.get(name, 0.0) + float(value)
    return total._replace(broken=_broken(tally for each in metrics for tally in each.broken.values()))


def _broken(tallies: Iterable[NonFiniteCounts]) -> dict[str, int]:
    """What broke, by readable name."""
    found: dict[str, int] = {}
    for tally in tallies:
        for name, times in tally.read().items():
            found[name] = found.get(name, 0) + times
    return found


def _times(tally: NonFiniteCounts | None) -> int:
    return int(tally.counts.sum()) if tally is not None else 0


def window_json(window: ops_episodes.Window) -> dict[str, Any]:
    """Sums over the newest episodes, from which several windows can be joined."""
    filled = int(window.filled)
    return {
        "filled": filled,
        "length": float(np.sum(window.lengths)),
        "returns": {group: float(np.nansum(ring)) for group, ring in window.returns.items()},
        "counts": {group: filled - int(np.isnan(ring).sum()) for group, ring in window.returns.items()},
    }
