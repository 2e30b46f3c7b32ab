"""Synchronous distributions compute the same training: float64, to 1e-8 after 5 updates."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WAYS = ("inline", "inline, stepped from the host", "fused on 1", "fused on 2", "fused on 8")
ALGORITHMS = ("PPO", "PPO continuous", "PPO GRU", "DQN", "own algorithm", "groups")


@pytest.mark.timeout(900)
def test_every_way_ends_with_the_same_parameters():
    """One test, because one process measures them all: `tests/same_training.py`."""
    script = Path(__file__).parent / "same_training.py"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(script.parent.parent)}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=800, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    distances = json.loads(done.stdout.splitlines()[-1])
    assert set(distances) == {f"{algorithm}: {way}" for algorithm in ALGORITHMS for way in WAYS}
    assert {name: distance for name, distance in distances.items() if not distance <= 1e-8} == {}
