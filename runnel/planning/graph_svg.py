"""A loop's dataflow graph as a picture: a box for each node, an arrow for each edge. Plain SVG, no library.

Nodes stand side by side in the order of the loop. Edges between neighbours run straight; those that pass over a node
run above the boxes, and those that carry something back to the left run below. With a plan, a node has the colour of
its fragment, and the edges that the plan cuts are dashed. So the same graph has the same picture under every
distribution, and only colours and cuts differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from runnel.graph.nodes import Edge, Graph
    from runnel.planning.plan import Plan

MARGIN: Final = 24
BOX: Final = 44
"""The height of a node."""
LANE: Final = 44
"""The distance between two edges that run above each other."""
INK, CUT, GREY = "#3b4350", "#c0392b", "#555555"
COLOURS: Final = (
    ("#e3f4e8", "#2f8f4e"), ("#e2eefb", "#2b6cb0"), ("#fdecd9", "#b9651b"),
    ("#efe7fa", "#7447b5"), ("#e0f4f5", "#1d7f88"), ("#fde3dc", "#b5432a"),
)  # fmt: skip
"""Of the fragments, in the plan's order: a fill and its ink."""


@dataclass(frozen=True, eq=False)  # the type of what an edge carries has no hash
class _Span:
    """An edge that runs above or below the boxes, between the nodes at two places."""

    edge: Edge
    left: int
    right: int
    lane: int


def graph_svg(graph: Graph, plan: Plan | None = None) -> str:
    """The picture, as the text of an SVG file."""
    names = list(graph.nodes)
    place = {name: i for i, name in enumerate(names)}
    straight = [edge for edge in graph.edges if place[edge.target] == place[edge.source] + 1]
    above = _lanes([e for e in graph.edges if place[e.target] > place[e.source] + 1], place)
    below = _lanes([e for e in graph.edges if place[e.target] < place[e.source]], place)

    heading = f"{type(graph.algorithm).__name__} on {graph.spec.name}" + (f", {plan.distribution}" if plan else "")
    top = MARGIN + 40 + LANE * _lane_count(above)
    bottom = top + BOX
    widths = [max(_width(name), 60) + 28 for name in names]
    lefts = _lefts(names, widths, straight, [*above, *below])
    centre = [left + width / 2 for left, width in zip(lefts, widths, strict=True)]

    shapes = [_text(MARGIN, MARGIN + 10, heading, 16, bold=True)]
    for edge in straight:
        i, y = place[edge.source], top + BOX / 2
        shapes += _arrow([(lefts[i] + widths[i], y), (lefts[i + 1] - 3, y)], _cut(edge, plan))
        shapes += _label((lefts[i] + widths[i] + lefts[i + 1]) / 2, y - 8, edge, y + 16)
    for spans, rim, away in ((above, top, -1), (below, bottom, 1)):
        ports = _ports(spans, names)
        for span in spans:
            source, target = place[span.edge.source], place[span.edge.target]
            x1 = centre[source] + ports[source, span] * widths[source]
            x2 = centre[target] + ports[target, span] * widths[target]
            y = rim + away * (LANE * (span.lane + 1) - 12)
            shapes += _arrow([(x1, rim), (x1, y), (x2, y), (x2, rim + away * 3)], _cut(span.edge, plan))
            shapes += _label((x1 + x2) / 2, y - 5, span.edge, y + 13)
    for i, name in enumerate(names):
        fill, ink = _colours(name, plan)
        shapes.append(
            f'<rect x="{lefts[i]:.1f}" y="{top:.1f}" width="{widths[i]:.1f}" height="{BOX}" rx="8" '
            f'fill="{fill}" stroke="{ink}" stroke-width="1.5"/>'
        )
        shapes.append(_text(centre[i], top + BOX / 2 + 5, name, bold=True, anchor="middle", colour=ink))
    foot = bottom + LANE * _lane_count(below) + 26
    legend = list(_legend(plan, foot)) if plan else []
    height = foot + 22 * len(legend) + (0 if legend else -10)
    width = max([lefts[-1] + widths[-1], _width(heading, 16) + MARGIN, *(right for right, _ in legend)]) + MARGIN
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="Helvetica, Arial, sans-serif" role="img">',
        f"<title>{escape(heading)}</title>", _heads(), '<rect width="100%" height="100%" fill="#ffffff"/>',
        *shapes, *(text for _, text in legend), "</svg>\n",
    ])  # fmt: skip


# Placing


def _lanes(edges: Sequence[Edge], place: dict[str, int]) -> list[_Span]:
    """Gives every edge the lane nearest to the boxes that is free over its whole span; short ones first."""
    spans: list[_Span] = []
    for edge in sorted(edges, key=lambda edge: abs(place[edge.source] - place[edge.target])):
        left, right = sorted((place[edge.source], place[edge.target]))
        taken = {span.lane for span in spans if span.left < right and left < span.right}
        spans.append(_Span(edge, left, right, next(lane for lane in range(len(edges)) if lane not in taken)))
    return spans


def _lane_count(spans: Sequence[_Span]) -> int:
    return max((span.lane + 1 for span in spans), default=0)


def _ports(spans: Sequence[_Span], names: Sequence[str]) -> dict[tuple[int, _Span], float]:
    """Where an edge leaves or enters a box, as a part of its width from the middle.

    Edges to the left are on the left, and of those on one side the ones in near lanes are outside: none cross.
    """
    ports: dict[tuple[int, _Span], float] = {}
    for i in range(len(names)):
        to_left = sorted((span for span in spans if span.right == i), key=lambda span: span.lane)
        to_right = sorted((span for span in spans if span.left == i), key=lambda span: -span.lane)
        mine = [*to_left, *to_right]
        for number, span in enumerate(mine, 1):
            ports[i, span] = number / (len(mine) + 1) - 0.5
    return ports


def _lefts(
    names: Sequence[str], widths: Sequence[float], straight: Sequence[Edge], spans: Sequence[_Span]
) -> list[float]:
    """The left rims of the boxes: labels have room between neighbours, and above and below what they pass over."""
    lefts = [float(MARGIN)]
    for i in range(1, len(names)):
        between = [edge for edge in straight if edge.source == names[i - 1]]
        gap = max([_label_width(edge) + 34 for edge in between], default=40)
        left = lefts[-1] + widths[i - 1] + gap
        for span in spans:
            if span.right == i:
                least = lefts[span.left] + widths[span.left] / 2 + _label_width(span.edge) + 20
                left = max(left, least - widths[i] / 2)
        lefts.append(left)
    return lefts


# Words and strokes


def _cut(edge: Edge, plan: Plan | None) -> bool:
    """Whether an edge goes from one fragment to another."""
    return plan is not None and plan.home(edge.source) is not plan.home(edge.target)


def _colours(node: str, plan: Plan | None) -> tuple[str, str]:
    fragment = 1 if plan is None else plan.fragments.index(plan.home(node))
    return COLOURS[fragment % len(COLOURS)]


def _legend(plan: Plan, top: float) -> Iterable[tuple[float, str]]:
    """For each fragment its colour, name and replicas, and how far it reaches to the right."""
    for i, fragment in enumerate(plan.fragments):
        fill, ink = COLOURS[i % len(COLOURS)]
        y = top + 22 * i
        kind = "one XLA program" if fragment.compiled else "process loop"
        words = f"{fragment.name} \N{MULTIPLICATION SIGN} {fragment.replicas}: {kind}"
        mark = f'<rect x="{MARGIN}" y="{y - 12:.1f}" width="16" height="16" rx="4" fill="{fill}" stroke="{ink}"/>'
        yield MARGIN + 26 + _width(words), mark + _text(MARGIN + 26, y + 1, words, 12, colour=GREY)


def _often(edge: Edge) -> str:
    from runnel.planning.plan import human_bytes

    times = f"{edge.per_iteration:g} times, " if edge.per_iteration != 1 else ""
    return times + human_bytes(edge.bytes_per_iteration)


def _label(x: float, y: float, edge: Edge, under: float) -> list[str]:
    return [
        _text(x, y, edge.what, 12, bold=True, anchor="middle"),
        _text(x, under, _often(edge), 11, anchor="middle", colour=GREY),
    ]


def _label_width(edge: Edge) -> float:
    return max(_width(edge.what, 12), _width(_often(edge), 11))


def _heads() -> str:
    markers = (
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0,0.5 L8,4 L0,7.5 z" fill="{ink}"/></marker>'
        for name, ink in (("head", INK), ("cut", CUT))
    )
    return f"<defs>{''.join(markers)}</defs>"


def _arrow(points: Sequence[tuple[float, float]], cut: bool) -> list[str]:
    path = " L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    ink, head, dashes = (CUT, "cut", ' stroke-dasharray="6 4"') if cut else (INK, "head", "")
    return [f'<path d="M{path}" fill="none" stroke="{ink}" stroke-width="1.5"{dashes} marker-end="url(#{head})"/>']


def _text(
    x: float,
    y: float,
    text: str,
    size: float = 13,
    *,
    bold: bool = False,
    anchor: str = "start",
    colour: str = "#1d2127",
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="{size:g}"{weight} fill="{colour}">{escape(text)}</text>'


def _width(text: str, size: float = 13) -> float:
    """An upper estimate of the width in Helvetica, bold."""
    return len(text) * size * 0.6
