"""Limits rollbacks to a checkpoint after values that were not finite, and changes the random numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from runnel.runtime.programs.carry import Carry

MAX_ROLLBACKS = 3
"""The number of rollbacks without progress after which a run ends."""


@dataclass
class NanRollback:
    """Counts the rollbacks of a run since its last progress."""

    count: int = 0
    furthest: int = -1  # the latest iteration it rolled back from

    def allow(self, iteration: int, checkpoint: int) -> bool:
        """Whether to roll back once more, from `iteration` to that of the newest `checkpoint`."""
        if checkpoint > self.furthest:  # it has got further since
            self.count = 0
        self.count += 1
        self.furthest = max(self.furthest, iteration)
        return self.count <= MAX_ROLLBACKS


def with_other_seed(carry: Carry, attempt: int) -> Carry:
    """A carry that continues with other random numbers; the same ones if `attempt` is 0."""
    seed: Any = np.asarray(carry.seed)
    return carry._replace(seed=((seed.astype(np.uint64) + attempt * 0x9E3779B9) % 2**32).astype(seed.dtype))
