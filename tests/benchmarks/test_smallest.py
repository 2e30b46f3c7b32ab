"""Every benchmark runs in its smallest size, and leaves a result."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

CARTPOLE = ["--environment", "CartPole-v1"]
SMALLEST = {
    "chaos": ["coarse", "--kills", "1"],
    "cluster": ["--distributions", "async", "--envs", "4", "--seconds", "1"],
    "convolutions": ["--runs", "1"],
    "dash": ["--runs", "3", "--lines", "50", "--repeats", "1"],
    "distributions": ["inline", "fused", "--steps", "20000"],
    "evaluation": [*CARTPOLE, "--actors", "1", "--steps", "20000", "--eval-every", "10000", "--episodes", "2",
                   "--runs", "1", "--first-seed", "5"],
    "faults": ["--peers", "runnel", "--scenarios", "worker_killed"],
    "fragments": ["async:environment", "--actors", "1", "--runs", "1", "--seconds", "0.5"],
    "fused_ppo": ["CartPole-v1:8:2", "--runs", "1"],
    "handoff": ["--only", "shared", "threads", "eventfd", "queue", "--runs", "1", "--messages", "50"],
    "hide_and_seek": ["--envs", "2", "--unroll", "2", "--runs", "1", "--seconds", "0.1"],
    "inline_ppo": ["--runs", "1", "--steps", "8000"],
    "knobs": ["--only", "unroll", "--rounds", "1", "--steps", "40000"],
    "learning": ["--list"],
    "members": ["--members", "2", "--tasks", "gymnax:CartPole-v1", "--rounds", "1", "--seconds", "0.1"],
    "members_navix": ["--members", "2", "--envs", "2", "--steps", "4000", "--runs", "1"],
    "members_peer": ["--members", "2", "--envs", "2", "--updates", "2", "--runs", "1", "--warm-up", "0"],
    "opponents": ["--places", "1", "2", "--envs", "8", "--unroll", "4", "--rounds", "1", "--seconds", "0.1"],
    "policy_readers": ["--readers", "1", "3", "--megabytes", "1", "--rounds", "2"],
    "population": ["--repetitions", "1", "--members", "4", "--steps", "4096", "--envs", "4", "--rounds", "2", "--rates",
                   "2", "--eval-episodes", "2", "--fresh-episodes", "4"],
    "precision": ["--seeds", "2", "--steps", "16384"],
    "psro_exact": ["--games", "kuhn_poker", "--iterations", "3"],
    "scaling": ["--actors", "1", "--distributions", "async", "--envs", "4", "--seconds", "0.5"],
    "self_play": ["--seeds", "1", "--fraction", "0.002", "--games", "4"],
    "snapshots": ["--snapshots", "2"],
    "startup": ["--runs", "1"],
    "sweep_members": ["--trials", "2", "--envs", "4", "--steps", "2000", "--seeds", "1", "--winner-seeds", "1",
                      "--sample", "1", "--halving", "2", "--eval-episodes", "2", "--no-warm-up"],
    "tcp_streams": ["--only", "courier", "sockets", "--runs", "1", "--seconds", "0.05"],
    "workers": ["--workers", "2", "--seconds", "1", "--kills", "1"],
}  # fmt: skip
"""By script: arguments with which it ends within minutes."""

NEEDS = {
    "inline_ppo": "stable_baselines3", "members_navix": "navix", "opponents": "pgx", "psro_exact": "pyspiel",
    "self_play": "pgx", "sweep_members": "optuna",
}  # fmt: skip
WITHOUT_A_RESULT = {"learning"}
LIMIT_S = 900


def test_every_benchmark_has_a_smallest_size() -> None:
    assert SMALLEST.keys() == {path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py")}


def test_the_page_lists_the_scripts_without_a_result() -> None:
    page = (ROOT / "docs" / "performance.md").read_text()
    section = page.split("### Scripts without a result\n")[1].split("\n## ")[0]
    listed = {line.split("`")[1].removesuffix(".py") for line in section.splitlines() if line.startswith("| `")}
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py")}
    results = [path.name for path in (ROOT / "benchmarks" / "results").iterdir()]
    # The name of a result begins with that of its script, which may be that of another: members, members_peer.
    of = {max((s for s in scripts if name.startswith(f"{s}-")), key=len, default="") for name in results}
    assert listed == scripts - of


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("name", SMALLEST)
def test_a_benchmark_runs(name: str, tmp_path: Path) -> None:
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    out = [] if name in WITHOUT_A_RESULT else ["--out", str(tmp_path)]
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *SMALLEST[name], *out]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert " failed:" not in ended.stdout
    assert ended.stdout
    results = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert bool(results) == bool(out)
    assert all(result["machine"]["cores"] for result in results)
