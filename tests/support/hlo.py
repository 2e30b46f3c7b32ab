"""What a compiled program does, read from its text."""

import re

import numpy as np

COLLECTIVE = re.compile(r"= (.*?) (all-reduce|all-gather|all-to-all|collective-\w+|reduce-scatter)(?:-start)?\(")
ARRAY = re.compile(r"([a-z]+)(\d*)\[([\d,]*)\]")


def array_bytes(text: str) -> int:
    """The bytes of all arrays that a piece of HLO names: `f32[64,4]`."""
    sizes = [
        int(np.prod([int(n) for n in shape.split(",") if n])) * max(1, int(bits or 8) // 8)
        for _, bits, shape in ARRAY.findall(text)
    ]
    return sum(sizes)


def collectives(text: str) -> list[tuple[str, int]]:
    """The kind and the bytes of everything that crosses between devices."""
    return [(kind, array_bytes(what)) for what, kind in COLLECTIVE.findall(text)]
