"""Episode returns and lengths, counted in one place for every kind of environment.

They are computed from an unroll's rewards and ends, all steps at once: a running sum minus its value at the last end
before. So the steps of the unroll cost nothing extra.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from runnel.ops.episode_window import WINDOW
from runnel.types import Array


class Running(NamedTuple):
    """Episodes in progress in E environments."""

    reward: dict[str, Array]  # by group: [E] reward so far
    length: Array  # [E] steps so far


class Window(NamedTuple):
    """The newest episodes that ended."""

    returns: dict[str, Array]  # by group that learns: [WINDOW] a ring of the newest; NaN where it did not play
    lengths: Array  # [WINDOW]
    cursor: Array  # [] where the ring's next entry goes
    filled: Array  # [] how many entries of the ring count


class Finished(NamedTuple):
    """Episodes that ended in an unroll: 0 where none ended."""

    returns: dict[str, Array]  # by group: [T, E]; NaN where it does not play
    lengths: Array  # [T, E]
    env: dict[str, Array] = {}  # noqa: RUF012  (never changed) metrics of the environment: see `env_metrics.summed`


def begin(envs: int, groups: list[str]) -> Running:
    return Running({group: jnp.zeros(envs, jnp.float32) for group in groups}, jnp.zeros(envs, jnp.int32))


def empty_window(groups: list[str]) -> Window:
    zero = jnp.zeros((), jnp.int32)
    returns = {group: jnp.zeros(WINDOW, jnp.float32) for group in groups}
    return Window(returns, jnp.zeros(WINDOW, jnp.int32), zero, zero)


def mean_return(window: Window) -> Array:
    """[] the mean return over the newest `WINDOW` episodes and all groups; NaN before the first episode ends."""
    sums = jnp.stack([jnp.nansum(returns) for returns in window.returns.values()])
    counts = jnp.stack([window.filled - jnp.isnan(returns).sum() for returns in window.returns.values()])
    return jnp.nanmean(jnp.where(counts > 0, sums / jnp.maximum(counts, 1), jnp.nan))


def count(running: Running, reward: dict[str, Array], done: Array) -> tuple[Running, Finished]:
    """Counts an unroll: `reward` by group [T, E] (the mean over the group's agents), `done` [T, E]."""
    steps, _ = done.shape
    time = jnp.arange(steps, dtype=jnp.int32)[:, None]
    latest = jax.lax.cummax(jnp.where(done, time, -1))  # [T, E] the newest end at or before t
    before = jnp.concatenate([jnp.full_like(latest[:1], -1), latest[:-1]])  # [T, E] the newest end before t

    length = jnp.where(before < 0, running.length + time + 1, time - before)
    # Values that are not finite are dropped: a running sum would carry them into all later episodes.
    reward = {group: jnp.where(jnp.isfinite(r), r, 0.0) for group, r in reward.items()}
    totals = {group: jnp.cumsum(r, axis=0) + running.reward[group] for group, r in reward.items()}

    def since(total: Array, end: Array) -> Array:
        """The increase of `total` since step `end`."""
        at_end = jnp.take_along_axis(total, jnp.maximum(end, 0), axis=0)
        return jnp.where(end < 0, 0.0, at_end)

    counted = Running(
        reward={group: total[-1] - since(total, latest[-1:])[0] for group, total in totals.items()},
        length=jnp.where(latest[-1] < 0, running.length + steps, steps - 1 - latest[-1]),
    )
    finished = Finished(
        returns={group: jnp.where(done, total - since(total, before), 0.0) for group, total in totals.items()},
        lengths=jnp.where(done, length, 0),
    )
    return counted, finished


def push(window: Window, finished: Finished) -> tuple[Window, Array]:
    """Writes the newest episodes into the rings in order of (step, environment); also returns their number."""
    done = finished.lengths.ravel() > 0
    rank = jnp.cumsum(done.astype(jnp.int32))  # 1 for the first end
    total = rank[-1]
    newest = done & (total - rank < WINDOW)  # older ones fall outside and are dropped
    slot = jnp.where(newest, (window.cursor + rank - 1) % WINDOW, WINDOW)

    def into(ring: Array, values: Array) -> Array:
        return ring.at[slot].set(values.ravel(), mode="drop")

    pushed = Window(
        returns={group: into(ring, finished.returns[group]) for group, ring in window.returns.items()},
        lengths=into(window.lengths, finished.lengths),
        cursor=(window.cursor + total) % WINDOW,
        filled=jnp.minimum(window.filled + total, WINDOW),
    )
    return pushed, total


def discounted_sum(before: Array, reward: Array, done: Array, discount: float) -> Array:
    """[B] each column's discounted reward of the episode in progress after an unroll `[T, B]`, from that before it.

    It equals the recursion `S = reward + discount * S`, set to 0 by an episode's end, without a loop over the steps.
    """
    steps, _ = reward.shape
    time = jnp.arange(steps, dtype=jnp.int32)[:, None]
    end = jnp.max(jnp.where(done, time, -1), axis=0)  # [B] the newest end, or -1
    counts = (time > end) & jnp.isfinite(reward)
    weighted = jnp.where(counts, discount ** (steps - 1 - time).astype(reward.dtype) * reward, 0.0)
    return jnp.where(end < 0, before * discount**steps, 0.0) + weighted.sum(0)
