"""The page of `runnel dash`, and reports, in a headless Chromium."""

import calendar
import json
import os
import signal
import subprocess
import sys
import urllib.parse
from pathlib import Path

import numpy as np
import pytest
from chaos import descendants
from made_runs import NAMES, add_matches, make_hostile, make_hostile_members, make_members, make_run, write

from runnel.evaluation.video import recording_video
from runnel.reporting import report

pytest.importorskip("websockets")
import browser as chromium
from dash_server import DashServer, dash_server

pytestmark = pytest.mark.skipif(chromium.path() is None, reason="there is no Chromium on this machine")

READY = "document.querySelector('main').dataset.ready === 'yes'"
CHECKPOINTS = "checkpoints"
YEAR_2026 = calendar.timegm((2026, 1, 1, 0, 0, 0))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with chromium.browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(scope="module")
def roots(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("page") / "runs"
    add_matches(make_timed(root / "one"))
    make_run(root / "two", seed=2, learning_rate=0.01)
    make_members(root / "many")
    make_hostile(root / "hostile")
    return root


def make_timed(path: Path) -> Path:
    """A run of 100 seconds with old samples and three events, 20, 45 and 90 seconds after it began."""
    make_run(path, seed=1)
    write(path, "provenance.json", {"starts": [{"time": "2026-01-01T00:00:00Z", "command": "runnel train ppo"}]})
    ended = json.loads((path / "result.json").read_text())
    write(path, "result.json", {**ended, "wall_seconds": 100.0, "staleness_mean": 1.25, "staleness_max": 3})
    os.utime(path / "result.json", (YEAR_2026 + 100, YEAR_2026 + 100))
    events = [
        {"time": f"2026-01-01T00:{at // 60:02d}:{at % 60:02d}Z", "event": event, "worker": "actor-1", "reason": reason}
        for at, event, reason in ((20, "restart", "killed by signal 9"), (45, "recovered", ""), (90, "nan", "loss"))
    ]
    (path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


@pytest.fixture(scope="module")
def server(roots: Path):
    with dash_server(roots) as found:
        yield found


@pytest.fixture(autouse=True)
def _a_desktop_without_problems(request: pytest.FixtureRequest):
    page: chromium.Browser = request.getfixturevalue("page")
    page.size(1200, 900)
    page.problems.clear()
    yield
    assert page.problems == []


def open_run(page: chromium.Browser, server: DashServer, name: str) -> None:
    page.open(server.address)
    page.wait(READY)
    page.value(f"location.hash = {json.dumps(f'run/{name}')}, 0")
    page.wait(f"document.querySelector('h1').textContent.startsWith({json.dumps(name.rpartition('/')[2])})")


def press_tab_to(page: chromium.Browser, condition: str) -> None:
    """Goes on by the keyboard until a condition holds of the element with the focus, which is seen at each step."""
    for _ in range(40):
        page.key("Tab")
        width = page.value("parseFloat(getComputedStyle(document.activeElement).outlineWidth)")
        assert width >= 1 or page.value("document.activeElement === document.body")
        if page.value(f"(at => {condition})(document.activeElement)"):
            return
    raise AssertionError(f"no element with {condition} can be reached")


def choose(page: chromium.Browser, option: str) -> None:
    """Chooses an option of the first list that has it."""
    page.value(f"""(option => {{
        const has = list => [...list.options].some(one => one.value === option);
        const list = [...document.querySelectorAll("select")].find(has);
        list.value = option;
        list.dispatchEvent(new Event("change"));
    }})({json.dumps(option)})""")


def smooth(page: chromium.Browser, weight: float) -> None:
    page.value(f"document.querySelector('.smoothing input').value = {weight}, 0")
    page.value("document.querySelector('.smoothing input').dispatchEvent(new Event('input'))")


def text(page: chromium.Browser) -> str:
    return page.value("document.body.innerText")


def test_runs_are_found_opened_by_keyboard_and_shown(page, server):
    page.open(server.address)
    page.wait("document.querySelectorAll('tbody tr').length === 4")
    assert page.value("location.href").endswith(f":{server.port}/")  # the token is no part of it any more
    page.click("input[type=search]")
    page.type("finished one")
    page.wait("document.querySelectorAll('tbody tr').length === 1")
    page.value("document.querySelector('tbody a').focus()")
    page.key("Enter", "\r")
    page.wait("document.querySelectorAll('.chart .line').length >= 3")
    seen = text(page)
    for words in ("Bottleneck: act", "killed by signal 9", "agent:1", "0.70", "Evaluations", "learning_rate"):
        assert words in seen
    choose(page, "actor-1.log")
    page.wait("document.querySelector('.log').textContent.includes('last line')")
    page.value("document.querySelector('.chart').focus()")
    page.key("ArrowLeft")
    page.wait(
        "!document.querySelector('.tip').hidden && document.querySelector('.tip').textContent.includes('mean_return')"
    )
    drawn = page.value("document.querySelector('.line').getAttribute('d')")
    smooth(page, 0.9)
    page.wait("document.querySelectorAll('.charts .line.faint').length >= 1")
    assert page.value("document.querySelectorAll('.line')[1].getAttribute('d')") != drawn
    assert {address.partition("/api")[0].partition("/page")[0].rstrip("/") for address in page.requests} == {
        f"http://127.0.0.1:{server.port}"
    }


def test_the_keyboard_reaches_opens_and_compares_runs(page, server):
    page.open(server.address)
    page.wait("document.querySelectorAll('tbody tr').length === 4")
    press_tab_to(page, "at.type === 'search'")
    page.type("0.001 finished")  # nothing has all of these
    page.wait("document.querySelectorAll('tbody tr').length === 0")
    for _ in "0.001 finished":
        page.key("Backspace")
    page.wait("document.querySelectorAll('tbody tr').length === 4")
    press_tab_to(page, "at.textContent.startsWith('return')")
    page.key("Enter", "\r")
    page.wait("document.activeElement.textContent === 'return ↓'")  # it keeps the focus though all is drawn anew
    for name in ("one", "two"):
        press_tab_to(page, f"at.getAttribute('aria-label') === 'select {name}'")
        page.key(" ", " ")
    page.key("Tab")
    assert page.value("document.activeElement.textContent") == "two"
    page.value("document.activeElement.blur()")
    press_tab_to(page, "at.textContent === 'Compare 2'")
    page.key("Enter", "\r")
    page.wait("document.querySelectorAll('.legend li').length === 2")
    press_tab_to(page, "at.getAttribute('aria-label') === 'metric'")
    page.key("ArrowDown")
    page.wait("document.querySelector('.axis.name').textContent !== 'mean_return'")
    press_tab_to(page, "at.textContent === 'all runs'")
    page.key("Enter", "\r")
    page.wait("document.querySelectorAll('tbody tr').length === 4")
    press_tab_to(page, "at.matches('tbody a')")
    names = page.value("[...document.querySelectorAll('tbody a')].map(a => a.textContent)")
    for key, place in (("ArrowDown", 1), ("ArrowDown", 2), ("ArrowUp", 1), ("ArrowUp", 0), ("ArrowUp", 0)):
        page.key(key)
        assert page.value("document.activeElement.textContent") == names[place]
    page.key("Enter", "\r")
    page.wait(f"document.querySelector('h1').textContent.startsWith({json.dumps(names[0])})")


def test_what_is_new_is_drawn_by_itself_and_the_focus_stays(page, server, roots):
    def add(steps: int) -> None:
        with (roots / "two" / "metrics.jsonl").open("a") as file:
            record = {"env_steps": steps, "mean_return": float(steps), "steps_per_second": float(steps), "updates": 9}
            file.write(json.dumps(record) + "\n")

    ended = json.loads((roots / "two" / "result.json").read_text())
    page.open(server.address)
    page.wait("document.querySelectorAll('tbody tr').length === 4")
    press_tab_to(page, "at.textContent === 'two'")
    page.value("document.activeElement.old = true")
    write(roots / "two", "result.json", {**ended, "mean_return": 4321.0})
    page.wait("document.querySelector('tbody').textContent.includes('4321')")
    assert page.value("[document.activeElement.textContent, document.activeElement.old]") == ["two", None]
    page.key("Enter", "\r")
    press_tab_to(page, "at.classList.contains('chart')")
    page.key("ArrowLeft")
    page.key("ArrowLeft")
    page.wait("!document.querySelector('.tip').hidden")
    seen = page.value("[document.querySelector('.tip').textContent, document.querySelector('.line').getAttribute('d')]")
    add(20_000)
    page.wait(f"document.querySelector('.line').getAttribute('d') !== {json.dumps(seen[1])}")
    page.wait("document.activeElement.classList.contains('chart') && !document.querySelector('.tip').hidden")
    assert page.value("document.querySelector('.tip').textContent") != seen[0]


def test_a_run_shows_staleness_its_bottleneck_and_faults_on_a_line_of_time(page, server):
    open_run(page, server, "0/one")
    page.wait("document.querySelectorAll('.mark').length === 3")
    marks = page.value("[...document.querySelectorAll('.mark')].map(m => [+m.getAttribute('x1'), m.classList[1]])")
    places = [(x - 8) / (1000 - 2 * 8) for x, _ in marks]
    assert places == pytest.approx([0.2, 0.45, 0.9])
    assert [kind for _, kind in marks] == ["bad", None, "bad"]
    tiles = page.value("[...document.querySelectorAll('.tiles div')].map(d => d.innerText.replace(/\\s+/g, ' '))")
    assert "staleness 1.25, highest 3" in tiles
    assert "Bottleneck: act (act 100% of the time): use --envs 16" in text(page)


def test_a_directory_of_200_runs_is_listed_filtered_and_opened(page, tmp_path):
    for k in range(200):
        make_run(tmp_path / f"group-{k // 50}" / f"run-{k:03d}", seed=k)
    with dash_server(tmp_path) as server:
        page.open(server.address)
        page.wait("document.querySelectorAll('tbody tr').length === 200")
        assert page.value("document.querySelectorAll('tbody .spark .line').length") == 200
        assert page.value("document.querySelector('.bar .dim').textContent") == "200 of 200 runs"
        page.click("input[type=search]")
        page.type("run-137")
        page.wait("document.querySelectorAll('tbody tr').length === 1")
        page.click("tbody a")
        page.wait("document.querySelector('h1').textContent.startsWith('run-137')")
        page.wait("document.querySelectorAll('.chart .line').length >= 3")


@pytest.mark.parametrize("kind", ["mp4", "gif"])
def test_a_film_plays(kind, page, tmp_path):
    make_run(tmp_path / "run")
    (tmp_path / "run" / "videos").mkdir()
    with recording_video(tmp_path / "run" / "videos" / f"play.{kind}") as film:
        for k in range(45):
            film.add(np.full((48, 64, 3), 5 * k, np.uint8))
    with dash_server(tmp_path) as server:
        open_run(page, server, "0/run")
        page.wait("document.querySelector('.chip[data-film]')")
        page.click(".chip[data-film]")
        if kind == "gif":
            page.wait("document.querySelector('.films img')?.naturalWidth === 64")
        else:
            page.wait("document.querySelector('.films video')?.readyState >= 3")
            page.value("document.querySelector('.films video').play()")
            page.wait("document.querySelector('.films video').currentTime > 0.2")
            assert page.value("document.querySelector('.films video').duration") == pytest.approx(1.5, abs=0.1)
        answer = server.ask(f"/api/video?id=0/run&name=videos/play.{kind}")
        assert answer.headers["content-type"] == {"gif": "image/gif", "mp4": "video/mp4"}[kind]


def test_runs_are_compared(page, server):
    page.open(server.address)
    page.wait("document.querySelectorAll('tbody tr').length === 4")
    for name in ("one", "two"):
        page.click(f"input[aria-label='select {name}']")
    page.click(".bar .button")
    page.wait("document.querySelectorAll('.legend li').length === 2")
    assert "0.01" in text(page)
    choose(page, "learn/value_loss")
    page.wait("document.querySelector('.axis.name').textContent === 'learn/value_loss'")


def test_several_runs_are_compared_by_any_metric_with_their_spread(page, server):
    page.open(f"{server.address.partition('#')[0]}#compare/0%2Fmany/0%2Fone")
    page.wait("document.querySelectorAll('.band').length === 1")
    for metric in ("learn/value_loss", "eval/return"):
        choose(page, metric)
        page.wait(f"document.querySelector('.axis.name')?.textContent === '{metric}'")
        page.wait("document.querySelectorAll('.line').length === 2 && document.querySelectorAll('.band').length === 1")
    before = page.value("document.querySelector('.band').getAttribute('d')")
    smooth(page, 0.9)
    page.wait("document.querySelectorAll('.line.faint').length === 2")
    assert page.value("document.querySelector('.band').getAttribute('d')") != before


def test_members_have_a_band_a_lineage_and_pages_of_their_own(page, server):
    open_run(page, server, "0/many")
    page.wait("document.querySelector('.band')")
    page.wait("document.body.innerText.includes('0 from 2')")
    page.click(".chip[aria-pressed='false']")
    page.wait("document.querySelectorAll('.chip[aria-pressed=true]').length === 5")
    page.wait("document.querySelectorAll('.charts .band').length === 5")
    lines = page.value("document.querySelectorAll('.charts .line').length")
    smooth(page, 0.5)
    page.wait(f"document.querySelectorAll('.charts .line').length > {lines}")
    page.click("a[href$='member-1']")
    page.wait("document.querySelector('h1').textContent.startsWith('member-1')")
    assert page.value("document.querySelectorAll('.controls').length") == 0


@pytest.mark.parametrize("name", ["0/hostile", "0/one", "0/many"])
def test_a_phone_shows_all_without_scrolling_sideways(name, page, server, roots):
    page.size(375, 740, dark=True)
    open_run(page, server, name)
    page.wait("document.querySelector('dl, table')")
    assert page.value("document.documentElement.scrollWidth") <= 375
    page.value("location.hash = 'run/%', 0")  # names no run
    page.wait("document.querySelectorAll('tbody tr').length === 4")
    assert page.value("document.documentElement.scrollWidth") <= 375
    page.value(f"location.hash = 'compare/{urllib.parse.quote(name, safe='')}', 0")
    page.wait("document.querySelector('.legend li')")
    assert page.value("document.documentElement.scrollWidth") <= 375
    report.write(roots / name.rpartition("/")[2])
    page.open((roots / name.rpartition("/")[2] / report.FILE).as_uri())
    page.wait("document.querySelector('.charts .chart')")
    assert page.value("document.documentElement.scrollWidth") <= 375


def test_nothing_of_a_hostile_run_is_executed(page, server, roots):
    open_run(page, server, "0/hostile")
    page.wait("document.querySelectorAll('section').length >= 8")
    page.wait("document.querySelector('.plan text')")
    for chip in range(page.value("document.querySelectorAll('.chip').length")):
        page.value(f"document.querySelectorAll('.chip')[{chip}].click()")
    choose(page, "actor-1.log")
    page.wait("document.querySelector('.log').textContent.includes('<script>window.hacked=2</script>')")
    assert page.value("[window.hacked, document.querySelectorAll('main img[src=x], main script').length]") == [None, 0]
    assert "<img src=x onerror" in text(page)
    report.write(roots / "hostile")
    page.open((roots / "hostile" / report.FILE).as_uri())
    page.wait("document.querySelector('.plan text')")
    assert page.value("[window.hacked, document.querySelectorAll('main img, main script').length]") == [None, 0]
    page.problems[:] = [problem for problem in page.problems if "blob:" not in problem]  # play.gif is no picture


EXECUTED = """[
    window.hacked,
    document.querySelectorAll('main script, main iframe, main img, main object, main embed, main form').length,
    [...document.querySelectorAll('*')].filter(e => e.getAttributeNames().some(n => n.startsWith('on'))).length,
    [...document.querySelectorAll('[href], [src]')].filter(e => /^\\s*javascript:/i.test(e.href || e.src)).length,
]"""


def test_no_name_setting_or_metric_of_several_hostile_runs_is_executed(page, tmp_path):
    for name in NAMES:
        make_hostile_members(tmp_path / name)
    with dash_server(tmp_path) as server:
        page.open(server.address)
        page.wait(f"document.querySelectorAll('tbody tr').length === {len(NAMES)}")
        assert page.value(EXECUTED) == [None, 0, 0, 0]
        assert set(NAMES) <= set(page.value("[...document.querySelectorAll('tbody a')].map(a => a.textContent)"))
        for box in range(len(NAMES)):
            page.value(f"document.querySelectorAll('tbody input')[{box}].click()")
        page.click(".bar .button")
        page.wait(f"document.querySelectorAll('.legend li').length === {len(NAMES)}")
        names = page.value("[...document.querySelectorAll('select option')].map(o => o.value)")
        for name in (one for one in names if "hacked" in one or "__proto__" in one):
            choose(page, name)
            page.wait(f"document.querySelector('.axis.name').textContent === {json.dumps(name)}")
        assert page.value(EXECUTED) == [None, 0, 0, 0]
        for name in NAMES:
            page.value(f"location.hash = 'run/' + encodeURIComponent({json.dumps('0/' + name)}), 0")
            page.wait(f"document.querySelector('h1').textContent.startsWith({json.dumps(name)})")
            page.wait("document.querySelectorAll('.chip').length > 4")
            for chip in range(page.value("document.querySelectorAll('.chip').length")):
                page.value(f"document.querySelectorAll('.chip')[{chip}].click()")
            assert page.value(EXECUTED) == [None, 0, 0, 0]
            assert "onerror" in text(page)
            assert "\u202e" not in text(page)
            page.value("document.querySelector('a[href$=member-1]').click()")
            page.wait("document.querySelector('h1').textContent.startsWith('member-1')")
            report.write(tmp_path / name)
            page.open((tmp_path / name / report.FILE).as_uri())
            page.wait("document.querySelector('.chip')")
            assert page.value(EXECUTED) == [None, 0, 0, 0]
            page.open(server.address)
            page.wait(f"document.querySelectorAll('tbody tr').length === {len(NAMES)}")


def test_a_report_opens_from_a_file_and_needs_no_network(page, roots):
    for name in ("one", "many"):
        report.write(roots / name)
        file = roots / name / report.FILE
        assert file.stat().st_size < 500_000
        page.open(file.as_uri())
        page.wait("document.querySelectorAll('.chart .line').length >= 1")
        seen = text(page)
        assert "runnel train --config" in seen or name == "many"
        assert [address for address in page.requests if not address.startswith(("file:", "data:"))] == []


def test_a_report_of_many_members_says_what_it_leaves_out(page, tmp_path):
    group = make_members(tmp_path / "group")
    found = json.loads((group / "members.json").read_text())
    more = [{"directory": f"member-{k}", "seed": k, "settings": {}} for k in range(3, 70)]
    write(group, "members.json", {**found, "members": [*found["members"], *more]})
    report.write(group)
    page.open((group / report.FILE).as_uri())
    page.wait("document.body.innerText.includes('The first 64 of 70 members have a report of their own.')")
    assert "A band is of the first 64 members of its settings, which up to 70 share." in text(page)
    assert page.value("document.querySelectorAll('.band').length") >= 1


@pytest.mark.parametrize("distribution", ["inline", pytest.param("async", marks=pytest.mark.slow)])
def test_a_run_is_watched_saved_and_stopped(distribution, page, tmp_path):
    run_dir = tmp_path / "runs" / "live"
    flags = ["--steps", "1000000000", "--envs", "8", "--checkpoint-every", "100000", "--seed", "1"]
    flags += ["--actors", "1"] if distribution == "async" else []
    command = ["train", "impala", "CartPole-v1", "--distribution", distribution, *flags, "--run-dir", str(run_dir)]
    (tmp_path / "runs").mkdir()
    environ = {**os.environ, "JAX_PLATFORMS": "cpu"}
    run = subprocess.Popen([sys.executable, "-m", "runnel", *command, "--quiet"], env=environ)
    try:
        with dash_server(tmp_path / "runs") as server:
            page.open(server.address)
            page.wait("document.querySelector('.pill.running')", 120)
            page.wait("document.querySelector('tbody a')")
            page.click("tbody a")
            page.wait("document.querySelector('.plan')")
            page.wait("document.body.innerText.includes('Bottleneck')", 120)
            if distribution == "async":
                page.wait("document.querySelector('.plan').textContent.includes('messages/s')", 120)
                assert "busy" in page.value("document.querySelector('.plan').textContent")
                _break_a_worker(page, run, run_dir)
            steps = page.value("document.querySelector('.tiles dd').textContent")
            page.wait(f"document.querySelector('.tiles dd').textContent !== {json.dumps(steps)}")
            assert not (run_dir / CHECKPOINTS).exists()
            page.click(".controls .button")
            page.wait("document.querySelector('.controls').textContent.includes('asked for a checkpoint')")
            _until(lambda: (run_dir / CHECKPOINTS / "latest").exists(), run)
            page.click(".controls .danger")
            page.wait("document.querySelector('.danger').textContent === 'Stop: sure?'")
            assert run.poll() is None
            page.click(".controls .danger")
            assert run.wait(120) == 0
            page.wait("document.querySelector('.pill.interrupted')")
            page.wait("document.querySelectorAll('.controls').length === 0")
    finally:
        run.send_signal(signal.SIGTERM)
        run.wait(60)
    ended = json.loads((run_dir / "result.json").read_text())
    assert (ended["status"], "reason" in ended) == ("interrupted", False)
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    assert events[-1]["reason"] == "a request to stop"
    assert '"status":"interrupted"' in (run_dir / report.FILE).read_text()
    if distribution == "inline":
        return
    film = ["eval", str(run_dir), "--episodes", "1", "--video", str(run_dir / "play.mp4")]
    subprocess.run([sys.executable, "-m", "runnel", *film], env=environ, check=True)
    with dash_server(tmp_path / "runs") as server:
        open_run(page, server, "0/live")
        page.click(".chip[data-film]")
        page.wait("document.querySelector('.films video')?.readyState >= 3")


def _break_a_worker(page: chromium.Browser, run: subprocess.Popen[bytes], run_dir: Path) -> None:
    """Kills the actor: the page shows by itself what happened, and what its log has now."""
    choose(page, "actor.log")
    with (run_dir / "logs" / "actor.log").open("a") as log:
        log.write("a line of the actor\n")
    page.wait("document.querySelector('.log').textContent.includes('a line of the actor')")
    (pid,) = (pid for pid, name in descendants(run.pid).items() if name.endswith("actor"))
    os.kill(pid, signal.SIGKILL)
    page.wait("document.querySelectorAll('.mark.bad').length >= 1")
    page.wait("document.querySelector('tr.bad').textContent.includes('killed by')")
    assert page.value("document.querySelector('[aria-label=\"worker\\'s log\"]').value") == "actor.log"


def _until(done, run) -> None:
    import time

    deadline = time.monotonic() + 60
    while not done():
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
