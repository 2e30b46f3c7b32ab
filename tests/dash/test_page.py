"""The page of `runnel dash`, and reports, in a headless Chromium."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from made_runs import add_matches, make_hostile, make_members, make_run

from runnel.reporting import report

pytest.importorskip("websockets")
import browser as chromium
from dash_server import DashServer, dash_server

pytestmark = pytest.mark.skipif(chromium.path() is None, reason="there is no Chromium on this machine")

READY = "document.querySelector('main').dataset.ready === 'yes'"
CHECKPOINTS = "checkpoints"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with chromium.browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(scope="module")
def roots(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("page") / "runs"
    add_matches(make_run(root / "one", seed=1))
    make_run(root / "two", seed=2, learning_rate=0.01)
    make_members(root / "many")
    make_hostile(root / "hostile")
    return root


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


def choose(page: chromium.Browser, option: str) -> None:
    page.value(f"document.querySelector('select').value = {json.dumps(option)}, 0")
    page.value("document.querySelector('select').dispatchEvent(new Event('change'))")


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
    page.value(
        "const s = document.querySelector('.smoothing input'); s.value = 0.9; s.dispatchEvent(new Event('input'))"
    )
    page.wait("document.querySelectorAll('.charts .line.faint').length >= 1")
    assert page.value("document.querySelectorAll('.line')[1].getAttribute('d')") != drawn
    assert {address.partition("/api")[0].partition("/page")[0].rstrip("/") for address in page.requests} == {
        f"http://127.0.0.1:{server.port}"
    }


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


def test_members_have_a_band_a_lineage_and_pages_of_their_own(page, server):
    open_run(page, server, "0/many")
    page.wait("document.querySelector('.band')")
    page.wait("document.body.innerText.includes('0 from 2')")
    page.click("a[href$='member-1']")
    page.wait("document.querySelector('h1').textContent.startsWith('member-1')")
    assert page.value("document.querySelectorAll('.controls').length") == 0


@pytest.mark.parametrize("name", ["0/hostile", "0/one", "0/many"])
def test_a_phone_shows_all_without_scrolling_sideways(name, page, server):
    page.size(360, 740, dark=True)
    open_run(page, server, name)
    page.wait("document.querySelector('dl, table')")
    assert page.value("document.documentElement.scrollWidth") <= 360
    page.value("location.hash = 'run/%', 0")  # names no run
    page.wait("document.querySelectorAll('tbody tr').length === 4")
    assert page.value("document.documentElement.scrollWidth") <= 360


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


def _until(done, run) -> None:
    import time

    deadline = time.monotonic() + 60
    while not done():
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
