"""Reports: every run leaves one, and none can change how a run ends."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from commands import run_command
from fragile import Fragile
from made_runs import EVIL, make_hostile, make_members, make_run, write

import runnel
from runnel.cli import arguments
from runnel.errors import RunFailed
from runnel.reporting import report
from runnel.reporting.run_view import run_view

DATA = re.compile(r'<script type="application/json" id="view">(.*?)</script>', re.S)


def view_in(run_dir: Path) -> dict:
    (found,) = DATA.findall((run_dir / report.FILE).read_text(encoding="utf-8"))
    return json.loads(found)


def test_a_run_that_fails_has_a_report_that_says_why(tmp_path):
    with pytest.raises(RunFailed):
        runnel.train(Fragile(), "gymnax:CartPole-v1", "fused", steps=400, envs=4, run_dir=tmp_path, quiet=True)
    view = view_in(tmp_path)
    assert view["status"] == "failed"
    assert view["result"]["reason"]
    assert view["plan"]["title"].startswith("Fragile on")
    assert view["starts"][0]["versions"]["runnel"] == runnel.__version__
    assert view["again"] == f"runnel train --config {tmp_path}/config.json"
    assert (view["about"]["settings"]["at"], view["config"]["steps"]) == ("3", 400)


def test_a_report_that_cannot_be_written_changes_nothing(tmp_path):
    def in_the_way(event) -> None:
        if not (tmp_path / report.FILE).exists():
            (tmp_path / report.FILE).mkdir()

    run = runnel.train(
        Fragile(at=-1), "gymnax:CartPole-v1", "fused", steps=400, envs=4, run_dir=tmp_path, quiet=True,
        on_checkpoint=in_the_way,
    )  # fmt: skip
    assert run.result["status"] == "finished"
    assert (tmp_path / report.FILE).is_dir()
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "finished"


def test_what_a_run_says_stays_data(tmp_path):
    make_hostile(tmp_path / "run")
    report.write(tmp_path / "run")
    html = (tmp_path / "run" / report.FILE).read_text(encoding="utf-8")
    assert html.count("<script") == 2
    assert "<img" not in html
    assert view_in(tmp_path / "run")["about"]["environment"].startswith("<img src=x")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")
    assert "http:" not in policy + html.replace("http://www.w3.org/2000/svg", "")


def test_the_command_that_is_shown_trains_again_elsewhere_and_as_long(tmp_path):
    make_run(tmp_path)
    first = "runnel train ppo CartPole-v1 --run-dir 'my runs/a' --steps=100 --set learning_rate=0.1"
    write(tmp_path, "provenance.json", {"starts": [{"command": first}]})
    assert run_view(tmp_path)["command"] == "runnel train ppo CartPole-v1 --steps=100 --set learning_rate=0.1"
    starts = [{"command": first}, {"command": "runnel resume 'my runs/a' --steps 10000"}]
    write(tmp_path, "provenance.json", {"starts": starts})
    view = run_view(tmp_path)
    args = arguments.parse(shlex.split(view["command"])[1:])
    assert (args.algorithm, args.steps, args.run_dir, args.set) == ("ppo", 10_000, None, ["learning_rate=0.1"])
    again = arguments.parse(shlex.split(view["again"])[1:])
    assert (str(again.config), again.run_dir) == (str(tmp_path / "config.json"), None)
    write(tmp_path, "provenance.json", {"starts": [{"command": f"runnel train {'x ' * 3000}"}]})
    assert run_view(tmp_path)["command"] == view["again"]
    write(tmp_path, "provenance.json", {"starts": [{"command": "runnel train ppo CartPole-v1 --seeds=3"}]})
    assert run_view(tmp_path)["command"] == view["again"]  # that of a member trains the others too
    group = make_members(tmp_path / "group")
    for command in ("runnel train ppo CartPole-v1 --seeds 3", "runnel sweep ppo CartPole-v1", "runnel train a b"):
        write(group, "provenance.json", {"starts": [{"command": command}]})
        assert run_view(group)["command"] == ("" if command.endswith("b") else command)


@pytest.mark.parametrize(
    "what",
    [
        "reinforce CartPole-v1 --distribution inline --envs 2 --steps 64 --seed 3 --set unroll=16 'hidden=(4,)'",
        pytest.param("ppo gymnax:CartPole-v1 --envs 4 --steps 512 --seeds 2 --set unroll=16", marks=pytest.mark.slow),
    ],
)
def test_the_commands_of_a_report_train_the_same_where_they_are_pasted(what, capsys, monkeypatch, tmp_path):
    words = ["train", *shlex.split(what), "--quiet", "--run-dir", "mine"]
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "argv", ["runnel", *words])
    assert run_command(capsys, *words).status == 0
    view = view_in(Path("mine"))
    commands = {view["command"], view.get("again", view["command"])}
    assert len(commands) == 2
    for number, command in enumerate(commands):
        there = tmp_path / f"there-{number}"
        there.mkdir()
        monkeypatch.chdir(there)
        assert run_command(capsys, *shlex.split(command)[1:]).status == 0
        (result,) = there.glob("runs/*/result.json")
        found, first = (json.loads(path.read_text()) for path in (result, tmp_path / "here" / "mine" / "result.json"))
        assert found["mean_return"] == first["mean_return"]
        assert (found["env_steps"], found["status"]) == (first["env_steps"], "finished")


def test_members_that_cannot_be_read_are_a_part_that_is_missing(tmp_path):
    group = make_members(tmp_path / "group")
    found = json.loads((group / "members.json").read_text())
    found["members"][1]["settings"] = "x"
    write(group, "members.json", found)
    view = run_view(group)
    assert (view["members"], view["bands"], view["lineage"]) == ([], {}, None)
    assert [problem.partition(":")[0] for problem in view["problems"]] == ["members"]
    assert view["result"]["iqm_return"] == 151
    report.write(group)
    assert view_in(group)["problems"] == view["problems"]


def test_a_long_record_makes_no_large_report(tmp_path):
    make_run(tmp_path / "run")
    numbers = {f"learn/some_name_{k}": 0.123456789 * k for k in range(250)}
    lines = (json.dumps({"env_steps": 1000 * i, "mean_return": i / 7, **numbers}) for i in range(4000))
    (tmp_path / "run" / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    report.write(tmp_path / "run")
    assert (tmp_path / "run" / report.FILE).stat().st_size < 500_000
    curves = view_in(tmp_path / "run")["curves"]
    assert len(curves["columns"]) >= 250
    assert curves["steps"][-1] > 3_900_000


def test_edges_and_workers_are_drawn_with_what_was_measured(tmp_path):
    fragment = {"nodes": ["act"], "devices": [["cpu:0"]], "compiled": False, "environments": [], "env_splits": 1}
    cut = {
        "what": ["x"],
        "pattern": "send",
        "synchronisation": "barrier",
        "bytes_per_iteration": 8,
        "group": "",
        "node": "",
    }
    write(tmp_path, "config.json", {})
    write(tmp_path, "plan.json", {
        "algorithm": "A", "environment": "E", "distribution": "d", "envs": 8, "steps_per_iteration": 8, "notes": [],
        "hosts": {},
        "fragments": [{**fragment, "name": "actor", "replicas": 2}, {**fragment, "name": "learner", "replicas": 1}],
        "cuts": [{**cut, "source": "actor", "target": "learner", "channel": "unroll"},
                 {**cut, "source": "learner", "target": "actor", "channel": "store"}],
    })  # fmt: skip
    workers = [{"name": f"actor-{k}", "fragment": "actor", "busy": share} for k, share in enumerate((0.25, 0.75))]
    stream = {"source": "actor", "target": "learner", "kind": "unroll", "fill": 0.5, "messages_per_second": 40.0}
    write(tmp_path, "result.json", {
        "status": "finished", "workers": workers, "streams": [stream], "env_steps": 1000, "updates": 10,
        "steps_per_second": 200.0,
    })  # fmt: skip
    shapes = run_view(tmp_path)["plan"]["shapes"]
    words = [text for tag, _, text in shapes if tag == "text"]
    assert {"busy 25% to 75%", "40 messages/s, 50% filled", "2 versions/s"} <= set(words)
    strips = [float(given["width"]) for tag, given, _ in shapes if tag == "rect" and given["fill"] == "#0f8a7e"]
    assert len(strips) == 2
    assert strips[1] == pytest.approx(3 * strips[0], abs=0.3)


@pytest.mark.parametrize(
    "changed", [{"fragments": []}, {"fragments": [7]}, {"cuts": [{}]}, {"envs": -1}, {"notes": [EVIL] * 99}]
)
def test_a_plan_that_no_run_writes_is_not_drawn(changed, tmp_path):
    make_hostile(tmp_path)
    found = json.loads((tmp_path / "plan.json").read_text())
    write(tmp_path, "plan.json", {**found, **changed})
    view = run_view(tmp_path)
    assert view["plan"] is None
    assert any("plan.json is not as runs write it" in problem for problem in view["problems"])
