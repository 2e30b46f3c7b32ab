"""Graphs as pictures: complete, alike under every distribution but for colours and cuts, no texts in one place."""

import re
from itertools import combinations
from xml.etree import ElementTree

import pytest
from toys import Reinforce

import runnel
from runnel.algorithms.a2c import A2C
from runnel.planning.graph_svg import COLOURS, CUT, graph_svg

SVG = "{http://www.w3.org/2000/svg}"


def drawn(distribution):
    built = runnel.build(A2C(), "gymnax:CartPole-v1", distribution)
    return built, ElementTree.fromstring(graph_svg(built.graph, built.plan))


def boxes(root):
    """By their name: the colour of each node, and its place."""
    names = [text for text in root.iter(f"{SVG}text") if text.get("font-size") == "13" and text.get("font-weight")]
    rects = [rect for rect in root.iter(f"{SVG}rect") if rect.get("rx") == "8"]
    return {
        text.text: (rect.get("fill"), *(float(rect.get(key, 0)) for key in ("x", "y", "width", "height")))
        for text, rect in zip(names, rects, strict=True)
    }


def arrows(root):
    return [path for path in root.iter(f"{SVG}path") if path.get("fill") == "none"]


@pytest.mark.parametrize("distribution", ["inline", "coarse", "central", "decoupled"])
def test_nodes_have_the_colour_of_their_fragment_and_cut_edges_are_dashed(distribution):
    built, root = drawn(distribution)
    nodes = boxes(root)
    assert list(nodes) == list(built.graph.nodes)
    for i, fragment in enumerate(built.plan.fragments):
        assert {nodes[name][0] for name in fragment.nodes} == {COLOURS[i][0]}
    cut = [edge for edge in built.graph.edges if built.plan.home(edge.source) != built.plan.home(edge.target)]
    dashed = [path for path in arrows(root) if path.get("stroke-dasharray")]
    assert len(dashed) == len(cut) == sum(path.get("stroke") == CUT for path in arrows(root))
    assert len(arrows(root)) == len(built.graph.edges)
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert all(edge.what in texts for edge in built.graph.edges)
    assert [text for text in texts if "\N{MULTIPLICATION SIGN}" in str(text)] == [
        f"{fragment.name} \N{MULTIPLICATION SIGN} {fragment.replicas}: process loop"
        for fragment in built.plan.fragments
    ]


def test_an_arrow_begins_and_ends_at_the_boxes_of_its_edge():
    built, root = drawn("coarse")
    nodes = boxes(root)

    def at(x, y):
        (name,) = [
            n for n, (_, bx, by, w, h) in nodes.items() if bx - 4 <= x <= bx + w + 4 and by - 4 <= y <= by + h + 4
        ]
        return name

    ends = []
    for path in arrows(root):
        points = [tuple(map(float, point.split(","))) for point in re.findall(r"[\d.]+,[\d.]+", path.get("d", ""))]
        ends.append((at(*points[0]), at(*points[-1])))
    assert sorted(ends) == sorted((edge.source, edge.target) for edge in built.graph.edges)


def test_a_graph_is_drawn_alike_whatever_cuts_it():
    places = [{name: box[1:] for name, box in boxes(drawn(name)[1]).items()} for name in ("inline", "fine", "async")]
    assert places[0] == places[1] == places[2]


def test_no_two_texts_overlap_and_hostile_names_are_text():
    class Odd(Reinforce):
        """Of an odd name."""

    Odd.__name__ = "<b>&"
    built = runnel.build(Odd(), "gymnax:CartPole-v1", "inline")
    root = ElementTree.fromstring(graph_svg(built.graph))
    texts = list(root.iter(f"{SVG}text"))
    assert texts[0].text == f"<b>& on {built.graph.spec.name}"

    def space(text):
        width = len(text.text) * float(text.get("font-size")) * 0.55
        x = float(text.get("x")) - (width / 2 if text.get("text-anchor") == "middle" else 0)
        return x, x + width, float(text.get("y")) - float(text.get("font-size")) * 0.8, float(text.get("y"))

    for one, other in combinations(texts, 2):
        (a, b, c, d), (e, f, g, h) = space(one), space(other)
        assert b <= e or f <= a or d <= g or h <= c, f"'{one.text}' and '{other.text}' overlap"
