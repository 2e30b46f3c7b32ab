"""Episode returns and lengths: the one place where they are counted, for every kind of environment.

They are counted from an unroll's rewards and ends, all steps at once: a running sum minus its value at the
last end before. No step of the unroll pays for it.
"""

from typing import Final, NamedTuple

import jax
import jax.numpy as jnp

from runnel.types import Array

WINDOW: Final = 100
"""`mean_return` is over this many of the newest episodes."""


class Episodes(NamedTuple):
    """Episodes in progress in E environments, and the newest that ended."""

    reward: dict[str, Array]  # by group: [E] reward so far
    length: Array  # [E] steps so far
    returns: dict[str, Array]  # by group: [WINDOW] a ring of the newest returns
    lengths: Array  # [WINDOW]
    cursor: Array  # [] where the ring's next entry goes
    filled: Array  # [] how many entries of the ring count


class Ended(NamedTuple):
    """Sums over episodes that ended."""

    count: Array  # []
    returns: dict[str, Array]  # by group: []
    length: Array  # []


def init(envs: int, groups: list[str]) -> Episodes:
    def floats(n: int) -> dict[str, Array]:
        return {group: jnp.zeros(n, jnp.float32) for group in groups}

    zero = jnp.zeros((), jnp.int32)
    lengths = jnp.zeros(WINDOW, jnp.int32)
    return Episodes(floats(envs), jnp.zeros(envs, jnp.int32), floats(WINDOW), lengths, zero, zero)


def mean_return(episodes: Episodes) -> Array:
    """[] over the newest `WINDOW` episodes and all groups; NaN before the first episode ends."""
    sums = jnp.stack([returns.sum() for returns in episodes.returns.values()])
    return jnp.where(episodes.filled > 0, sums.mean() / jnp.maximum(episodes.filled, 1), jnp.nan)


def count(episodes: Episodes, reward: dict[str, Array], done: Array) -> tuple[Episodes, Ended]:
    """Counts an unroll: `reward` by group [T, E] (the mean over the group's agents), `done` [T, E]."""
    steps, _ = done.shape
    time = jnp.arange(steps, dtype=jnp.int32)[:, None]
    latest = jax.lax.cummax(jnp.where(done, time, -1))  # [T, E] the newest end at or before t
    before = jnp.concatenate([jnp.full_like(latest[:1], -1), latest[:-1]])  # [T, E] the newest end before t

    length = jnp.where(before < 0, episodes.length + time + 1, time - before)
    running = {group: jnp.cumsum(r, axis=0) + episodes.reward[group] for group, r in reward.items()}

    def since(total: Array, end: Array) -> Array:
        """What `total` has gained since step `end`."""
        at_end = jnp.take_along_axis(total, jnp.maximum(end, 0), axis=0)
        return jnp.where(end < 0, 0.0, at_end)

    returns = {group: total - since(total, before) for group, total in running.items()}

    # Rings take the newest ends in order of (step, environment); older ones fall outside and are dropped.
    rank = jnp.cumsum(done.ravel().astype(jnp.int32))  # 1 for the first end
    total = rank[-1]
    newest = done.ravel() & (total - rank < WINDOW)
    slot = jnp.where(newest, (episodes.cursor + rank - 1) % WINDOW, WINDOW)

    def push(ring: Array, values: Array) -> Array:
        return ring.at[slot].set(values.ravel(), mode="drop")

    counted = Episodes(
        reward={g: total_[-1] - since(total_, latest[-1:])[0] for g, total_ in running.items()},
        length=jnp.where(latest[-1] < 0, episodes.length + steps, steps - 1 - latest[-1]),
        returns={group: push(episodes.returns[group], returns[group]) for group in returns},
        lengths=push(episodes.lengths, length),
        cursor=(episodes.cursor + total) % WINDOW,
        filled=jnp.minimum(episodes.filled + total, WINDOW),
    )
    ended = Ended(
        count=total,
        returns={group: jnp.where(done, value, 0.0).sum() for group, value in returns.items()},
        length=jnp.where(done, length, 0).sum(),
    )
    return counted, ended


def discounted_sum(before: Array, reward: Array, done: Array, discount: float) -> Array:
    """[B] each column's discounted reward of the episode in progress after an unroll `[T, B]`, from that before it.

    It is that of `S = reward + discount * S`, set to 0 by an episode's end, without walking through the steps.
    """
    steps, _ = reward.shape
    time = jnp.arange(steps, dtype=jnp.int32)[:, None]
    end = jnp.max(jnp.where(done, time, -1), axis=0)  # [B] the newest end, or -1
    weight = jnp.where(time > end, discount ** (steps - 1 - time).astype(reward.dtype), 0.0)
    return jnp.where(end < 0, before * discount**steps, 0.0) + (weight * reward).sum(0)
