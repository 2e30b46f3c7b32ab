"""The parts of a plan's picture: boxes and labels, how large they are, and what is written on them."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from runnel.planning.placed import CutEdge, PlacedFragment, human_bytes, plural
from runnel.planning.shapes import Shape, rect, text_width, write

MARGIN: Final = 28
PAD: Final = 16
LINE: Final = 17
CHIP: Final = 26
SHADOW: Final = 6
LOOP: Final = 26
WRAP: Final = 30
"""Characters of an edge's contents on a line."""
MANNER_WRAP: Final = 44
"""Characters of an edge's synchronisation on a line, which are smaller."""
HOSTS: Final = 4
"""How many lines of machines a box has at most."""

STRIP: Final = 8
MOST_STRIPS: Final = 32
"""Of more workers a box shows the mean alone."""


@dataclass(frozen=True)
class MeasuredEdge(CutEdge):
    """A cut edge, and what was measured of it."""

    measured: str = ""


@dataclass
class FragmentBox:
    """A fragment and where it stands."""

    fragment: PlacedFragment
    loops: list[MeasuredEdge]
    hosts: list[str]  # of its workers; empty where there is one machine
    busy: list[float]  # of its workers, as far as it was measured
    x: float = 0
    y: float = 0
    width: float = 0
    height: float = 0

    @property
    def shadow(self) -> float:
        """How far the replicas behind the first stick out."""
        return SHADOW * min(2, self.fragment.replicas - 1)

    @property
    def title(self) -> str:
        replicas = self.fragment.replicas
        return self.fragment.name + (f" \N{MULTIPLICATION SIGN} {replicas}" if replicas > 1 else "")

    @property
    def facts(self) -> list[str]:
        """How it runs, on what, and its share of the environments."""
        fragment = self.fragment
        devices = list(dict.fromkeys(device for placed in fragment.devices for device in placed))
        shown = ", ".join(devices[:3]) + (f" and {len(devices) - 3} more" if len(devices) > 3 else "")
        facts = ["one XLA program" if fragment.compiled else "process loop", f"on {shown}"]
        if fragment.environments:
            first, end = fragment.environments[0]
            facts.append(plural(end - first, "environment") + (" each" if fragment.replicas > 1 else ""))
            if fragment.env_splits > 1:
                facts.append(f"in {fragment.env_splits} splits")
        return [*facts, *self.places, *([_busy(self.busy)] if self.busy else [])]

    @property
    def strip(self) -> float:
        """Room for the strip of busy shares."""
        return STRIP + 6 if 0 < len(self.busy) <= MOST_STRIPS else 0

    @property
    def places(self) -> list[str]:
        """The machines its workers run on, and how many on each."""
        counts = Counter(self.hosts)
        if len(counts) < 2:
            return [f"at {host}" for host in counts]
        shown = [f"{count} at {host}" for host, count in counts.items()]
        if len(shown) <= HOSTS:
            return shown
        rest = list(counts.values())[HOSTS - 1 :]
        return [*shown[: HOSTS - 1], f"{sum(rest)} at {len(rest)} other machines"]

    def least_size(self) -> tuple[float, float]:
        words = [text_width(text) for text in (*self.facts, *self.fragment.nodes)]
        width = max(150, text_width(self.title, 16, bold=True), *words) + 2 * PAD
        return width, PAD + 22 + LINE * len(self.facts) + self.strip + 10 + (CHIP + 6) * len(
            self.fragment.nodes
        ) + PAD - 6

    def above(self) -> float:
        """Room for its loops and the replicas behind it."""
        return self.shadow + sum(LOOP + label_height(cut) for cut in self.loops)


@dataclass
class EdgeLabel:
    """What an edge carries, how, and how much."""

    cut: MeasuredEdge
    x: float  # its middle
    y: float  # the top of its first line

    @property
    def right(self) -> float:
        return self.x + label_width(self.cut) / 2

    @property
    def bottom(self) -> float:
        return self.y + label_height(self.cut)

    def draw(self) -> Iterable[Shape]:
        width, height = label_width(self.cut), label_height(self.cut) - 4
        yield rect(self.x - width / 2, self.y, width, height, 0, "#ffffff", "none")
        for i, line in enumerate(_contents(self.cut)):
            yield write(self.x, self.y + LINE * i + 12, line, bold=True, anchor="middle")
        y = self.y + LINE * len(_contents(self.cut)) + 11
        for i, line in enumerate(_manner(self.cut)):
            yield write(self.x, y + 15 * i, line, 11, anchor="middle", colour="#555555")


def _contents(cut: MeasuredEdge) -> list[str]:
    return textwrap.wrap(", ".join(cut.what), WRAP, break_long_words=False)


def _manner(cut: MeasuredEdge) -> list[str]:
    how = textwrap.wrap(f"{cut.pattern}, {cut.synchronisation}", MANNER_WRAP, break_long_words=False)
    measured = textwrap.wrap(cut.measured, MANNER_WRAP)
    return [*how, f"{human_bytes(cut.bytes_per_iteration)} an iteration", *measured]


def label_width(cut: MeasuredEdge) -> float:
    words = [text_width(line, bold=True) for line in _contents(cut)] + [text_width(line, 11) for line in _manner(cut)]
    return max(words) + 8


def label_height(cut: MeasuredEdge) -> float:
    return LINE * len(_contents(cut)) + 15 * len(_manner(cut)) + 4


def _busy(shares: Sequence[float]) -> str:
    """`busy 93%`, or from the least to the most busy worker."""
    low, high = f"{min(shares):.0%}", f"{max(shares):.0%}"
    return f"busy {low}" if low == high else f"busy {low} to {high}"
