"""Makes the pictures of the documentation: `python tools/pictures.py` trains a few runs and rewrites docs/images.

    python tools/pictures.py
    python tools/pictures.py --steps 4096 --curve-seconds 2 --out /tmp/pictures    # whether it works, in short runs

It needs Chromium and the `dash` and `gymnax` extras, and takes some minutes. `plan_pictures.py` draws the graphs and
plans, here too; the curves of docs/learning.md are drawn by `benchmarks/learning.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from browser import Browser

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "support")]

PICTURES = (
    "cartpole.png", "dash-runs.png", "dash-run.png", "dash-plan.png", "dash-phone.png", "dash-compare.png",
    "dash-group.png", "report.png",
)  # fmt: skip
"""Beside those of plans."""

RUNS = {
    "cartpole": "ppo CartPole-v1 --stop-at-return 475 --steps 1000000 --seed 1",
    "ppo": "ppo CartPole-v1 --steps 100000 --seed 1 --eval-every 20000",
    "ppo-fast": "ppo CartPole-v1 --steps 100000 --seed 1 --set learning_rate=5e-3",
    "seeds": "ppo gymnax:CartPole-v1 --steps 100000 --seeds 6",
}
"""Runs that have ended, beside the one that is watched. The first is that of `make train`."""

WATCHED = "impala CartPole-v1 --distribution decoupled --actors 2 --steps 100000000 --seed 1 --eval-every 50000"
GROUP = "ppo gymnax:CartPole-v1 --steps 10000000 --seeds 16"
"""Several runs that are watched together."""


def main() -> int:
    import plan_pictures

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=IMAGES, help="where the pictures go (docs/images)")
    parser.add_argument("--steps", type=int, help="of each run that ends, instead of its own")
    parser.add_argument(
        "--curve-seconds", type=float, default=60.0, help="how long a watched run trains before its picture (60)"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    plan_pictures.write(args.out)
    shorter = ["--steps", str(args.steps)] if args.steps else []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "runs"
        root.mkdir()
        for run, command in RUNS.items():
            _ended("train", *command.split(), *shorter, "--quiet", "--run-dir", str(root / run))
        _ended("plot", str(root / "cartpole"), "--out", str(args.out / "cartpole.png"))
        _take(root, Path(name), args.out, args.curve_seconds)
    return 0


def _take(root: Path, profile: Path, out: Path, curve_s: float) -> None:
    """The pictures of the live page and of a report."""
    from browser import browser
    from dash_server import dash_server

    with contextlib.ExitStack() as stack:
        watched = stack.enter_context(_training(root / "decoupled", WATCHED))
        server = stack.enter_context(dash_server(root))
        page = stack.enter_context(browser(profile))
        page.open(server.address)
        page.wait(f"document.querySelectorAll('tbody tr').length === {len(RUNS) + 1}", 120)
        _go(page, "run/0/decoupled", "document.body.innerText.includes('messages/s')")
        time.sleep(curve_s)
        _picture(page, out / "dash-run.png", 1180, 900)
        _picture(page, out / "dash-plan.png", 1180, 900, at=".plan")
        _go(page, "", f"document.querySelectorAll('tbody tr').length === {len(RUNS) + 1}")
        _picture(page, out / "dash-runs.png", 1180, 470)
        watched.terminate()
        watched.wait()
        with _training(root / "sixteen", GROUP):
            _go(page, "run/0%2Fsixteen", "document.querySelector('progress') && document.querySelector('.chart .band')")
            time.sleep(curve_s)
            _picture(page, out / "dash-group.png", 1180, 1320)
        _go(page, "compare/0%2Fppo/0%2Fppo-fast/0%2Fseeds", "document.querySelectorAll('.legend li').length === 3")
        _picture(page, out / "dash-compare.png", 1180, 760)
        _go(page, "run/0%2Fppo", "document.querySelector('.chart .line')")
        _picture(page, out / "dash-phone.png", 375, 740)
        page.open((root / "ppo" / "report.html").as_uri())
        page.wait("document.querySelector('.chart .line')")
        _picture(page, out / "report.png", 1180, 900, dark=True)


def _go(page: Browser, place: str, there: str) -> None:
    """Opens a page of the server, until something is true of it."""
    page.value(f"location.hash = '{place}', 0")
    page.wait(there, 300)


def _picture(page: Browser, file: Path, width: int, height: int, *, at: str = "header", dark: bool = False) -> None:
    """`at`: what is at the top of it, with its card."""
    page.size(width, height, dark)
    page.value(f"(e => (e.closest('section') ?? e).scrollIntoView())(document.querySelector('{at}')), 0")
    time.sleep(2)  # until it is drawn in this size
    page.screenshot(file)


@contextlib.contextmanager
def _training(run_dir: Path, command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run that is over when the block is."""
    process = _runnel("train", *command.split(), "--quiet", "--run-dir", str(run_dir))
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _ended(*words: str) -> None:
    """A command that has done what it should."""
    status = _runnel(*words).wait()
    if status:
        raise SystemExit(f"runnel {' '.join(words)} ended with {status}")


def _runnel(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "runnel", *words])


if __name__ == "__main__":
    sys.exit(main())
