"""A synchronous run whose workers are killed ends with bitwise the same state as one whose workers are not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from chaos import Chaos
from kill_runs import PLANS, assert_same, final_state, train, undisturbed


def killed(command: list[str], workers: list[str], run_dir: Path, steps: int, most: int, seed: int) -> Chaos:
    chaos = Chaos(
        train(command, run_dir, steps), run_dir, workers, seed=seed, pause_s=(0.2, 1.5), signals=[signal.SIGKILL],
        most=most,
    )  # fmt: skip
    assert chaos.run() == 0, chaos.output()
    return chaos


@pytest.mark.parametrize(
    "name", ["coarse", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fine", "frames"))]
)
def test_killed_players_change_nothing(name: str, tmp_path: Path) -> None:
    command, workers = PLANS[name]
    wanted = undisturbed(command, tmp_path / "calm", 40_000)
    chaos = killed(command, workers, tmp_path / "killed", 40_000, most=3, seed=1)
    recovered = sum(broken.recovery_s is not None for broken in chaos.done)
    assert recovered
    reasons = chaos.result()["restart_reasons"]
    # A worker killed after its last unroll is not restarted: the run ends first.
    restarted = sum(times for reason, times in reasons.items() if "was killed by signal 9" in reason)
    assert recovered <= restarted <= len(chaos.done)
    # One that is killed before its first unroll costs another restart: its replacement finds no journal entry.
    assert all("was killed by signal 9" in r or "the journal has no entry" in r for r in reasons), reasons
    assert_same(final_state(tmp_path / "killed"), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_killed_players_and_learners_change_nothing(name: str, tmp_path: Path) -> None:
    command, workers = PLANS[name]
    steps = int(os.environ.get("STEPS", "150000"))
    wanted = undisturbed(command, tmp_path / "calm", steps)
    for seed in (1, 2):
        run_dir = tmp_path / f"killed-{seed}"
        chaos = killed(command, [*workers, *workers, "learner", "agent"], run_dir, steps, most=20, seed=seed)
        assert chaos.done
        assert_same(final_state(run_dir), wanted)
