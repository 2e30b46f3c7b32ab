"""Heads: from features to a distribution over actions, for each kind of action space.

A distribution is a NamedTuple of arrays, so it passes through `vmap` and `scan`. All have `sample(key)`, `mode()`,
`log_prob(sample)` and `entropy()`; those over categories also `masked(legal)`. These three short classes replace those
of distrax: all three share one interface, and one is a vector of categories of unequal sizes.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen

from runnel.nn.networks import dense, widened
from runnel.ops import random
from runnel.ops.precision import default_float
from runnel.types import Array, Discrete, Leaf, MultiDiscrete, PyTree

POLICY_SCALE = 0.01
"""The scale of a policy's last layer at first: small, so that the policy starts near uniform."""


ENORMOUS = 1e6
"""The bound beyond which an action space counts as unbounded: environments write infinity in many ways."""

ILLEGAL = -1e9
"""The logit of an illegal action: its probability is 0, and so, unlike infinity's, are its entropy and gradients."""


class Categorical(NamedTuple):
    """One of n categories."""

    logits: Array  # [..., n]
    legal: Array | None = None  # [..., n] where some of them are not to be drawn

    def masked(self, legal: Array) -> Categorical:
        """The distribution over the legal categories, of which there is at least one."""
        return Categorical(jnp.where(legal, self.logits, ILLEGAL), legal)

    def sample(self, key: Array) -> Array:
        """Samples by inverting the cumulative distribution at one random number."""
        rows = self.logits.shape[:-1]
        drawn = jax.random.uniform(key, rows, jnp.float32) if rows else random.uniform(key)
        weights = jnp.exp(self.logits - self.logits.max(-1, keepdims=True))
        ends = jnp.cumsum(weights, -1)
        if self.legal is not None:
            # Sums differ in their last bits by the order they are taken in: that must not let an illegal one in.
            ends = jnp.where(self.legal, ends, -1.0)
            reached = ends >= drawn[..., None].astype(ends.dtype) * ends.max(-1, keepdims=True)
            return jnp.argmax(reached, -1).astype(jnp.int32)
        passed = ends[..., :-1] <= drawn[..., None].astype(ends.dtype) * ends[..., -1:]
        return jnp.sum(passed, -1, dtype=jnp.int32)

    def mode(self) -> Array:
        return jnp.argmax(self.logits, -1).astype(jnp.int32)

    def log_prob(self, sample: Array) -> Array:
        # A product with a one-hot vector instead of indexing: its gradient needs no scatter.
        chosen = jax.nn.one_hot(sample, self.logits.shape[-1], dtype=self.logits.dtype)
        return jnp.sum(jax.nn.log_softmax(self.logits) * chosen, -1)

    def entropy(self) -> Array:
        log_probs = jax.nn.log_softmax(self.logits)
        return -jnp.sum(jnp.exp(log_probs) * log_probs, -1)


class MultiCategorical(NamedTuple):
    """A vector of independent categories, each of its own number."""

    parts: tuple[Categorical, ...]

    def masked(self, legal: Array) -> MultiCategorical:
        """The distribution over the legal categories, `[..., n]` of all parts concatenated; each part has at least
        one."""
        sizes = [part.logits.shape[-1] for part in self.parts]
        each = jnp.split(legal, np.cumsum(sizes)[:-1], -1)
        return MultiCategorical(tuple(part.masked(mask) for part, mask in zip(self.parts, each, strict=True)))

    def sample(self, key: Array) -> Array:
        keys = jax.random.split(key, len(self.parts))
        return jnp.stack([part.sample(keys[i]) for i, part in enumerate(self.parts)], -1)

    def mode(self) -> Array:
        return jnp.stack([part.mode() for part in self.parts], -1)

    def log_prob(self, sample: Array) -> Array:
        return sum(part.log_prob(sample[..., i]) for i, part in enumerate(self.parts))  # type: ignore[return-value]

    def entropy(self) -> Array:
        return sum(part.entropy() for part in self.parts)  # type: ignore[return-value]


class Gaussian(NamedTuple):
    """A vector of independent normal numbers."""

    mean: Array  # [..., n]
    log_std: Array  # [..., n]

    def sample(self, key: Array) -> Array:
        noise = jax.random.normal(key, self.mean.shape, self.mean.dtype)
        return self.mean + jnp.exp(self.log_std) * noise

    def mode(self) -> Array:
        return self.mean

    def log_prob(self, sample: Array) -> Array:
        z = (sample - self.mean) * jnp.exp(-self.log_std)
        return jnp.sum(-0.5 * z**2 - self.log_std - 0.5 * math.log(2 * math.pi), -1)

    def entropy(self) -> Array:
        return jnp.sum(self.log_std + 0.5 * math.log(2 * math.pi * math.e), -1)


ActionDistribution = Categorical | MultiCategorical | Gaussian


class Head(Protocol):
    """The last layer of a policy: the distribution that samples are drawn from, and the action for a sample."""

    clips: ClassVar[bool]
    """Whether the action may be a clipped sample, from which the sample cannot be recovered."""

    def init(self, key: Array, features: Array) -> PyTree: ...

    def apply(self, params: PyTree, features: Array) -> Any: ...

    def read(self, params: PyTree, outputs: Array) -> Any:
        """The distribution, given the output of the one dense layer of `params`."""
        ...

    def action(self, sample: Array) -> Array: ...


class DiscreteHead(linen.Module):
    """A policy over whole numbers below `n`."""

    n: int
    clips: ClassVar[bool] = False

    @linen.compact
    def __call__(self, features: Array) -> Categorical:
        return self.read({}, widened(dense(self.n, POLICY_SCALE, last=True)(features)))

    def read(self, params: PyTree, outputs: Array) -> Categorical:
        del params
        return Categorical(outputs)

    def action(self, sample: Array) -> Array:
        return sample


class MultiDiscreteHead(linen.Module):
    """A policy over vectors of whole numbers, element i below `sizes[i]`."""

    sizes: tuple[int, ...]
    clips: ClassVar[bool] = False

    @linen.compact
    def __call__(self, features: Array) -> MultiCategorical:
        return self.read({}, widened(dense(sum(self.sizes), POLICY_SCALE, last=True)(features)))

    def read(self, params: PyTree, outputs: Array) -> MultiCategorical:
        del params
        parts = jnp.split(outputs, np.cumsum(self.sizes)[:-1], -1)
        return MultiCategorical(tuple(Categorical(part) for part in parts))

    def action(self, sample: Array) -> Array:
        return sample


class BoxHead(linen.Module):
    """A Gaussian policy whose deviation does not depend on the state.

    It samples in units in which a bounded action space reaches from -1 to 1, so that one initial deviation suits
    torques of 0.4 and of 40. A sample beyond the bounds is clipped in the action only, because its log-probability must
    be that of the unclipped sample.
    """

    shape: tuple[int, ...]
    low: tuple[float, ...]  # of each element, flattened
    high: tuple[float, ...]
    clips: ClassVar[bool] = True

    @linen.compact
    def __call__(self, features: Array) -> Gaussian:
        size = math.prod(self.shape)
        log_std = self.param("log_std", linen.initializers.zeros, (size,), default_float())
        return self.read({"log_std": log_std}, widened(dense(size, POLICY_SCALE, last=True)(features)))

    def read(self, params: PyTree, outputs: Array) -> Gaussian:
        return Gaussian(outputs, params["log_std"])

    def action(self, sample: Array) -> Array:
        low, high = np.asarray(self.low), np.asarray(self.high)
        bounded = high - low < ENORMOUS
        unit_low, unit_high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
        centre, reach = (unit_high + unit_low) / 2, (unit_high - unit_low) / 2
        return jnp.clip(centre + reach * sample, low, high).astype(jnp.float32).reshape(self.shape)


def head_for(space: Leaf) -> Any:
    """The policy head for actions of this space."""
    if isinstance(space, Discrete):
        return DiscreteHead(space.n)
    if isinstance(space, MultiDiscrete):
        return MultiDiscreteHead(tuple(space.sizes))
    low, high = (np.broadcast_to(np.asarray(x, np.float64), space.shape).ravel() for x in (space.low, space.high))
    return BoxHead(tuple(space.shape), tuple(low.tolist()), tuple(high.tolist()))
