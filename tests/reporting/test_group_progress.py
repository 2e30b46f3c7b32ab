"""Directories of several runs while they train: what the page shows before there is a result of all."""

import contextlib
import json
import os
import shlex
import time
from pathlib import Path

import pytest
from made_runs import make_members, write

from runnel.cli import arguments
from runnel.dash.runs import Runs
from runnel.recording import members_file, run_lock
from runnel.recording.members_file import Member
from runnel.reporting import group_progress
from runnel.reporting.run_view import run_view

FRAGMENT = {
    "name": "everything", "nodes": ["act"], "devices": [["cpu:0"]], "compiled": False, "environments": [],
    "env_splits": 1, "replicas": 1,
}  # fmt: skip
PLAN = {
    "algorithm": "PPO", "environment": "CartPole-v1", "distribution": "inline", "envs": 8, "steps_per_iteration": 8,
    "notes": [], "hosts": {}, "fragments": [FRAGMENT], "cuts": [],
}  # fmt: skip


def in_progress(path: Path, kind: str = "members", seeds: int = 4) -> Path:
    """Four members: the first has ended, two train, and the last has not begun."""
    make_members(path, seeds)
    for name in ("result.json", "lineage.jsonl", *(["population.json"] if kind != "population" else [])):
        (path / name).unlink()
    for k in range(1, seeds):
        (path / f"member-{k}" / "result.json").unlink()
    (path / f"member-{seeds - 1}" / "metrics.jsonl").unlink()
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 100))
    write(path, "provenance.json", {"starts": [{"time": started, "command": None}]})
    for k in (1, 2):
        write(path / f"member-{k}", "plan.json", PLAN)
        worker = {"name": "everything", "fragment": "everything", "busy": 0.5 + k / 10}
        write(path / f"member-{k}", "usage.json", {"workers": [worker], "streams": [], "bottleneck": f"act of {k}"})
    return path


@contextlib.contextmanager
def training(path: Path, *members: int):
    with contextlib.ExitStack() as stack:
        for held in (path, *(path / f"member-{k}" for k in members)):
            stack.enter_context(run_lock.hold(held, print))
        yield


def test_members_in_progress_are_summed_up_and_listed(tmp_path):
    group = in_progress(tmp_path / "group")
    with training(group, 1, 2):
        view = run_view(group)
        (listed,) = Runs([tmp_path]).listed()
    assert (view["status"], view["problems"], view["result"]) == ("running", [], {})
    about = view["about"]
    assert (about["algorithm"], about["environment"], about["distribution"]) == ("ppo", "CartPole-v1", "inline")
    assert (about["steps"], about["asked"]["seeds"], about["settings"]["unroll"]) == (40_000, "0 to 3", "16")
    now = view["now"]
    assert (now["members"], now["finished"], now["env_steps"]) == (4, 1, 3000 + 2900 + 2900)
    assert now["steps_per_second"] == 2 * 929  # of those that train
    assert now["median_return"] == 29 * 6 + 1  # of 150, 175 and 205
    assert 99 < now["wall_seconds"] < 160
    rows = [(row["status"], row["env_steps"], row["return"]) for row in view["members"]]
    assert rows == [("finished", 3000, 150), ("running", 2900, 175), ("running", 2900, 205), ("not begun", None, None)]
    assert view["of_member"] == "member-1"
    assert (view["usage"]["bottleneck"], view["usage"]["workers"][0]["busy"]) == ("act of 1", 0.6)
    assert view["plan"]["fragments"][0]["workers"] == ["everything"]
    assert (listed["status"], listed["env_steps"], listed["return"]) == ("running", 8800, 175)
    assert listed["steps_per_second"] == 2 * 929


def test_members_of_a_killed_command_show_how_far_they_came(tmp_path):
    view = run_view(in_progress(tmp_path / "group"))
    assert view["status"] == "gone"
    assert [row["status"] for row in view["members"]] == ["finished", "gone", "gone", "not begun"]
    assert (view["now"]["env_steps"], "steps_per_second" in view["now"]) == (8800, False)
    assert view["now"]["wall_seconds"] == 29


def test_members_that_are_continued_are_not_as_the_old_result_says(tmp_path):
    group = make_members(tmp_path / "group")
    for name in ("population.json", "lineage.jsonl"):
        (group / name).unlink()
    write(group, "provenance.json", {"starts": []})
    with (group / "member-1" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"env_steps": 7000, "mean_return": 400.0, "steps_per_second": 50.0}) + "\n")
    (group / "member-1" / "result.json").unlink()
    with training(group, 1):
        view = run_view(group)
    assert [row["status"] for row in view["members"]] == ["finished", "running", "finished"]
    assert (view["members"][1]["env_steps"], view["members"][1]["return"]) == (7000, 400)
    assert (view["now"]["env_steps"], view["now"]["finished"]) == (13_000, 2)


def test_settings_in_which_members_differ_are_none_of_all(tmp_path):
    group = in_progress(tmp_path / "group")
    found = json.loads((group / "members.json").read_text())
    for k, each in enumerate(found["members"]):
        each["settings"] = {"learning_rate": 0.1 * k}
    write(group, "members.json", found)
    assert set(run_view(group)["about"]["settings"]) == {"unroll", "envs"}
    population = in_progress(tmp_path / "population", "population")
    view = run_view(population)
    assert (view["kind"], set(view["about"]["settings"])) == ("population", {"unroll", "envs"})
    assert (view["about"]["steps"], view["about"]["asked"]["steps of each member"]) == (12_000, "3000")


SWEEP = {
    "runnel_version": "0.1.0", "format": 1, "sampler": "random", "trials": 6, "batch": 2, "seed": 3, "seeds": [0, 1],
    "space": {
        "learning_rate": {"kind": "log", "low": 1e-4, "high": 0.01},
        "gamma": {"kind": "uniform", "low": 0.9, "high": 1.0},
        "epochs": {"kind": "int", "low": 1, "high": 4}, "unroll": {"kind": "choice", "values": [8, 16]},
    },
    "winner_seeds": [2, 3, 4], "eta": 3, "rungs": [1000, 3000],
}  # fmt: skip


def test_a_sweep_in_progress_has_its_trials_and_the_command_that_repeats_it(tmp_path):
    sweep = in_progress(tmp_path / "sweep", "sweep")
    write(sweep, "sweep.json", SWEEP)
    view = run_view(sweep)
    assert (view["kind"], view["problems"], view["about"]["steps"]) == ("sweep", [], None)
    assert (view["about"]["asked"]["trials"], view["about"]["asked"]["steps of each member"]) == ("6", "1000, 3000")
    args = arguments.parse(shlex.split(view["again"])[1:])
    assert (str(args.config), args.trials, args.sampler, args.batch) == (f"{sweep}/base.json", 6, "random", 2)
    assert (args.seed, args.seeds, args.winner_seeds, args.halving, args.rungs) == (3, [0, 1], 3, 3, 2)
    assert args.over == ["learning_rate=log:0.0001:0.01", "gamma=0.9:1.0", "epochs=int:1:4", "unroll=8,16"]
    write(sweep, "sweep.json", {**SWEEP, "rungs": [1000]})
    view = run_view(sweep)
    assert (view["about"]["steps"], "--halving" in view["again"]) == (12_000, False)


def test_members_begun_from_python_have_the_commands_that_repeat_them(tmp_path):
    group = make_members(tmp_path / "group")
    (group / "population.json").unlink()
    found = json.loads((group / "members.json").read_text())
    for each, rate in zip(found["members"], (0.1, 0.2, 0.2), strict=True):
        each["settings"] = {"learning_rate": rate}
    write(group, "members.json", found)
    first, second = run_view(group)["again"].splitlines()
    alone, both = (arguments.parse(shlex.split(line)[1:]) for line in (first, second))
    assert (str(alone.config), alone.seeds) == (f"{group}/member-0/config.json", None)
    assert (str(both.config), both.seeds) == (f"{group}/member-1/config.json", [1, 2])


def test_a_population_begun_from_python_has_the_command_that_repeats_it(tmp_path):
    group = make_members(tmp_path / "group")
    found = json.loads((group / "population.json").read_text())
    limits = {"class": "runnel.config.search_space:LogUniform", "settings": {"low": 1e-05, "high": 0.01}}
    settings = {
        "every": 500, "quantile": 0.25, "perturb": {"dict": {"learning_rate": limits}}, "resample": {"dict": {}},
        "factors": [0.8, 1.25], "objective": "return",
    }  # fmt: skip
    write(group, "population.json", {**found, "rule": {"class": "runnel.population:PBT", "settings": settings}})
    args = arguments.parse(shlex.split(run_view(group)["again"])[1:])
    assert (args.population, args.steps, args.pbt_every, args.pbt_quantile) == (3, 3000, 500, 0.25)
    assert (args.pbt_perturb, args.pbt_resample) == (["learning_rate=log:1e-05:0.01"], None)
    settings["factors"] = [0.5, 2.0]  # which no flag has
    write(group, "population.json", {**found, "rule": {"class": "runnel.population:PBT", "settings": settings}})
    assert run_view(group)["again"] == ""


def test_a_finished_group_has_settings_and_the_workers_of_a_member(tmp_path):
    group = make_members(tmp_path / "group")
    write(group / "member-2", "plan.json", PLAN)
    view = run_view(group)
    assert (view["status"], view["now"], view["of_member"]) == ("finished", {}, "member-2")
    assert view["usage"]["workers"][0]["phases"] == {"act": 2}
    assert view["plan"]["title"].startswith("PPO on")
    assert view["until"] == os.stat(group / "result.json").st_mtime
    assert view["clock"]["seconds"][-1] == 29


def test_members_of_a_stack_are_as_its_newest_line_says(tmp_path):
    group = in_progress(tmp_path / "group", seeds=3)
    for k in range(3):
        for name in ("metrics.jsonl", "result.json"):
            (group / f"member-{k}" / name).unlink(missing_ok=True)
    write(group, "stacks.json", {"stacks": [[0, 1, 2]]})
    write(group / "stack-0", "returns.jsonl", {"env_steps": 100, "members": [0, 1, 2], "returns": [1.0, None, 7.0]})
    write(group / "stack-0", "metrics.jsonl", {"env_steps": 100, "wall_seconds": 5.0, "steps_per_second": 300.0})
    for file in ("returns.jsonl", "metrics.jsonl"):
        with (group / "stack-0" / file).open("a") as log:
            log.write("\n")
    with training(group):
        view = run_view(group)
    assert [(row["status"], row["env_steps"], row["return"]) for row in view["members"]] == [
        ("running", 100, 1), ("running", 100, None), ("running", 100, 7)
    ]  # fmt: skip
    now = view["now"]
    assert (now["env_steps"], now["steps_per_second"], now["median_return"]) == (300, 300, 4)


@pytest.mark.parametrize(
    ("values", "words"),
    [([3, 1, 2], "1 to 3"), ([5], "5"), ([1, 2], "1, 2"), ([1, 5, 9], "1, 5, 9"),
     (range(0, 40, 2), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and 8 more")],
)  # fmt: skip
def test_seeds_are_named_in_few_words(values, words):
    assert group_progress.seeds(values) == words


def test_a_thousand_members_are_looked_at_in_a_moment(tmp_path):
    members_file.write(tmp_path, [Member(f"member-{k:03d}", k, {}) for k in range(1000)])
    began = time.process_time()
    found = group_progress.standings(tmp_path, members_file.read(tmp_path), running=True)
    assert {each.status for each in found} == {"not begun"}
    assert time.process_time() - began < 2
