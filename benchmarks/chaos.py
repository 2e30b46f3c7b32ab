"""Claim: a run survives whatever happens to its workers, and is back at work within seconds.

Under every distribution of several processes a random worker, learners included, is killed or stopped one to five
seconds after the last one recovered, until so many were; then the run is asked to stop, resumed, and must end as if
nothing had happened, having learnt what it should. The time from each signal to the moment the worker is at work again
is written down; of one that is stopped, the five seconds that pass before that is noticed are in it.

    python benchmarks/chaos.py                                # one distribution after the other
    python benchmarks/chaos.py coarse fine --kills 10 --at-once 2
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from chaos_runs import RUNS, best_return, chaos

from benchmarks import _machine as machine


def run(name: str, kills: int, limit_s: float, directory: Path) -> dict[str, Any]:
    """One run; what was done to it and what became of it."""
    *_, target = RUNS[name]
    broken = chaos(name, directory / name, kills)
    began, error = time.monotonic(), ""
    try:
        status: int | None = broken.run(limit_s)
    except Exception as problem:
        status, error = None, f"{type(problem).__name__}: {problem}"[:2000]
    row: dict[str, Any] = {"distribution": name, "exit_status": status, "seconds": time.monotonic() - began}
    if status == 0:
        result = broken.result()
        row |= {key: result[key] for key in ("status", "env_steps", "updates", "mean_return", "restarts")}
        row["restart_reasons"] = result["restart_reasons"]
        row["best_return"] = best_return(broken.run_dir)
    row |= {"wanted_return": target, "error": error or ("" if status == 0 else broken.output()[-2000:])}
    row["kills"] = [{"worker": b.worker, "signal": b.signal, "recovery_s": b.recovery_s} for b in broken.done]
    print(told(row), flush=True)
    return row


def told(row: dict[str, Any]) -> str:
    def median(number: str) -> str:
        times = [k["recovery_s"] for k in row["kills"] if k["signal"] == number and k["recovery_s"] is not None]
        return f"{statistics.median(times):.2f} s (most {max(times):.2f})" if times else "-"

    ended = row.get("status", f"exit status {row['exit_status']}")
    return (
        f"{row['distribution']}: {len(row['kills'])} signals, {ended}, return {row.get('best_return')}; back after "
        f"SIGKILL in {median('SIGKILL')}, after SIGSTOP in {median('SIGSTOP')} {row['error']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("distributions", nargs="*", default=list(RUNS))
    parser.add_argument("--kills", type=int, default=30, help="of each")
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side, where there are cores for them")
    parser.add_argument("--limit", type=float, default=1500.0, help="seconds for each")
    parser.add_argument("--out", help="directory for the raw results")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(args.at_once) as pool:
        rows = list(pool.map(lambda name: run(name, args.kills, args.limit, Path(directory)), args.distributions))
    total = sum(len(row["kills"]) for row in rows)
    print(f"{total} signals, {sum(row['exit_status'] != 0 for row in rows)} runs that did not end well")
    result = {"machine": machine.describe("gymnasium"), "kills": total, "at_once": args.at_once, "rows": rows}
    print(machine.save("chaos", result, args.out))


if __name__ == "__main__":
    main()
