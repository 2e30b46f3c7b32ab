"""Claim: `runnel dash` opens a directory of 200 runs within two seconds.

One run is trained; the others are copies of its directory with a seed and a record of metrics of their own, as long as
that of a run of `--lines` seconds. The page is opened in a headless Chromium: once in a new server, which has read
nothing yet, and once more. Measured is the time from opening the address until the frame after the last row, and the
processor time that server and browser took for it: on a busy machine that is the one to look at.

    python benchmarks/dash.py
    python benchmarks/dash.py --runs 20 --lines 100 --repeats 1
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from benchmarks import _machine as machine

LIMIT_S = 2.0
COMMAND = "train ppo gymnax:CartPole-v1 --distribution fused --steps 20000 --seed 0 --quiet --run-dir"

LISTED = """new MutationObserver(() => {
    if (window.listed_ms || document.querySelectorAll("tbody tr").length !== RUNS) return;
    window.listed_ms = -1;
    requestAnimationFrame(() => requestAnimationFrame(() => (window.listed_ms = performance.now())));
}).observe(document, { childList: true, subtree: true });"""


def make_runs(root: Path, runs: int, lines: int) -> None:
    first = root / "run-000"
    subprocess.run([sys.executable, "-m", "runnel", *COMMAND.split(), str(first)], cwd=ROOT, check=True)
    record = json.loads((first / "metrics.jsonl").read_text().splitlines()[-1])
    config = json.loads((first / "config.json").read_text())
    for k in range(runs):
        run_dir = root / f"run-{k:03d}"
        if k:
            shutil.copytree(first, run_dir, symlinks=True)
        (run_dir / "config.json").write_text(json.dumps({**config, "seed": k}))
        with (run_dir / "metrics.jsonl").open("w") as file:
            for line in range(1, lines + 1):
                now = {"env_steps": 1000 * line, "mean_return": 500 * line / (line + 100 + k), "wall_seconds": line}
                file.write(json.dumps({**record, **now}) + "\n")


def opened(root: Path, runs: int, profile: Path) -> dict[str, float]:
    """Seconds: until the server listens, until its first page has all runs, and until that is opened again.

    Of the clock, and of the processor: `start_cpu_s` is of the server, the others are of the browser too.
    """
    import browser
    from dash_server import dash_server

    began, used_s = time.monotonic(), processor_s()
    with dash_server(root) as server:
        found = {"start_s": time.monotonic() - began, "start_cpu_s": processor_s() - used_s}
        with browser.browser(profile) as page:
            page.size(1200, 900)
            page.call("Page.addScriptToEvaluateOnNewDocument", source=LISTED.replace("RUNS", str(runs)))
            for name in ("first", "again"):
                used_s = processor_s()
                page.open(server.address)
                page.wait("window.listed_ms > 0", 120)
                found[f"{name}_s"] = page.value("window.listed_ms") / 1000
                found[f"{name}_cpu_s"] = processor_s() - used_s
    return found


def processor_s() -> float:
    """The processor time of all processes below this one, with those of theirs that have ended and were waited for."""
    from chaos import descendants

    ticks = 0
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):  # it has just ended
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--lines", type=int, default=3600, help="of each run's metrics, one a second (3600)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", metavar="DIR", help="where the raw results go (benchmarks/results)")
    args = parser.parse_args()
    load, found = os.getloadavg()[0], list[dict[str, float]]()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "runs"
        root.mkdir()
        make_runs(root, args.runs, args.lines)
        for repeat in range(args.repeats):
            profile = Path(directory) / f"profile-{repeat}"
            profile.mkdir()
            found.append(opened(root, args.runs, profile))
            print(", ".join(f"{name} {value:.2f}" for name, value in found[-1].items()), flush=True)
    medians = {name: statistics.median(each[name] for each in found) for name in found[0]}
    kept = "kept" if medians["first_s"] < LIMIT_S else "NOT kept"
    print(f"{args.runs} runs open in {medians['first_s']:.2f} s (median), under {LIMIT_S:.0f}: {kept}")
    result: dict[str, Any] = {
        "runs": args.runs,
        "lines": args.lines,
        "load_before": load,
        "opened": found,
        "medians": medians,
    }
    packages = ("starlette", "uvicorn")
    print(machine.save("dash", {"machine": machine.describe_elsewhere(*packages), **result}, args.out))


if __name__ == "__main__":
    main()
