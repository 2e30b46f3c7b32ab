"""What the page of `runnel dash` and a report look like: pictures of them in a headless Chromium, in which curves,
plans and words are looked for by their colours."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from made_runs import make_members, make_run

import runnel
from runnel.distributions.coarse import Coarse
from runnel.reporting import plan_file, report

pytest.importorskip("websockets")
import browser as chromium
from dash_server import dash_server

pytestmark = pytest.mark.skipif(chromium.path() is None, reason="there is no Chromium on this machine")

LEAST_COLOURS = 60
"""Of a picture with words: their edges alone have more. A blank page has one, and one without curves and words few."""


@pytest.fixture(scope="module")
def roots(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("screenshots") / "runs"
    plan_file.write(make_run(root / "one"), runnel.build("ppo", "CartPole-v1", Coarse(actors=2)).plan)
    make_run(root / "two", seed=2, learning_rate=0.01)
    make_members(root / "many")
    report.write(root / "one")
    return root


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with chromium.browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(scope="module")
def server(roots: Path):
    with dash_server(roots) as found:
        yield found


def taken(page: chromium.Browser, file: Path, width: int, height: int, at: str, dark: bool = False) -> np.ndarray:
    """Takes a picture of the size that is asked for; the part of it that an element has, [height, width, 3]."""
    page.size(width, height, dark)
    page.value(f"document.querySelector({at!r}).scrollIntoView({{block: 'center'}}), 0")
    page.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")
    page.screenshot(file)
    picture = np.round(matplotlib.image.imread(file)[..., :3] * 255).astype(int)
    assert picture.shape == (height, width, 3)
    assert colours(picture) >= LEAST_COLOURS, f"{file.name} is blank, or nearly"
    box = page.value(
        f"(b => [b.left, b.top, b.right, b.bottom])(document.querySelector({at!r}).getBoundingClientRect())"
    )
    left, top, right, bottom = (max(0, round(edge)) for edge in box)
    assert right - left > 20, f"{at} has no width"
    assert bottom - top > 10, f"{at} has no height"
    return picture[top:bottom, left:right]


def colours(picture: np.ndarray) -> int:
    return len(np.unique(picture.reshape(-1, 3), axis=0))


def columns_with(picture: np.ndarray, colour: str) -> float:
    """The share of a picture's columns in which a colour is seen, as a curve from left to right is in nearly all."""
    wanted = [int(number) for number in re.findall(r"\d+", colour)[:3]]
    near = np.abs(picture - wanted).max(axis=-1) < 40
    return float(near.any(axis=0).mean())


def line_colour(page: chromium.Browser, inside: str) -> str:
    return page.value(f"getComputedStyle(document.querySelector({inside + ' .line'!r})).stroke")


def has_a_curve(page: chromium.Browser, picture: np.ndarray, inside: str) -> bool:
    return columns_with(picture, line_colour(page, inside)) > 0.6


def open_page(page: chromium.Browser, address: str, place: str, there: str) -> None:
    page.open(address.partition("#")[0] + (f"#{place}" if place else ""))
    page.wait(there)


LISTED = "document.querySelectorAll('tbody .spark .line').length >= 3"
OPENED = "document.querySelector('.chart .line') && document.querySelector('.plan text')"


@pytest.mark.parametrize(("width", "height", "dark"), [(1180, 900, False), (375, 740, True)])
def test_the_list_and_a_run_are_drawn_on_a_desktop_and_on_a_phone(width, height, dark, page, server, tmp_path):
    page.size(width, height, dark)
    open_page(page, server.address, "", LISTED)
    spark = taken(page, tmp_path / "list.png", width, height, ".spark", dark)
    assert has_a_curve(page, spark, ".spark")
    open_page(page, server.address, "run/0%2Fone", OPENED)
    chart = taken(page, tmp_path / "run.png", width, height, ".chart", dark)
    assert has_a_curve(page, chart, ".chart")
    page.value("document.querySelector('.chart .line').style.display = 'none', 0")
    bare = taken(page, tmp_path / "bare.png", width, height, ".chart", dark)
    assert not has_a_curve(page, bare, ".chart"), "a chart without its curve would pass"
    background = "rgb(255, 255, 255)"
    assert (columns_with(chart, background) > 0.6) is not dark


def test_the_plan_is_drawn_with_its_words(page, server, tmp_path):
    open_page(page, server.address, "run/0%2Fone", OPENED)
    plan = taken(page, tmp_path / "plan.png", 1180, 900, ".plan")
    assert colours(plan) >= LEAST_COLOURS
    words = page.value("getComputedStyle(document.querySelector('.plan text')).fill")
    assert columns_with(plan, words) > 0.1
    page.value("document.querySelectorAll('.plan > *').forEach(part => part.style.visibility = 'hidden')")
    assert colours(taken(page, tmp_path / "bare.png", 1180, 900, ".plan")) < 5, "an empty plan would pass"


def test_runs_that_are_compared_have_curves_of_different_colours(page, server, tmp_path):
    there = "document.querySelectorAll('.chart .line').length >= 2"
    open_page(page, server.address, "compare/0%2Fone/0%2Fmany", there)
    chart = taken(page, tmp_path / "compare.png", 1180, 760, ".chart")
    strokes = page.value("[...document.querySelectorAll('.chart .line')].map(line => getComputedStyle(line).stroke)")
    assert len(set(strokes)) == 2
    assert min(columns_with(chart, stroke) for stroke in strokes) > 0.3


@pytest.mark.parametrize("dark", [False, True])
def test_a_report_is_drawn_from_its_file(dark, page, roots, tmp_path):
    page.size(1180, 900, dark)
    page.open((roots / "one" / report.FILE).as_uri())
    page.wait(OPENED)
    chart = taken(page, tmp_path / "report.png", 1180, 900, ".chart", dark)
    assert has_a_curve(page, chart, ".chart")
    plan = taken(page, tmp_path / "plan.png", 1180, 900, ".plan", dark)
    assert colours(plan) >= LEAST_COLOURS
