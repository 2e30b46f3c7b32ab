"""Run directories made without training: as runs write them, and as an enemy would."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from runnel.payoffs import GameResult
from runnel.recording.evaluation_log import EvaluationLog
from runnel.recording.events import EventLog
from runnel.recording.match_log import MatchLog, MatchRound

NAMES = ("javascript:window.hacked=4", '"><img src=x onerror=window.hacked=5>', "{{constructor}}", "%2e%2e%2fetc")
"""Of directories, which are names of runs."""

EVIL = '<img src=x onerror="window.hacked=1"></script><script>window.hacked=2</script>\u202e\'${hacked}'


def config(**changed: Any) -> dict[str, Any]:
    settings = {"learning_rate": 0.001, "unroll": 16, **changed.pop("settings", {})}
    return {
        "runnel_version": "0.1.0",
        "format": 1,
        "algorithm": {"class": "runnel.algorithms.ppo:PPO", "settings": settings},
        "environment": {"name": "CartPole-v1", "settings": {}},
        "envs": 8,
        "steps": 10_000,
        "seed": 0,
        "distribution": {"class": "runnel.distributions.inline:Inline", "settings": {}},
        **changed,
    }


def write(path: Path, name: str, value: Any) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / name).write_text(json.dumps(value))


def make_run(path: Path, seed: int = 0, learning_rate: float = 1e-3, points: int = 30, slope: float = 5.0) -> Path:
    """A finished run with a curve, evaluations, events and a log."""
    write(path, "config.json", config(seed=seed, settings={"learning_rate": learning_rate}))
    records = [
        {
            "env_steps": 100 * i,
            "mean_return": slope * i + seed,
            "steps_per_second": 900.0 + i,
            "staleness_mean": 0.1 * i,
            "learn/value_loss": 5.0 / (i + 1),
            "wall_seconds": float(i),
            "updates": i,
        }
        for i in range(points)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    ended = {
        "status": "finished",
        "algorithm": "ppo",
        "environment": "CartPole-v1",
        "distribution": "inline",
        "seed": seed,
        "env_steps": 100 * points,
        "updates": points,
        "mean_return": slope * points,
        "wall_seconds": float(points),
        "workers": [{"name": "everything", "fragment": "everything", "busy": 1.0, "phases": {"act": 2.0}}],
        "streams": [],
        "bottleneck": "act (act 100% of the time): use --envs 16",
    }
    write(path, "result.json", ended)
    evaluation = {
        "env_steps": 1000,
        "episodes": 3,
        "mean_return": 70.0,
        "std_return": 1.0,
        "mean_length": 9.0,
        "return_interval": [60.0, 80.0],
        "returns": [69.0, 70.0, 71.0],
    }
    EvaluationLog(path).add(evaluation)
    EvaluationLog(path).add({**evaluation, "env_steps": 2000, "mean_return": 90.0, "return_interval": [80.0, 95.0]})
    EventLog(path).record("restart", worker="actor-1", reason="killed by signal 9", action="replaced alone")
    (path / "logs").mkdir()
    (path / "logs" / "actor-1.log").write_text("first line\nlast line\n")
    return path


def make_members(path: Path, seeds: int = 3) -> Path:
    """A directory of several runs, with a decision of a population between them."""
    names = [f"member-{k}" for k in range(seeds)]
    for k, name in enumerate(names):
        make_run(path / name, seed=k, slope=5.0 + k)
    listed = [{"directory": name, "seed": k, "settings": {}} for k, name in enumerate(names)]
    write(path, "members.json", {"runnel_version": "0.1.0", "format": 1, "members": listed})
    settings = [{"learning_rate": 1e-3 * (k + 1)} for k in range(seeds)]
    rule = {"class": "runnel.population:PBT", "settings": {}}
    write(
        path,
        "population.json",
        {
            "runnel_version": "0.1.0",
            "format": 1,
            "steps": 3000,
            "seed": 0,
            "rule": rule,
            "settings": settings,
            "applied": 1,
            "code": None,
        },
    )
    decision = {
        "round": 1,
        "env_steps": 1500,
        "scores": [1.0] * seeds,
        "failed": [],
        "parents": [seeds - 1, *range(1, seeds)],
        "settings": settings,
    }
    (path / "lineage.jsonl").write_text(json.dumps(decision) + "\n")
    runs = [
        {"directory": name, "seed": k, "settings": {}, "status": "finished", "env_steps": 3000, "return": 150.0 + k}
        for k, name in enumerate(names)
    ]
    write(
        path,
        "result.json",
        {
            "status": "finished",
            "algorithm": "ppo",
            "environment": "CartPole-v1",
            "distribution": "inline",
            "members": seeds,
            "finished": seeds,
            "env_steps": 3000 * seeds,
            "wall_seconds": 30.0,
            "iqm_return": 151.0,
            "runs": runs,
        },
    )
    return path


def add_matches(path: Path) -> None:
    results = (GameResult("agent:1", "agent:0", 6.0, 2.0, 2.0),)
    MatchLog(path).add(MatchRound("agent", 0, 100, ("agent:0", "agent:1"), ("agent:0",), (1.0,), results))


def make_hostile(path: Path) -> Path:
    """Whatever a run directory shows in words is HTML, and what could be followed leads out of it."""
    make_run(path, points=5)
    hostile = config(
        settings={EVIL: EVIL, "learning_rate": {"class": EVIL}}, environment={"name": EVIL, "settings": {EVIL: EVIL}}
    )
    write(path, "config.json", hostile)
    fragment = {
        "name": EVIL,
        "nodes": [EVIL],
        "replicas": 2,
        "devices": [[EVIL]],
        "compiled": True,
        "environments": [],
        "env_splits": 1,
    }
    write(
        path,
        "plan.json",
        {
            "algorithm": EVIL,
            "environment": EVIL,
            "distribution": EVIL,
            "envs": 8,
            "steps_per_iteration": 8,
            "notes": [EVIL],
            "hosts": {EVIL: EVIL},
            "fragments": [fragment],
            "cuts": [
                {
                    "source": EVIL,
                    "target": EVIL,
                    "what": [EVIL],
                    "pattern": EVIL,
                    "synchronisation": EVIL,
                    "bytes_per_iteration": 1,
                    "channel": "collective",
                    "group": EVIL,
                    "node": EVIL,
                }
            ],
        },
    )
    write(
        path,
        "provenance.json",
        {
            "starts": [
                {"command": EVIL, "versions": {EVIL: EVIL}, "machine": {"system": EVIL, "cpus": EVIL}, "time": EVIL}
            ]
        },
    )
    worker = {"name": EVIL, "fragment": EVIL, "busy": 7.5, "host": EVIL, "waits": {EVIL: EVIL}}
    stream = {"source": EVIL, "target": EVIL, "kind": EVIL, "fill": -1e308, "messages_per_second": 1e308}
    write(
        path,
        "result.json",
        {
            "status": EVIL,
            "algorithm": EVIL,
            "reason": EVIL,
            "bottleneck": EVIL,
            "env_steps": 10**30,
            "mean_return": [EVIL],
            "workers": [worker, EVIL, 7, None],
            "streams": [stream, EVIL],
            "trials": {"length": 3},
            "members": EVIL,
        },
    )
    with (path / "metrics.jsonl").open("a") as file:
        file.write(
            json.dumps({"env_steps": 900, "mean_return": 1.0, EVIL: 3.0, "__proto__": 4.0, "constructor": 5.0}) + "\n"
        )
    EventLog(path).record(EVIL, worker=EVIL, reason=EVIL, action=EVIL)
    with (path / "events.jsonl").open("a") as file:
        file.write(json.dumps({"event": {"a": EVIL}, "time": [EVIL], "worker": {EVIL: 1}}) + "\n")
    (path / "logs" / "actor-1.log").write_text(EVIL)
    (path / "logs" / f"{EVIL.replace('/', '')[:100]}.log").write_text(EVIL)
    (path / "logs" / "stolen.log").symlink_to("/etc/passwd")
    (path / "stolen.mp4").symlink_to("/etc/passwd")
    (path / "play.gif").write_text(EVIL)
    os.mkfifo(path / "matches.jsonl")
    return path


def make_hostile_members(path: Path) -> Path:
    """A sweep of a population whose every word is HTML, in a directory with such a name."""
    make_members(path)
    listed = json.loads((path / "members.json").read_text())
    for each in listed["members"]:
        each["settings"] = {EVIL: EVIL, "learning_rate": {"class": EVIL}}
    write(path, "members.json", listed)
    population = json.loads((path / "population.json").read_text())
    write(path, "population.json", {**population, "settings": [{EVIL: 1.0}] * len(listed["members"])})
    result = json.loads((path / "result.json").read_text())
    trial = {"trial": EVIL, "status": EVIL, "objective": EVIL, "settings": {EVIL: EVIL}}
    runs = [{**run, "status": EVIL, "return": EVIL, "env_steps": EVIL, "reason": EVIL} for run in result["runs"]]
    evil = {"algorithm": EVIL, "environment": EVIL, "distribution": EVIL, "reason": EVIL}
    write(path, "result.json", {**result, **evil, "runs": runs, "trials": [trial], "iqm_return": EVIL})
    for member in listed["members"]:
        with (path / member["directory"] / "metrics.jsonl").open("a") as file:
            for steps in (3000, 3100):
                line = {"env_steps": steps, EVIL: steps, "__proto__": steps / 2, "constructor": 1.0}
                file.write(json.dumps(line) + "\n")
    return path
