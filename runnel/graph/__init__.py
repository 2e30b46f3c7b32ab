"""An algorithm's loop as a typed dataflow graph."""

from typing import Any

from runnel import deprecated


def __getattr__(name: str) -> Any:
    return deprecated.attribute_of_package(__name__, name)
