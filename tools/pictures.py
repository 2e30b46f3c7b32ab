"""Takes the pictures of docs/dash.md: `python tools/dash_pictures.py` trains a few runs and rewrites docs/images.

It needs Chromium and the `dash` extra, and takes some minutes.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
sys.path.insert(0, str(ROOT / "tests" / "support"))

RUNS = {
    "ppo": "ppo CartPole-v1 --steps 100000 --seed 1 --eval-every 20000",
    "ppo-fast": "ppo CartPole-v1 --steps 100000 --seed 1 --set learning_rate=5e-3",
    "seeds": "ppo gymnax:CartPole-v1 --steps 100000 --seeds 6",
}
"""Runs that have ended, beside the one that is watched."""

WATCHED = "impala CartPole-v1 --distribution decoupled --actors 2 --steps 100000000 --seed 1 --eval-every 50000"


def main() -> int:
    import browser as chromium
    from dash_server import dash_server

    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "runs"
        root.mkdir()
        for run, command in RUNS.items():
            _train(root / run, command).wait()
        with contextlib.ExitStack() as stack:
            watched = stack.enter_context(_training(root / "decoupled", WATCHED))
            server = stack.enter_context(dash_server(root))
            page = stack.enter_context(chromium.browser(Path(name)))
            page.size(1180, 470)
            page.open(server.address)
            page.wait(f"document.querySelectorAll('tbody tr').length === {len(RUNS) + 1}", 120)
            page.value("location.hash = 'run/0/decoupled', 0")
            page.wait("document.body.innerText.includes('messages/s')", 300)
            time.sleep(60)  # until there is a curve
            page.size(1180, 1380)
            page.value("window.scrollTo(0, 0)")
            time.sleep(2)
            page.screenshot(IMAGES / "dash-run.png")
            page.size(1180, 470)
            page.value("location.hash = '', 0")
            page.wait(f"document.querySelectorAll('tbody tr').length === {len(RUNS) + 1}")
            time.sleep(1)
            page.screenshot(IMAGES / "dash-runs.png")
            watched.terminate()
            watched.wait()
            page.size(1180, 900, dark=True)
            page.open((root / "ppo" / "report.html").as_uri())
            page.wait("document.querySelector('.chart .line')")
            time.sleep(1)
            page.screenshot(IMAGES / "report.png")
    return 0


@contextlib.contextmanager
def _training(run_dir: Path, command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run that is over when the block is."""
    process = _train(run_dir, command)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _train(run_dir: Path, command: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "runnel", "train", *command.split(), "--run-dir", str(run_dir), "--quiet"]
    return subprocess.Popen(words)


if __name__ == "__main__":
    sys.exit(main())
