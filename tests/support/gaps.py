"""How far apart arrays are. A number that is not one is never close to another, not even to itself."""

from collections.abc import Iterable, Mapping

import numpy as np


def largest_gap(found: Iterable[np.ndarray], expected: Iterable[np.ndarray]) -> float:
    """The most that two lists of arrays of the same shapes differ by; NaN where one has NaN or both have infinity."""
    gaps = []
    for one, other in zip(found, expected, strict=True):
        assert np.shape(one) == np.shape(other)
        with np.errstate(invalid="ignore"):  # infinity less infinity is NaN, as it should be
            gaps.append(np.abs(np.asarray(one, float) - np.asarray(other, float)).max(initial=0.0))
    return float(np.max(gaps))  # Python's `max` drops NaN


def beyond(gaps: Mapping[str, float], limit: float) -> dict[str, float]:
    """Those that are not within a limit; NaN is within none."""
    return {name: gap for name, gap in gaps.items() if not gap <= limit}
