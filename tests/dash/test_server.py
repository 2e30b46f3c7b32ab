"""The server of the live page: what it answers, whom it refuses, and what it never opens."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest
from commands import run_command
from dash_server import DashServer, dash_server
from made_runs import add_matches, config, make_hostile, make_members, make_run, write

from runnel.dash.guard import Guard
from runnel.dash.runs import Runs
from runnel.recording import requests, run_lock


@pytest.fixture(scope="module")
def roots(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("served") / "runs"
    make_run(root / "one", seed=1)
    make_run(root / "deep" / "two", seed=2, learning_rate=0.01)
    add_matches(root / "one")
    make_members(root / "many")
    make_hostile(root / "hostile")
    secret = make_run(root.parent / "secret")
    (root / "link").symlink_to(secret)
    (root / "pipes").mkdir()
    os.mkfifo(root / "pipes" / "config.json")
    return root


@pytest.fixture(scope="module")
def server(roots: Path):
    with dash_server(roots) as found:
        yield found


def path(what: str, **values: str) -> str:
    return f"/api/{what}?{urllib.parse.urlencode(values)}"


def test_all_runs_are_listed_and_no_link_is_followed(server: DashServer):
    runs = {run["id"]: run for run in server.ask("/api/runs").json()["runs"]}
    assert set(runs) == {"0/one", "0/deep/two", "0/many", "0/hostile", "0/pipes"}
    assert runs["0/one"]["return"] == 150
    assert runs["0/one"]["curve"][0] == [0, 1]
    assert (runs["0/many"]["kind"], runs["0/many"]["members"], runs["0/many"]["return"]) == ("population", 3, 151)
    assert runs["0/pipes"]["status"] in ("unknown", "gone")


def test_a_run_is_shown_whole(server: DashServer):
    view = server.ask(path("run", id="0/one")).json()
    assert (view["status"], view["problems"], view["top"]) == ("finished", [], True)
    assert view["about"]["settings"]["learning_rate"] == "0.001"
    assert view["curves"]["columns"]["learn/value_loss"][:2] == [5, 2.5]
    assert [found["mean_return"] for found in view["evaluations"]] == [70, 90]
    assert view["events"][0]["reason"] == "killed by signal 9"
    assert view["payoffs"][0]["scores"][0][1] == pytest.approx(0.7)  # agent:1 against agent:0
    assert view["logs"] == ["actor-1.log"]
    assert server.ask(path("log", id="0/one", name="actor-1.log")).json()["text"] == "first line\nlast line\n"
    several = server.ask(path("run", id="0/many")).json()
    assert several["bands"]["mean_return"][0]["members"] == 3
    assert several["lineage"]["rounds"][0]["parents"] == [2, 1, 2]
    assert server.ask(path("run", id="0/many/member-1")).json()["top"] is False


def test_runs_are_compared_by_any_metric_with_the_settings_that_differ(server: DashServer):
    names = [("id", "0/one"), ("id", "0/deep/two"), ("id", "0/many")]
    found = server.ask(f"/api/compare?{urllib.parse.urlencode([*names, ('metric', 'mean_return')])}").json()
    assert [len(run["values"]) for run in found["runs"]] == [30, 30, 120]
    assert "high" in found["runs"][2]
    assert {"name": "learning_rate", "values": ["0.001", "0.01", "0.001"]} in found["differing"]
    assert "unroll" not in {row["name"] for row in found["differing"]}
    found = server.ask(f"/api/compare?{urllib.parse.urlencode([*names[:2], ('metric', 'learn/value_loss')])}").json()
    assert [run["values"][1] for run in found["runs"]] == [2.5, 2.5]
    for metric, first, last in (("learn/value_loss", 5, 5 / 30), ("eval/return", 70, 90), ("eval/length", 9, 9)):
        found = server.ask(f"/api/compare?{urllib.parse.urlencode([*names, ('metric', metric)])}").json()
        assert metric in found["metrics"]
        ends = [(run["values"][0], run["values"][-1]) for run in found["runs"]]
        assert ends == [(first, pytest.approx(last, rel=1e-3))] * 3
        assert "high" in found["runs"][2]


def test_more_bands_than_can_be_distinguished_are_left_out_and_counted(tmp_path):
    for k in range(7):
        group = tmp_path / f"group-{k}"
        write(group / "member-00", "config.json", config())
        listed = [{"directory": f"member-{n:02d}", "seed": 0, "settings": {"unroll": n}} for n in range(12)]
        write(group, "members.json", {"runnel_version": "0.1.0", "format": 1, "members": listed})
    found = Runs([tmp_path]).compared([f"0/group-{k}" for k in range(7)], "mean_return")
    assert (len(found["runs"]), found["left_out"]) == (80, 4)
    assert found["runs"][13]["name"] == "group-1: unroll=1"
    assert [row["name"] for row in found["differing"]] == ["unroll"]


def test_what_the_page_has_is_not_sent_again(server: DashServer):
    first = server.ask(path("run", id="0/one"))
    again = server.ask(path("run", id="0/one"), If_None_Match=first.headers["etag"])
    assert (first.status, again.status, again.body) == (200, 304, b"")


def test_a_request_of_another_page_is_refused(server: DashServer):
    here = f"127.0.0.1:{server.port}"
    assert server.ask("/api/runs", host="attacker.example").status == 421  # DNS rebinding
    assert server.ask("/", host=f"attacker.example:{server.port}").status == 421
    assert server.ask("/api/runs", Origin="http://attacker.example").status == 403
    assert server.ask("/api/runs", Sec_Fetch_Site="cross-site").status == 403
    assert server.ask("/api/runs", Origin=f"http://{here}", Sec_Fetch_Site="same-origin").status == 200
    assert server.ask("/api/runs", host=f"localhost:{server.port}").status == 200
    answer = server.request("0/one", "stop", Origin="http://attacker.example")
    assert (answer.status, answer.body) == (403, b"found a request of another page")
    headers = server.ask("/").headers
    assert "access-control-allow-origin" not in headers
    assert "script-src 'self'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_nothing_changes_without_the_token(server: DashServer, roots: Path):
    with run_lock.hold(roots / "one", print):
        body = {"id": "0/one", "what": "stop"}
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": f"token={server.token}"}):
            assert server.ask("/api/request", "POST", body, **headers).status == 401
        assert server.ask("/api/request", "GET").status == 405
        assert requests.Waiting(roots / "one").taken() == set()
        assert server.request("0/one", "stop").status == 200
        assert requests.Waiting(roots / "one").taken() == {"stop"}
        assert server.request("0/one", "erase").status == 400
    answer = server.request("0/one", "stop")
    assert (answer.status, answer.body) == (400, b"found no run in progress there")
    with run_lock.hold(roots / "many" / "member-0", print):
        assert b"controlled together" in server.request("0/many/member-0", "stop").body
    assert requests.Waiting(roots / "many" / "member-0").taken() == set()


@pytest.mark.parametrize(
    "name", ["1", "0/..", "0/../secret", "0/link", "0//one", "0/one/logs", "-1", "", "0/one\0", "0/./one", "\u0660/one"]
)
def test_only_runs_below_the_given_directories_have_names(name, server: DashServer):
    answer = server.ask(path("run", id=name))
    assert answer.status == 404
    assert b"there is no run" in answer.body


def test_no_file_outside_of_a_run_is_read(server: DashServer):
    for name in ("stolen.log", "../config.json", "/etc/passwd", "nothing.log", "x\0"):
        answer = server.ask(path("log", id="0/hostile", name=name))
        assert answer.status in (400, 404)
        assert b"root:" not in answer.body
    assert server.ask(path("video", id="0/hostile", name="stolen.mp4")).status == 400
    assert server.ask(path("video", id="0/hostile", name="config.json")).status == 400
    assert server.ask(path("video", id="0/hostile", name="play.gif")).headers["content-type"] == "image/gif"
    for name in ("../one/config.gif", "/etc/passwd.gif", "videos/../../one/play.gif", "..%2fplay.gif"):
        assert server.ask(path("video", id="0/hostile", name=name)).status in (400, 404)
    for way in ("../../../pyproject.toml", "%2e%2e/%2e%2e/pyproject.toml", "..%2f..%2fpyproject.toml", "%00"):
        assert server.ask(f"/page/{way}").status == 404


def test_a_hostile_run_is_shown_as_far_as_it_can_be(server: DashServer):
    view = server.ask(path("run", id="0/hostile")).json()
    assert view["status"] == "gone"
    assert {problem.partition(":")[0] for problem in view["problems"]} == {"payoffs"}
    assert view["videos"] == ["play.gif"]
    assert "stolen.log" not in view["logs"]
    assert "\u202e" not in json.dumps(view, ensure_ascii=False)
    many = "&".join(["id=0/one"] * 41)
    assert server.ask(f"/api/compare?{many}&metric=mean_return").status == 400


def test_off_loopback_reading_needs_the_token_too():
    guard = Guard("0.0.0.0", "secret")
    host = {"host": "192.0.2.7:8642"}
    assert guard.refusal("GET", "/", host) is None
    assert guard.refusal("GET", "/page/dash.js", host) is None
    assert guard.refusal("GET", "/api/runs", host)[0] == 401
    assert guard.refusal("GET", "/api/runs", {**host, "authorization": "Bearer secret"}) is None
    assert guard.refusal("GET", "/api/runs", {**host, "authorization": "Basic secret"})[0] == 401
    assert guard.refusal("GET", "/", {"host": "attacker.example"})[0] == 421
    assert Guard("127.0.0.1", "secret").refusal("GET", "/", host)[0] == 421
    assert Guard("::1", "secret").refusal("GET", "/api/runs", {"host": "[::1]:80"}) is None
    for header in ("", "[::1", "a:b", "user@localhost", "localhost:80:80"):
        assert Guard("127.0.0.1", "secret").refusal("GET", "/", {"host": header})[0] == 421


def silent(port: int, words: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), 20)
    client.sendall(words)
    return client


def test_clients_that_do_nothing_hold_no_place_and_a_first_run_may_come_later(tmp_path):
    imports = "from runnel.dash import app as a, connection as c, server as s"
    short = f"{imports}; c.REQUEST_S = a.BODY_S = 1.0; s.CONNECTIONS = 8"
    with (tmp_path / "errors").open("w") as errors, dash_server(before=short, errors=errors, cwd=tmp_path) as server:
        assert server.ask("/api/runs").json()["runs"] == []
        clients = [silent(server.port, words) for words in [b"", b"GET / HT", b"G\r\n\r"] * 3]
        assert server.ask("/").status == 503
        for client in clients:
            with client, contextlib.suppress(ConnectionError):
                while client.recv(4096):
                    pass
        make_run(tmp_path / "runs" / "one")
        assert [run["id"] for run in server.ask("/api/runs").json()["runs"]] == ["0/one"]
        head = (
            f"POST /api/request HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nAuthorization: Bearer {server.token}\r\n"
        )
        with silent(server.port, f"{head}Content-Length: 9\r\n\r\n[".encode()) as gone:
            gone.shutdown(socket.SHUT_RDWR)
        with silent(server.port, f"{head}Content-Length: 9\r\n\r\n[".encode()) as waiting:
            answer = b"".join(iter(lambda: waiting.recv(4096), b""))
            assert b" 400 " in answer
            assert b"found no whole request within 1 seconds" in answer
    assert "Traceback" not in (tmp_path / "errors").read_text()


def test_no_link_leads_to_the_curve_of_several_runs(tmp_path):
    make_run(tmp_path / "out")
    group = make_members(tmp_path / "root" / "group")
    write(group, "stacks.json", {"stacks": [[0, 1, 2]]})
    (group / "stack-0").symlink_to(tmp_path / "out")
    (found,) = Runs([tmp_path / "root"]).listed()
    assert (found["name"], found["curve"]) == ("group", [])


def test_what_cannot_be_served_is_refused_in_words(capsys, tmp_path, server):
    ended = run_command(capsys, "dash", tmp_path / "nothing")
    assert (ended.status, len(ended.said)) == (2, 1)
    assert "is no directory; expected one that holds runs" in ended.err
    ended = run_command(capsys, "dash", tmp_path, "--host", "a..b")
    assert (ended.status, len(ended.said)) == (2, 1)
    assert "a..b: found no such address" in ended.err
    ended = run_command(capsys, "dash", tmp_path, "--port", server.port)
    assert (ended.status, ended.out) == (2, "")
    assert f"cannot listen on 127.0.0.1, port {server.port}: Address already in use; choose another --port" in ended.err


def test_the_server_needs_no_jax():
    imports = "import sys, runnel.dash.app, runnel.dash.server; from runnel.planning import svg"
    script = f"{imports}; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
