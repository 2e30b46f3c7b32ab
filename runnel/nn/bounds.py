"""Bounded actions in units, in which their space reaches from -1 to 1.

Policies output these units, critics take them as input, and noise is measured in them, so that the same settings suit
torques of 0.4 and of 40. An action in units is flat, `[n]`; the environment's action has the shape of its space.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from runnel.errors import UserError
from runnel.nn.heads import ENORMOUS
from runnel.ops.precision import default_float
from runnel.types import Array, Box


@dataclass(frozen=True)
class Bounds:
    """The bounds of a `Box`."""

    shape: tuple[int, ...]
    low: tuple[float, ...]  # of each element, flattened
    high: tuple[float, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def action(self, unit: Array) -> Array:
        """The environment's action for one in units; beyond the bounds it is clipped."""
        low, high, centre, reach = self._arrays()
        return jnp.clip(centre + reach * unit, low, high).astype(jnp.float32).reshape(self.shape)

    def unit(self, action: Array) -> Array:
        """[n] the environment's action in units; 0 in an element that has no choice."""
        _, _, centre, reach = self._arrays()
        scale = np.where(reach > 0, reach, 1.0)
        return (jnp.ravel(action).astype(default_float()) - centre) / scale

    def _arrays(self) -> tuple[np.ndarray, ...]:
        low, high = np.asarray(self.low, default_float()), np.asarray(self.high, default_float())
        return low, high, (high + low) / 2, (high - low) / 2


def bounds_of(space: Box, algorithm: str) -> Bounds:
    """The bounds of an action space; refuses one without bounds."""
    low, high = (np.broadcast_to(np.asarray(x, np.float64), space.shape).ravel() for x in (space.low, space.high))
    if not (np.issubdtype(space.dtype, np.floating) and space.bounded and np.all(high - low < ENORMOUS)):
        least, most = (f"{x:g}" for x in (low.min(initial=np.inf), high.max(initial=-np.inf)))
        raise UserError(
            f"{algorithm}: found {np.dtype(space.dtype)} actions from {least} to {most}, expected real numbers "
            f"within bounds; give its action space finite bounds, or choose another algorithm, such as ppo"
        )
    return Bounds(tuple(space.shape), tuple(low.tolist()), tuple(high.tolist()))
