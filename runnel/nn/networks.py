"""Networks from one observation to a vector of features.

A network is any object with these two functions, such as a linen module, or a user's own two functions in
`Network(init, apply)`.

    params = network.init(key, observation)
    features = network.apply(params, observation)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen

from runnel.config import serialization
from runnel.errors import UserError, a
from runnel.ops.precision import compute_dtype, default_float
from runnel.types import Array, Box, Discrete, Leaf, MultiDiscrete, PyTree, Space, channel_axis

Activation = Literal["tanh", "relu"]


class Network(NamedTuple):
    """A user's own network: two functions of one observation."""

    init: Callable[[Array, PyTree], PyTree]
    apply: Callable[[PyTree, PyTree], Array]


def last_dtype() -> Any:
    """The dtype that last layers compute in: values of 50 in bfloat16 would differ by a quarter."""
    return default_float()


def dense(size: int, scale: float = math.sqrt(2.0), name: str | None = None, last: bool = False) -> linen.Dense:
    """A layer with orthogonal weights, which preserve the norm of their inputs. `last`: its outputs are values, or
    parameters of a distribution."""
    dtype = last_dtype() if last else compute_dtype()
    return linen.Dense(
        size, kernel_init=linen.initializers.orthogonal(scale), dtype=dtype, param_dtype=default_float(), name=name
    )  # fmt: skip


def product(x: Array, kernel: Array, last: bool = False) -> Array:
    """The matrix product, in the dtype that networks compute in; `last` as for `dense`."""
    dtype = last_dtype() if last else compute_dtype()
    return x.astype(dtype) @ kernel.astype(dtype)


def widened(x: Any) -> Array:
    """A network's outputs in the dtype of parameters and losses."""
    return x.astype(default_float())


class MLP(linen.Module):
    """Layers of `hidden` sizes, each followed by its activation; flattens its input."""

    hidden: Sequence[int] = (64, 64)
    activation: Activation = "tanh"

    @linen.compact
    def __call__(self, x: Array) -> Array:
        activation = jnp.tanh if self.activation == "tanh" else jax.nn.relu
        x = jnp.ravel(x).astype(compute_dtype())
        for size in self.hidden:
            x = activation(dense(size)(x))
        return x


class NatureCNN(linen.Module):
    """The three convolutions and one layer of Mnih et al. (2015). Takes an image `[H, W, C]`."""

    features: int = 512

    @linen.compact
    def __call__(self, image: Array) -> Array:
        x = image.astype(compute_dtype())
        for channels, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            convolution = linen.Conv(
                channels, (kernel, kernel), (stride, stride), padding="VALID",
                kernel_init=linen.initializers.orthogonal(math.sqrt(2.0)), dtype=compute_dtype(),
                param_dtype=default_float(),
            )  # fmt: skip
            x = jax.nn.relu(convolution(x))
        return jax.nn.relu(dense(self.features)(jnp.ravel(x)))


class MinAtarCNN(linen.Module):
    """The 3 x 3 convolution and the layer of Young and Tian (2019), for games on a small grid `[H, W, C]`."""

    channels: int = 16
    features: int = 128

    @linen.compact
    def __call__(self, grid: Array) -> Array:
        # Written as a product with the nine cells around each: XLA's convolutions take a CPU several times as long.
        rows, columns = grid.shape[0] - 2, grid.shape[1] - 2
        cells = [grid[i : i + rows, j : j + columns] for i in range(3) for j in range(3)]
        x = jax.nn.relu(dense(self.channels)(jnp.concatenate(cells, -1).astype(compute_dtype())))
        return jax.nn.relu(dense(self.features)(jnp.ravel(x)))


@dataclass(frozen=True)
class OneHot:
    """Integers as one-hot vectors."""

    sizes: tuple[int, ...]

    def __call__(self, x: Array) -> Array:
        numbers = jnp.atleast_1d(x)
        parts = [jax.nn.one_hot(numbers[i], n, dtype=compute_dtype()) for i, n in enumerate(self.sizes)]
        return jnp.concatenate(parts)


@dataclass(frozen=True)
class Flat:
    """Numbers in a flat vector; bytes scaled to [0, 1]."""

    scale: float = 1.0

    def __call__(self, x: Array) -> Array:
        return jnp.ravel(x).astype(compute_dtype()) * self.scale


@dataclass(frozen=True)
class Image:
    """An image as `[H, W, C]`; bytes scaled to [0, 1]."""

    channels_first: bool
    scale: float

    def __call__(self, x: Array) -> Array:
        x = x[..., None] if x.ndim == 2 else x
        x = jnp.moveaxis(x, 0, -1) if self.channels_first else x
        return x.astype(compute_dtype()) * self.scale


Encoding = OneHot | Flat | Image


def encoding_of(leaf: Leaf) -> Encoding:
    """The encoder of one part of an observation."""
    if isinstance(leaf, Discrete):
        return OneHot((leaf.n,))
    if isinstance(leaf, MultiDiscrete):
        return OneHot(tuple(leaf.sizes))
    scale = 1.0 / float(np.max(leaf.high)) if leaf.dtype == np.uint8 else 1.0
    axis = channel_axis(leaf)
    return Flat(scale) if axis is None else Image(axis == 0, scale)


class SpaceNetwork(linen.Module):
    """Encodes each part of an observation by its kind, and concatenates them.

    Images pass through a `NatureCNN`. If the observation is one image, that is all; otherwise the concatenation passes
    through an `MLP`.
    """

    encodings: tuple[Encoding, ...]  # one for each leaf of the observation, in JAX's order
    hidden: Sequence[int] = (64, 64)
    activation: Activation = "tanh"

    @linen.compact
    def __call__(self, observation: PyTree) -> Array:
        leaves = jax.tree.leaves(observation)
        encoded = [encoding(x) for encoding, x in zip(self.encodings, leaves, strict=True)]
        pairs = zip(self.encodings, encoded, strict=True)
        parts = [NatureCNN()(x) if isinstance(encoding, Image) else x for encoding, x in pairs]
        if len(parts) == 1 and isinstance(self.encodings[0], Image):
            return parts[0]
        return MLP(self.hidden, self.activation)(jnp.concatenate(parts))


def network_for(space: Space, hidden: Sequence[int] = (64, 64), activation: Activation = "tanh") -> SpaceNetwork:
    """The built-in network for observations of this space."""
    encodings = tuple(encoding_of(leaf) for leaf in jax.tree.leaves(space))
    return SpaceNetwork(encodings, tuple(hidden), activation)


def is_image(space: Space) -> bool:
    """Whether an observation is one image and nothing else."""
    return isinstance(space, Box) and isinstance(encoding_of(space), Image)


def resolve(network: Any, space: Space, hidden: Sequence[int], activation: Activation) -> Any:
    """The network that a setting names: None is the built-in one, a string `package.module:name`, otherwise the object
    itself."""
    if network is None:
        return network_for(space, hidden, activation)
    found = network
    if isinstance(network, str):
        try:
            found = serialization.import_object(network)
        except UserError as error:
            raise UserError(f"network='{network}' cannot be imported ({error}); write package.module:name") from None
    found = found() if isinstance(found, type) else found  # a class of linen modules, with its defaults
    if not (callable(getattr(found, "init", None)) and callable(getattr(found, "apply", None))):
        raise UserError(
            f"network is {a(found)}; it must have `init(key, observation)` and "
            "`apply(params, observation)`, such as runnel.nn.Network(init, apply)"
        )
    return found
