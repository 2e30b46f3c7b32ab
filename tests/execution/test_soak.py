"""Long runs: memory and descriptors of every process stay as they are, and files stay short."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from chaos import descendants

SECONDS = float(os.environ.get("SOAK_S", "240"))
WARM_S = 60.0


def memory_mb(pid: int) -> float:
    """The memory of this process alone, without shared memory."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1]) / 1024
    return 0.0


def look(pid: int) -> dict[str, tuple[float, int]]:
    """By process: memory and number of descriptors."""
    found = {}
    for each, name in {pid: "main", **descendants(pid)}.items():
        try:
            found[name or "main"] = (memory_mb(each), len(os.listdir(f"/proc/{each}/fd")))
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.learns
@pytest.mark.parametrize(
    "words",
    [
        ["ppo", "CartPole-v1", "--distribution", "coarse", "--actors", "2"],
        ["dqn", "CartPole-v1", "--distribution", "async", "--actors", "2"],
        ["ppo", "CartPole-v1", "--distribution", "fine", "--actors", "2"],
        ["ppo", "gymnax:CartPole-v1", "--distribution", "fused"],
        ["ppo", "CartPole-v1", "--distribution", "coarse", "--actors", "2", "--eval-every", "20_000"],
    ],
    ids=["coarse", "async", "fine", "fused", "coarse, evaluated"],
)
def test_nothing_grows(words: list[str], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    flags = ["--steps", "10_000_000_000", "--run-dir", str(run_dir), "--quiet", "--checkpoint-every", "5"]
    process = subprocess.Popen([sys.executable, "-m", "runnel", "train", *words, *flags])
    try:
        time.sleep(WARM_S)
        seen = [look(process.pid)]
        for _ in range(4):
            time.sleep((SECONDS - WARM_S) / 4)
            assert process.poll() is None
            seen.append(look(process.pid))
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
    for name, (before, fds) in seen[1].items():
        after, fds_after = seen[-1][name]
        print(f"{name}: {before:.0f} MB and {fds} descriptors, then {after:.0f} MB and {fds_after}")
        assert fds_after <= fds + 2, (name, seen)
        assert after < before * 1.1 + 16, (name, seen)
    lines = (run_dir / "metrics.jsonl").read_text().count("\n")
    assert lines <= SECONDS + 60
