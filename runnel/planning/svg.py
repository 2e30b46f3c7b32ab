"""A plan as a picture: a box for each fragment, an arrow for each cut edge. Plain SVG, no library.

Fragments stand in columns, in the plan's order; those with no edge between them share one. Edges between
neighbouring columns run straight across the gap, those that pass over a column run below, and those
between replicas of one fragment loop over its box. Thus texts never overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from xml.sax.saxutils import escape

from runnel.graph.kinds import KINDS, KindTraits
from runnel.planning.picture_parts import (
    CHIP,
    LINE,
    LOOP,
    MARGIN,
    PAD,
    SHADOW,
    STRIP,
    EdgeLabel,
    FragmentBox,
    MeasuredEdge,
    label_height,
    label_width,
)
from runnel.planning.placed import DrawnPlan, PlanUsage, plural
from runnel.planning.shapes import Shape, arrow, rect, text_width, write

NOTE: Final = "#9a5b00"
TRACK, BUSY = "#d9dde2", "#0f8a7e"


class Picture(NamedTuple):
    """A plan, drawn."""

    title: str
    width: float
    height: float
    shapes: list[Shape]

    def json(self) -> dict[str, Any]:
        size = {"width": round(self.width), "height": round(self.height)}
        return {"title": self.title, **size, "shapes": [shape.json() for shape in self.shapes]}


def svg(plan: DrawnPlan) -> str:
    """The picture, as the text of an SVG file."""
    title, width, height, shapes = picture(plan)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="Helvetica, Arial, sans-serif" role="img">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            'orient="auto"><path d="M0,0.5 L8,4 L0,7.5 z" fill="#444444"/></marker></defs>',
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            *(shape.svg() for shape in shapes),
            "</svg>\n",
        ]
    )


def picture(plan: DrawnPlan, usage: PlanUsage = PlanUsage()) -> Picture:  # noqa: B008 - it is frozen
    """The picture, as data. `usage`: what is known of busy workers and of edges is drawn on it."""
    edges = [
        MeasuredEdge(**vars(cut), measured=usage.edges.get((cut.source, cut.target, cut.channel), ""))
        for cut in plan.cuts
    ]
    columns = _columns(plan, edges, usage.busy)
    boxes = {box.fragment.name: box for column in columns for box in column}
    place = {box.fragment.name: number for number, column in enumerate(columns) for box in column}
    across = [cut for cut in edges if abs(place[cut.source] - place[cut.target]) == 1]
    below = [cut for cut in edges if abs(place[cut.source] - place[cut.target]) > 1]

    heading = f"{plan.algorithm} on {plan.environment}, {plan.distribution}"
    counts = [plural(plan.envs, "environment"), f"{plan.steps_per_iteration:,} steps an iteration"]
    subtitle = ", ".join([*counts, plural(plan.workers, "worker")])
    if plan.hosts:
        subtitle += f" on {plural(len({*plan.hosts.values()}), 'machine')}"
    if not plan.cuts:
        subtitle += "; no cut edges"
    remarks = [(plan.across.text(), "#555555")] if plan.across is not None else []
    remarks += [(note, NOTE) for note in plan.notes]

    _place(columns, across, top=MARGIN + 56 + LINE * len(remarks))
    shapes: list[Shape] = []
    for box in boxes.values():
        shapes += _draw_box(box)
    labels = _across(boxes, place, across, shapes)
    labels += _below(boxes, place, below, shapes)
    for box in boxes.values():
        labels += _loops(box, shapes)

    texts = [
        write(MARGIN, MARGIN + 12, heading, 17, bold=True),
        write(MARGIN, MARGIN + 34, subtitle, colour="#555555"),
        *(write(MARGIN, MARGIN + 34 + LINE * i, remark, 12, colour=ink) for i, (remark, ink) in enumerate(remarks, 1)),
    ]
    right = [box.x + box.width + box.shadow for box in boxes.values()] + [label.right for label in labels]
    right += [MARGIN + text_width(heading, 17, bold=True), MARGIN + text_width(subtitle)]
    right += [MARGIN + text_width(remark, 12) for remark, _ in remarks]
    bottom = [box.y + box.height for box in boxes.values()] + [label.bottom for label in labels]
    written = [shape for label in labels for shape in label.draw()]
    return Picture(heading, max(right) + MARGIN, max(bottom) + MARGIN, [*texts, *shapes, *written])


# Placing


def _columns(plan: DrawnPlan, edges: Sequence[MeasuredEdge], busy: Mapping[str, float]) -> list[list[FragmentBox]]:
    """Fragments from left to right; one that exchanges nothing with the last column stands in it."""
    linked = {frozenset((cut.source, cut.target)) for cut in plan.cuts}
    columns: list[list[FragmentBox]] = []
    for fragment in plan.fragments:
        hosts = [plan.host(name) for name in fragment.workers()] if plan.hosts else []
        loops = [cut for cut in edges if cut.source == cut.target == fragment.name]
        box = FragmentBox(fragment, loops, hosts, [busy[name] for name in fragment.workers() if name in busy])
        alone = len(columns) < 2 or any(
            frozenset((fragment.name, other.fragment.name)) in linked for other in columns[-1]
        )
        if alone:
            columns.append([box])
        else:
            columns[-1].append(box)
    return columns


def _place(columns: Sequence[Sequence[FragmentBox]], across: Sequence[MeasuredEdge], top: float) -> None:
    """Gives every box its place and size."""
    number = {box.fragment.name: i for i, column in enumerate(columns) for box in column}

    def touching(name: str, gap: int) -> list[MeasuredEdge]:
        """The edges of a fragment in the gap to the right of column `gap`."""
        return [
            c for c in across if name in (c.source, c.target) and {number[c.source], number[c.target]} == {gap, gap + 1}
        ]

    x = float(MARGIN)
    for i, column in enumerate(columns):
        width = max(box.least_size()[0] for box in column)
        loops = [label_width(cut) for box in column for cut in box.loops]
        y = top
        for box in column:
            name = box.fragment.name
            edges = max(sum(label_height(c) + 14 for c in touching(name, gap)) for gap in (i - 1, i))
            box.x, box.y, box.width = x, y + box.above(), width
            box.height = max(box.least_size()[1], edges + 2 * SHADOW + 10)
            y = box.y + box.height + 24
        gap = [label_width(c) for c in across if {number[c.source], number[c.target]} == {i, i + 1}]
        shadow = max(box.shadow for box in column)
        x += max(width + shadow, *loops, 0) + max([w + 56 for w in gap], default=56)
    # The columns end together: a lone box reaches along all those that stand side by side next to it.
    first = max(column[0].y for column in columns)
    for column in columns:
        if len(column) == 1:
            column[0].y = first
    bottom = max(column[-1].y + column[-1].height for column in columns)
    for column in columns:
        column[-1].height = bottom - column[-1].y


# Drawing


def _draw_box(box: FragmentBox) -> list[Shape]:
    fragment, shapes = box.fragment, []
    for behind in range(min(2, fragment.replicas - 1), 0, -1):
        offset = SHADOW * behind
        shapes.append(rect(box.x + offset, box.y - offset, box.width, box.height, 10, "#f4f5f7", "#9aa1ab"))
    shapes.append(rect(box.x, box.y, box.width, box.height, 10, "#fafbfc", "#5b6470"))
    x, y = box.x + PAD, box.y + PAD + 14
    shapes.append(write(x, y, box.title, 16, bold=True))
    for fact in box.facts:
        y += LINE
        shapes.append(write(x, y, fact, 12, colour="#555555"))
    if box.strip:
        shapes += _strip(box.busy, x, y + 7, box.width - 2 * PAD)
    y += 14 + box.strip
    for node in fragment.nodes:
        kind: Any = node.rpartition("/")[2].rstrip("0123456789")
        fill, ink = KINDS.get(kind, KindTraits()).colour
        shapes.append(rect(x, y, box.width - 2 * PAD, CHIP, 6, fill, ink))
        shapes.append(write(box.x + box.width / 2, y + 17.5, node, anchor="middle", colour=ink))
        y += CHIP + 6
    return shapes


def _strip(busy: Sequence[float], x: float, y: float, width: float) -> Iterable[Shape]:
    """The busy share of each worker, side by side."""
    each = width / len(busy)
    gap = 2 if len(busy) > 1 else 0
    for i, share in enumerate(busy):
        yield rect(x + i * each, y, each - gap, STRIP, 2, TRACK, "none")
        yield rect(x + i * each, y, (each - gap) * share, STRIP, 2, BUSY, "none")


def _across(
    boxes: dict[str, FragmentBox], place: dict[str, int], cuts: Sequence[MeasuredEdge], shapes: list[Shape]
) -> list[EdgeLabel]:
    """Edges between neighbours: straight arrows, one under the other."""
    labels = []
    between: dict[tuple[str, str], list[MeasuredEdge]] = {}
    for cut in cuts:
        left, right = sorted((cut.source, cut.target), key=lambda name: place[name])
        between.setdefault((left, right), []).append(cut)
    for (left_name, right_name), group in between.items():
        left, right = boxes[left_name], boxes[right_name]
        # The range in which a straight line reaches both boxes; if there is none, the line is slanted.
        top, bottom = max(left.y, right.y), min(left.y + left.height - left.shadow, right.y + right.height)
        if bottom <= top:
            top, bottom = right.y, right.y + right.height
        heights = [label_height(cut) + 14 for cut in group]
        spare = max(0.0, bottom - top - sum(heights)) / (len(group) + 1)
        y = top
        for cut, height in zip(group, heights, strict=True):
            y += spare + height
            reach = min(max(y - 7, left.y + 8), left.y + left.height - left.shadow - 4)
            start, end = (left.x + left.width + left.shadow + 3, reach), (right.x - 4, y - 7)
            forward = cut.source == left_name
            shapes.append(arrow([start, end] if forward else [end, start]))
            labels.append(EdgeLabel(cut, (start[0] + end[0]) / 2, y - height + 2))
    return labels


def _below(
    boxes: dict[str, FragmentBox], place: dict[str, int], cuts: Sequence[MeasuredEdge], shapes: list[Shape]
) -> list[EdgeLabel]:
    """Edges that pass over a column: down, along a lane of their own, and up again."""
    labels = []
    ends = {}  # of each edge: the two places on the lower rims of boxes
    for name, box in boxes.items():
        mine = [cut for cut in cuts if name in (cut.source, cut.target)]
        for i, cut in enumerate(mine, 1):
            ends[name, cut] = (box.x + box.width * i / (len(mine) + 1), box.y + box.height)
    lane = max(box.y + box.height for box in boxes.values()) + 8
    for cut in sorted(cuts, key=lambda cut: abs(place[cut.source] - place[cut.target])):
        lane += label_height(cut) + 8
        (x1, y1), (x2, y2) = ends[cut.source, cut], ends[cut.target, cut]
        shapes.append(arrow([(x1, y1 + 2), (x1, lane), (x2, lane), (x2, y2 + 3)]))
        # Beside the other edges' ways down, where there is room beside them.
        half = label_width(cut) / 2
        others = [x for (_, other), (x, _) in ends.items() if other is not cut]
        spots = [x1 + (x2 - x1) * part for part in (0.5, 0.35, 0.65, 0.25, 0.75)]
        free = [spot for spot in spots if all(abs(spot - x) > half for x in others)]
        labels.append(EdgeLabel(cut, (free or spots)[0], lane - label_height(cut) - 2))
        lane += 6
    return labels


def _loops(box: FragmentBox, shapes: list[Shape]) -> list[EdgeLabel]:
    """Edges between the replicas of a fragment: over its box."""
    labels = []
    y = box.y - box.shadow
    for cut in box.loops:
        left, right = box.x + box.width * 0.3, box.x + box.width * 0.7
        shapes.append(arrow([(left, y - 2), (left, y - LOOP + 6), (right, y - LOOP + 6), (right, y - 4)]))
        middle = max(box.x + box.width / 2, MARGIN + label_width(cut) / 2)
        labels.append(EdgeLabel(cut, middle, y - LOOP - label_height(cut) + 4))
        y -= LOOP + label_height(cut)
    return labels
