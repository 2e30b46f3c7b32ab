"""`fused` on many devices computes the training of one, and only gradients and what replays exchange crosses.

Float64, to 1e-8 after 5 updates. Devices are threads of the CPU: this shows equality, not speed.
"""

import json
import os
import subprocess
import sys

import pytest
from gaps import beyond
from paths import SUPPORT

TO_64 = "1,2,4,16,32,64"

SLOW = (
    ("PPO", 128, TO_64),  # 64 blocks: minibatches of whole columns
    ("PPO GRU", 128, TO_64),
    ("PPO, single steps", 64, TO_64),  # 16 minibatches of 64 columns
    ("PPO", 60, "1,3,5"),
    ("PPO GRU", 30, "1,3,5"),
    ("MAPPO", 60, "1,3,5"),
    ("DQN", 64, TO_64),
    ("DQN prioritised", 64, TO_64),
    ("DQN", 15, "1,3,5"),
)


def measured(*cases: tuple[str, int, str], timeout_s: float = 280) -> dict[str, dict]:
    """The measurements of `tests/support/many_devices.py`, by algorithm."""
    arguments = [str(word) for case in cases for word in case]
    own = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(SUPPORT.parent)}
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "many_devices.py"), *arguments],
        capture_output=True, text=True, env=own, timeout=timeout_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


def check(found: dict, counts: str) -> None:
    every = [int(count) for count in counts.split(",")]
    assert list(found["distances"]) == [str(count) for count in every]
    assert beyond(found["distances"], 1e-8) == {}
    assert all(moved > 1e-4 for moved in found["moved"])
    assert [held * count for held, count in zip(found["held"], every, strict=True)] == [found["held"][0]] * len(every)
    gathered = sum(size for kind, size in found["crossing"] if kind != "all-reduce")
    reduced = sum(size for kind, size in found["crossing"] if kind == "all-reduce")
    # Returns and lengths of episodes come together, for the mean of the newest; items for a replay, and batches of it.
    assert gathered <= 2 * found["of_steps"] + found["memory"] + 2 * found["inserted"]
    # With the gradients go means and losses.
    assert reduced <= found["parameters"] + 512 + 2 * found["batches"]
    if not found["held"][0]:
        assert reduced >= found["parameters"]


def test_devices_that_are_no_power_of_two_compute_the_same_training():
    cases = ("PPO", 30, "1,3"), ("DQN", 12, "1,3")
    found = measured(*cases)
    for name, _, counts in cases:
        check(found[name], counts)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", SLOW, ids=lambda case: f"{case[0]} on {case[2]}")
def test_up_to_64_devices_compute_the_same_training(case):
    name, _, counts = case
    check(measured(case, timeout_s=1700)[name], counts)
