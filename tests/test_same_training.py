"""Synchronous distributions compute the same training: float64, to 1e-8 after 5 updates."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WAYS = ("inline", "inline, stepped from the host", "fused on 1", "fused on 2", "fused on 8")
ALGORITHMS = ("PPO", "PPO continuous", "PPO GRU", "DQN", "own algorithm", "groups")


@pytest.fixture(scope="module")
def distances():
    """How far the parameters of each way end from those of `inline`."""
    script = Path(__file__).parent / "same_training.py"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(script.parent.parent)}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.timeout(700)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_way_ends_with_the_same_parameters(distances, algorithm):
    found = {way: distances[f"{algorithm}: {way}"] for way in WAYS}
    assert max(found.values()) <= 1e-8, found
