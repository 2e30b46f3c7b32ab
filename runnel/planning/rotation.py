"""Which iterations a replica takes, where several take whole iterations one after another. Without JAX."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rotation:
    """One of `size` replicas that take iterations in rotation: it takes iterations i with `i % size == place`."""

    place: int = 0
    size: int = 1

    def takes(self, iteration: int) -> bool:
        return iteration % self.size == self.place


EVERY = Rotation()
"""Of a replica that takes every iteration."""
