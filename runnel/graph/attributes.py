"""The class attributes of an algorithm, which no dataclass checks: refused where the run-time cannot use them."""

from __future__ import annotations

import numbers
from typing import Any

from runnel.algorithm import Algorithm, algorithm_name
from runnel.errors import UserError
from runnel.types import Box, Discrete, MultiDiscrete

WHOLE = {
    "max_staleness": (0, "how many versions old a sample may be"),
    "reuses": (1, "how often an unroll may be learnt from"),
}
"""By attribute: the least that it may be, and what it says."""


def check_attributes(algorithm: Algorithm) -> None:
    """Refuses the attributes of an algorithm of one group."""
    name, actions = algorithm_name(algorithm), algorithm.actions
    if not isinstance(actions, tuple) or not all(map(_is_action, actions)):
        raise UserError(
            f"{name}: found actions={_shown(actions)}, expected a tuple of classes from `runnel`, such as "
            "actions = (Discrete,)"
        )
    for attribute, (least, meaning) in WHOLE.items():
        value = getattr(algorithm, attribute)
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
            raise UserError(f"{name}: found {attribute}={value!r}, expected a whole number, {least} or more: {meaning}")


def _is_action(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Discrete | MultiDiscrete | Box)


def _shown(actions: Any) -> str:
    return actions.__name__ if isinstance(actions, type) else repr(actions)
