"""How numbers, rates and times are written, wherever a person reads them."""

from __future__ import annotations

import math
from collections.abc import Mapping


def short(value: float) -> str:
    """A number in three digits or four."""
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e6:
        return f"{value:.2e}"
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.{max(1, 2 - math.floor(math.log10(abs(value))))}f}"


def rate(value: float) -> str:
    """`12,345`, `1.2 M`."""
    if value >= 1e6:
        return f"{value / 1e6:.1f} M"
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    """`8 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for (large, name), (small, lesser) in (
        ((86400, "d"), (3600, "h")),
        ((3600, "h"), (60, "min")),
        ((60, "min"), (1, "s")),
    ):
        if whole >= large:
            rest = whole % large // small
            return f"{whole // large} {name}" + (f" {rest} {lesser}" if rest else "")
    return f"{whole} s"


def times_each(counts: Mapping[str, int]) -> str:
    """`actor x4, learner`."""
    return ", ".join(name if count == 1 else f"{name} x{count}" for name, count in counts.items())
