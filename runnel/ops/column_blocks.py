"""The column blocks of a batch, so that training is the same however many learners share them.

A minibatch takes an equal share of every block: see `minibatches`. Learners take whole blocks, each as many as the
others, so that their number divides that of the blocks. Plain arithmetic without JAX.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from runnel.errors import UserError

ENOUGH_COLUMNS = 8
"""The fewest whole columns of a minibatch: the steps of a column are correlated, and few columns are a poor sample."""

SHOWN = 8
"""The number of choices that an error lists."""


class ColumnBlocks(NamedTuple):
    """A division of a batch into minibatches."""

    columns: int
    minibatches: int
    number: int  # of column blocks


def column_block_layout(steps: int, columns: int, minibatches: int, sequences: bool) -> tuple[int, bool]:
    """The number of column blocks, and whether minibatches take whole columns of them.

    Column blocks are as small as an equal share for every minibatch allows, and so as many as possible.
    """
    enough = minibatches == 1 or columns // minibatches >= ENOUGH_COLUMNS
    if columns % minibatches == 0 and (sequences or enough):
        return columns // minibatches, True
    if sequences:
        raise UserError(
            f"{minibatches} minibatches of whole sequences cannot be cut from {columns} environments; "
            f"use a number of environments that divides by {minibatches}, or fewer minibatches"
        )
    if steps * columns % minibatches:
        raise UserError(
            f"{minibatches} minibatches cannot be cut evenly from {steps} steps of {columns} environments; "
            f"make their product a multiple of {minibatches} (unroll, envs), or take fewer minibatches"
        )
    return columns // (minibatches // math.gcd(minibatches, steps)), False


def column_block_count(envs: int, batches: Sequence[ColumnBlocks]) -> int:
    """The number of column blocks that `envs` environments form for all of these batches."""
    return math.gcd(envs, *(batch.number for batch in batches))


def envs_for(learners: int, envs: int, batches: Sequence[ColumnBlocks]) -> int:
    """The smallest number of environments that `learners` can share; any multiple works too."""
    found = learners
    for batch in batches:
        whole = learners * batch.minibatches  # columns: each learner has a block, of steps or of whole columns
        found = math.lcm(found, whole * envs // math.gcd(whole * envs, batch.columns))
    return found


def divisors(number: int) -> list[int]:
    low = [k for k in range(1, math.isqrt(number) + 1) if number % k == 0]
    return sorted({*low, *(number // k for k in low)})


def learners_in_words(counts: Sequence[int], found: int = 1) -> str:
    """Numbers of learners that work, in words; if they are many, those around `found`."""
    if len(counts) <= SHOWN:
        return _listed(counts)
    below, above = [k for k in counts if k <= found][-2:], [k for k in counts if k > found][:2]
    return f"{_listed([*below, *above])} (or another divisor of {counts[-1]})"


def _listed(numbers: Sequence[int]) -> str:
    words = [str(number) for number in numbers]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
