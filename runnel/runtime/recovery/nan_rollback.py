"""Going back to a checkpoint because of numbers that were not finite: how often, and how the same does not follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from runnel.runtime.programs.carry import Carry

SETBACKS = 3
"""How often a run goes back from the same place before it ends."""


@dataclass
class NanRollback:
    """How often a run went back without coming further since."""

    count: int = 0
    furthest: int = -1  # the iteration it went back from

    def another(self, iteration: int, checkpoint: int) -> bool:
        """Whether to go back once more, from an iteration to that of the newest checkpoint."""
        if checkpoint > self.furthest:  # it has come beyond the place
            self.count = 0
        self.count += 1
        self.furthest = max(self.furthest, iteration)
        return self.count <= SETBACKS


def other_seed(carry: Carry, which: int) -> Carry:
    """A carry that goes on with other random numbers; with `which` 0 the same."""
    seed: Any = np.asarray(carry.seed)
    return carry._replace(seed=((seed.astype(np.uint64) + which * 0x9E3779B9) % 2**32).astype(seed.dtype))
