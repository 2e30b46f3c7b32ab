"""The blocks that the columns of a batch form, so that training is the same however many learners share them.

A minibatch takes an equal share of every block: see `minibatches`. Learners take whole blocks, so that their number
divides that of the blocks. Imports no JAX: plans are checked with it.
"""

from typing import Final

BLOCKS: Final = (8, 4, 2, 1)
"""How many blocks, the best first: as many devices as divide it can share the columns."""


def block_count(columns: int) -> int:
    """How many blocks so many columns, one for each environment, form."""
    return next(count for count in BLOCKS if columns % count == 0)
