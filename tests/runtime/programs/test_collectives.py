"""Learners on several devices exchange gradients and nothing else."""

import json
import subprocess
import sys

from paths import SUPPORT


def test_only_gradients_cross_between_learners():
    script = SUPPORT / "collectives.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    for name, found in json.loads(done.stdout).items():
        gathered = sum(size for kind, size in found["crossing"] if kind != "all-reduce")
        reduced = sum(size for kind, size in found["crossing"] if kind == "all-reduce")
        # With the gradients go a few scalars: means, and the losses that are reported. A memory goes with its column.
        assert found["parameters"] <= reduced <= found["parameters"] + 256, (name, found)
        assert gathered <= found["memory"], (name, found)
