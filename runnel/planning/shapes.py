"""What pictures of plans are made of: rectangles, texts and arrows, as data and as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

FONT: Final = 13


@dataclass(frozen=True)
class Shape:
    """An element of SVG. Its text is plain; what writes it into a page or a file escapes it."""

    tag: str  # rect, text or path
    attributes: dict[str, str]
    text: str = ""

    def svg(self) -> str:
        """The element, as text of an SVG file."""
        attributes = " ".join(f'{name}="{value}"' for name, value in self.attributes.items())
        return f"<{self.tag} {attributes}/>" if self.tag != "text" else f"<text {attributes}>{escape(self.text)}</text>"

    def json(self) -> list[object]:
        return [self.tag, self.attributes, self.text]


def write(
    x: float,
    y: float,
    words: str,
    size: float = FONT,
    *,
    bold: bool = False,
    anchor: str = "start",
    colour: str = "#1d2127",
) -> Shape:
    weight = {"font-weight": "bold"} if bold else {}
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor, "font-size": f"{size}"}
    return Shape("text", {**place, **weight, "fill": colour}, words)


def rect(x: float, y: float, width: float, height: float, radius: float, fill: str, stroke: str) -> Shape:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{width:.1f}", "height": f"{height:.1f}", "rx": f"{radius}"}
    return Shape("rect", {**place, "fill": fill, "stroke": stroke})


def arrow(points: Sequence[tuple[float, float]]) -> Shape:
    path = " L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    stroke = {"fill": "none", "stroke": "#444444", "stroke-width": "1.4", "marker-end": "url(#head)"}
    return Shape("path", {"d": f"M{path}", **stroke})


def text_width(words: str, size: float = FONT, bold: bool = False) -> float:
    """An upper estimate of the width in Helvetica."""
    return len(words) * size * (0.6 if bold else 0.55)
