"""What the page of `runnel dash` shows beyond single finished runs, in a headless Chromium: groups in progress, many
curves at once, addresses that keep what was chosen, and all of it by keyboard, on a phone and in the dark."""

import base64
import contextlib
import json
import time
from pathlib import Path

import pytest
from made_runs import add_matches, make_members, make_run, write

from runnel.recording import requests, run_lock
from runnel.recording.evaluation_log import EvaluationLog

pytest.importorskip("websockets")
import browser as chromium
from dash_server import DashServer, dash_server

pytestmark = pytest.mark.skipif(chromium.path() is None, reason="there is no Chromium on this machine")

GIF = base64.b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7")
MANY = 11
"""Runs that are compared: more than there are colours."""


@pytest.fixture(scope="module")
def roots(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("views") / "runs"
    for k in range(MANY):
        make_run(root / f"run-{k:02d}", seed=k, slope=1.0 + k)
    add_matches(root / "run-00")
    evaluation = {
        "env_steps": 2500, "episodes": 3, "mean_return": 95.0, "std_return": 1.0, "mean_length": 9.0,
        "return_interval": [90.0, 99.0], "returns": [95.0], "group_returns": {"hunters": 61.5, "prey": 128.5},
    }  # fmt: skip
    EvaluationLog(root / "run-00").add(evaluation)
    log = root / "run-00" / "logs" / "actor-1.log"
    log.write_text("".join(f"line {k}\n" for k in range(500)))
    group = make_members(root / "progress", 4)
    for name in ("result.json", "population.json", "lineage.jsonl"):
        (group / name).unlink()
    for k in (1, 2, 3):
        (group / f"member-{k}" / "result.json").unlink()
    write(group / "member-1", "usage.json", {"workers": [{"name": "w"}], "bottleneck": "learn (learn 90% of the time)"})
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 65))
    write(
        group, "provenance.json", {"starts": [{"time": started, "command": "runnel train ppo CartPole-v1 --seeds 4"}]}
    )
    variants = make_members(root / "variants", 4)
    (variants / "population.json").unlink()
    found = json.loads((variants / "members.json").read_text())
    for each, rate in zip(found["members"], (0.1, 0.1, 0.2, 0.2), strict=True):
        each["settings"] = {"learning_rate": rate}
    write(variants, "members.json", found)
    ended = json.loads((variants / "result.json").read_text())
    ended["runs"][2] |= {"status": "failed", "reason": "the disk was full"}
    write(variants, "result.json", ended)
    (make_members(variants / "winner", 2) / "population.json").unlink()
    return root


@pytest.fixture(scope="module")
def server(roots: Path):
    with dash_server(roots) as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with chromium.browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(autouse=True)
def _a_desktop_without_problems(request: pytest.FixtureRequest):
    page: chromium.Browser = request.getfixturevalue("page")
    page.size(1200, 900)
    page.problems.clear()
    yield
    assert page.problems == []


@pytest.fixture
def _in_progress(roots: Path):
    group = roots / "progress"
    with contextlib.ExitStack() as stack:
        for held in (group, group / "member-1", group / "member-2", group / "member-3"):
            stack.enter_context(run_lock.hold(held, print))
        yield


def go(page: chromium.Browser, server: DashServer, place: str) -> None:
    page.open(server.address)
    page.wait("document.querySelectorAll('tbody tr').length >= 3")
    page.value(f"location.hash = {json.dumps(place)}, 0")


def change(page: chromium.Browser, selector: str, value: str, event: str = "change") -> None:
    one = f"document.querySelector({json.dumps(selector)})"
    page.wait(f"{one} && (!{one}.options || [...{one}.options].some(o => o.value === {json.dumps(value)}))")
    page.value(f"{one}.value = {json.dumps(value)}, {one}.dispatchEvent(new Event('{event}')), 0")


def press_tab_to(page: chromium.Browser, condition: str) -> None:
    for _ in range(60):
        page.key("Tab")
        if page.value(f"(at => {condition})(document.activeElement)"):
            return
    raise AssertionError(f"no element with {condition} can be reached")


def tiles(page: chromium.Browser) -> dict[str, str]:
    return dict(
        page.value("[...document.querySelectorAll('.tiles div')].map(d => [...d.children].map(x => x.innerText))")
    )


@pytest.mark.usefixtures("_in_progress")
def test_several_runs_in_progress_show_how_far_they_are(page, server):
    go(page, server, "run/0%2Fprogress")
    page.wait("document.querySelector('progress')")
    assert page.value("document.querySelector('.title p').innerText") == "4 members · ppo · CartPole-v1 · inline"
    found = tiles(page)
    assert found["steps, all members"] == "11.7k of 40k"  # 3,000 of the first, 2,900 of the others
    assert (found["median return"], found["steps/s, all members"]) == ("190", "2787")
    assert (found["members finished"], found["time"].startswith("1 min")) == ("1 of 4", True)
    assert page.value("document.querySelector('progress').value / document.querySelector('progress').max") == 0.2925
    page.wait("document.body.innerText.includes('Bottleneck of member-1: learn')")
    rows = page.value(
        "[...document.querySelectorAll('tbody tr')].map(r => [...r.cells].slice(1, 6).map(c => c.innerText))"
    )
    assert ["member-0", "0", "finished", "3,000", "150"] in rows
    assert ["member-3", "3", "running", "2,900", "235"] in rows
    assert "unroll" in page.value("document.body.innerText")
    page.value("location.hash = '', 0")
    page.wait("document.querySelectorAll('.runs tbody tr').length >= 3")
    listed = "[...document.querySelectorAll('.runs tbody tr')].find(r => r.innerText.includes('progress')).innerText"
    assert all(words in page.value(listed) for words in ("running", "11.7k", "190", "2787"))


@pytest.mark.usefixtures("_in_progress")
def test_checkpoint_and_stop_are_asked_for_by_keyboard(page, server, roots):
    go(page, server, "run/0%2Fprogress")
    page.wait("document.querySelectorAll('.controls button').length === 2")
    press_tab_to(page, "at.textContent === 'Checkpoint'")
    assert page.value("parseFloat(getComputedStyle(document.activeElement).outlineWidth)") >= 1
    page.key("Enter", "\r")
    page.wait("document.querySelector('.controls').innerText.includes('asked for a checkpoint')")
    assert requests.Waiting(roots / "progress").taken() == {"checkpoint"}
    page.key("Tab")
    page.key(" ", " ")
    page.wait("document.activeElement.textContent === 'Stop: sure?'")
    assert requests.Waiting(roots / "progress").taken() == set()
    page.key(" ", " ")
    page.wait("document.querySelector('.controls').innerText.includes('asked to stop')")
    assert requests.Waiting(roots / "progress").taken() == {"stop"}


def test_many_curves_differ_in_colour_or_dashes(page, server):
    go(page, server, "compare/" + "/".join(f"0%2Frun-{k:02d}" for k in range(MANY)))
    page.wait(f"document.querySelectorAll('.legend li').length === {MANY}")
    look = "(e => [getComputedStyle(e).stroke, getComputedStyle(e).strokeDasharray].join())"
    for lines in (".chart .line", ".legend .key"):
        seen = page.value(f"[...document.querySelectorAll('{lines}')].map({look})")
        assert (len(seen), len(set(seen))) == (MANY, MANY)


def test_a_directory_is_compared_as_a_band_for_each_of_its_settings(page, server):
    go(page, server, "compare/0%2Fvariants/0%2Frun-01")
    page.wait("document.querySelectorAll('.legend li').length === 3")
    names = page.value("[...document.querySelectorAll('.legend li')].map(l => l.innerText)")
    assert names == ["variants: learning_rate=0.1", "variants: learning_rate=0.2", "run-01"]
    assert page.value("document.querySelectorAll('.band').length") == 2
    row = page.value(
        "[...document.querySelectorAll('tbody tr')].map(r => r.innerText).find(t => t.startsWith('learning_rate'))"
    )
    assert row.split() == ["learning_rate", "0.1", "0.2", "0.001"]


def test_what_was_chosen_is_in_the_address_and_stays_after_a_reload(page, server):
    go(page, server, "compare/0%2Frun-01/0%2Frun-02")
    change(page, "[aria-label=metric]", "learn/value_loss")
    change(page, "[aria-label=smoothing]", "0.5", "input")
    change(page, "[aria-label='x axis']", "time")
    page.wait("location.hash.endsWith('?metric=learn%2Fvalue_loss&smoothing=0.5&x=time')")
    page.call("Page.reload")
    page.wait("document.querySelector('.axis.name')?.textContent === 'learn/value_loss'")
    page.wait("document.querySelectorAll('.line.faint').length === 2")
    page.wait("[...document.querySelectorAll('.chart .axis')].some(e => e.textContent === '20 s')")
    assert page.value("document.querySelector('[aria-label=\"x axis\"]').value") == "time"
    go(page, server, "run/0%2Frun-01")
    page.wait("document.querySelectorAll('.chip').length > 2")
    page.click(".chip[data-name='learn/value_loss']")
    change(page, "[aria-label='x axis']", "time")
    pressed = "[...document.querySelectorAll('.chip[aria-pressed=true]')].map(c => c.dataset.name).join()"
    before, address = page.value(f"[{pressed}, location.hash]")
    assert "x=time" in address
    page.call("Page.reload")
    page.wait(f"{pressed} === {json.dumps(before)}")
    assert page.value("document.querySelector('[aria-label=\"x axis\"]').value") == "time"


def test_curves_over_wall_time_end_where_the_run_did(page, server):
    for name, last in (("run-01", "29 s"), ("variants", "29 s")):
        go(page, server, f"run/0%2F{name}")
        change(page, "[aria-label='x axis']", "time")
        page.wait("[...document.querySelectorAll('.chart .axis')].some(e => e.textContent === 'wall time')")
        page.value("document.querySelector('.chart').focus()")
        page.key("ArrowRight")
        page.wait(f"document.querySelector('.tip').innerText.startsWith('{last} of wall time')")


def test_the_winner_of_a_sweep_is_reached_from_its_page_and_back(page, server):
    go(page, server, "run/0%2Fvariants")
    page.wait("document.querySelector('.members').innerText.includes('failed the disk was full')")
    page.click("a[href$=winner]")
    page.wait("document.querySelector('h1').innerText.startsWith('winner')")
    assert page.value("document.querySelector('nav a').innerText") == "all members"
    page.click("nav a")
    page.wait("document.querySelector('h1').innerText.startsWith('variants')")


def test_members_are_chosen_for_a_comparison(page, server):
    go(page, server, "run/0%2Fvariants")
    for k in (0, 3):
        page.click(f"[aria-label='select member-{k}']")
    page.wait("document.querySelector('[data-key=\"compare members\"]').innerText === 'Compare 2'")
    page.click("[data-key='compare members']")
    page.wait("document.querySelector('h1').innerText === 'Compare'")
    page.wait("document.querySelectorAll('.legend li').length === 2")
    names = page.value("[...document.querySelectorAll('.legend li')].map(l => l.innerText)")
    assert names == ["variants/member-0", "variants/member-3"]


def test_marks_on_the_line_of_time_are_read_by_keyboard_and_by_touch(page, server):
    go(page, server, "run/0%2Frun-00")
    page.wait("document.querySelectorAll('.mark').length === 1")
    press_tab_to(page, "at.classList.contains('mark')")
    page.wait("document.querySelector('.marked').innerText.includes('restart · actor-1 · killed by signal 9')")
    page.value("document.activeElement.blur(), document.querySelector('.marked').textContent = '', 0")
    page.size(375, 740)
    script = (
        "(b => [b.x + b.width / 2 + 9, b.y + b.height / 2])(document.querySelector('.mark').getBoundingClientRect())"
    )
    page.value("document.querySelector('.timeline').scrollIntoView({block: 'center'})")
    x, y = page.value(script)
    page.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x - 2, "y": y}])
    page.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    page.wait("document.querySelector('.marked').innerText.includes('replaced alone')")


def test_a_log_follows_new_lines_only_for_a_reader_at_its_end(page, server, roots):
    log = roots / "run-00" / "logs" / "actor-1.log"
    go(page, server, "run/0%2Frun-00")
    which = "select[aria-label^=worker]"
    change(page, which, "actor-1.log")
    at_end = "(e => e.scrollTop + e.clientHeight >= e.scrollHeight - 4)(document.querySelector('.log'))"
    page.wait(f"document.querySelector('.log').innerText.includes('line 499') && {at_end}")
    with log.open("a") as file:
        file.write("line 500\n")
    change(page, which, "actor-1.log")  # it looks again by itself too, every three seconds
    page.wait(f"document.querySelector('.log').innerText.includes('line 500') && {at_end}")
    page.value("document.querySelector('.log').scrollTop = 40, 0")
    with log.open("a") as file:
        file.write("line 501\n")
    change(page, which, "actor-1.log")
    page.wait("document.querySelector('.log').innerText.includes('line 501')")
    assert page.value("document.querySelector('.log').scrollTop") == 40


def test_a_film_is_given_back_when_another_one_is_shown(page, server, roots):
    for name in ("a.gif", "b.gif"):
        (roots / "run-03" / name).write_bytes(GIF)
    go(page, server, "run/0%2Frun-03")
    page.wait("document.querySelectorAll('.chip[data-film]').length === 2")
    page.value("window.back = [], URL.revokeObjectURL = (address) => window.back.push(address), 0")
    sources = []
    for name in ("a.gif", "b.gif"):
        page.click(f".chip[data-film='{name}']")
        page.wait(f"document.querySelector('.films img')?.alt === '{name}'")
        sources.append(page.value("document.querySelector('.films img').src"))
        assert sources[-1] not in page.value("window.back")
    assert sources[0] in page.value("window.back")
    page.value("location.hash = '', 0")
    page.wait(f"window.back.includes({json.dumps(sources[1])})")


def test_evaluations_of_groups_and_intervals_of_ratings_are_shown(page, server):
    go(page, server, "run/0%2Frun-00")
    page.wait("document.querySelector('table.groups')")
    rows = page.value("[...document.querySelectorAll('.groups tbody tr')].map(r => [...r.cells].map(c => c.innerText))")
    assert rows == [["hunters", "61.5"], ["prey", "129"]]
    ratings = page.value("[...document.querySelectorAll('.rating')].map(r => r.innerText)")
    assert ratings[0] == "0"  # the anchor
    low, high = map(int, ratings[1].partition("(")[2].strip(")").split(" to "))
    assert low < float(ratings[1].split()[0]) < high


CONTRAST = """(() => {
    const parsed = (text) => text.match(/[\\d.]+/g).map(Number);
    const linear = (v) => v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const behind = (one) => {
        for (let at = one; at; at = at.parentElement) {
            const colour = parsed(getComputedStyle(at).backgroundColor);
            if (colour.length < 4 || colour[3] === 1) return colour;
        }
        return [255, 255, 255];
    };
    const own = (one) => [...one.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    const seen = [...document.querySelectorAll("body *")]
        .filter(one => own(one) && one.getClientRects().length && !one.disabled);
    const ratio = (one) => {
        const drawing = one.closest("svg");
        const style = getComputedStyle(one);
        const both = [parsed(drawing ? style.fill : style.color), behind(drawing ? drawing.parentElement : one)];
        const [high, low] = both.map(light).sort((a, b) => b - a);
        return (high + 0.05) / (low + 0.05);
    };
    return seen.map(one => [one.textContent.slice(0, 40), ratio(one)]).filter(([_, found]) => found < 4.5);
})()"""
"""Texts that differ from what is behind them by less than 4.5 to 1, which WCAG asks for."""


@pytest.mark.parametrize("dark", [False, True])
def test_all_texts_can_be_read_by_day_and_in_the_dark(dark, page, server):
    page.size(1200, 900, dark=dark)
    for name in ("run-00", "variants"):
        go(page, server, f"run/0%2F{name}")
        page.wait("document.querySelector('.tiles') && document.querySelector('.chart .line')")
        ground = page.value("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, ground[4:-1].split(","))) < 3 * 64) == dark
        assert page.value(CONTRAST) == []


@pytest.mark.usefixtures("_in_progress")
def test_a_phone_has_two_columns_of_numbers_and_fingers_find_every_button(page, server):
    page.size(375, 740)
    go(page, server, "run/0%2Fprogress")
    page.wait("document.querySelectorAll('.tiles div').length >= 5 && document.querySelector('.chart .line')")
    assert (
        page.value("new Set([...document.querySelectorAll('.tiles div')].map(d => d.getBoundingClientRect().x)).size")
        == 2
    )
    assert page.value("document.documentElement.scrollWidth") <= 375
    shown = "[...document.querySelectorAll('.chart, .bar > *, .tiles div, h1, select')]"
    assert page.value(f"{shown}.filter(e => e.getBoundingClientRect().right > 375).length") == 0
    buttons = page.value(
        "[...document.querySelectorAll('.controls .button')].map(b => b.getBoundingClientRect().height)"
    )
    assert len(buttons) == 2
    assert min(buttons) >= 30
