"""Runnel: PPO under `coarse`, two actors and a learner, by its command line; `runnel resume` to resume."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from benchmarks._fault_env import NAME
from benchmarks._fault_peers._telling import SAVE_EVERY_S, STEPS, Telling, arguments
from runnel.cli import main as cli


def _tell(directory: Path) -> None:
    """What the run's own metrics say, in the words that all scripts here share."""
    telling, path, last = Telling(directory), directory / "run" / "metrics.jsonl", ""
    while True:
        time.sleep(0.25)
        lines = path.read_text().splitlines() if path.exists() else []
        if lines and lines[-1] != last:
            try:
                record = json.loads(lines[-1])
            except ValueError:
                continue  # it is being written
            last = lines[-1]
            losses = [value for name, value in record.items() if name.startswith("learn/")]
            telling.tell(record.get("env_steps", 0), finite=None not in losses)


def main() -> int:
    args = arguments()
    run_dir = str(args.dir / "run")
    threading.Thread(target=_tell, args=(args.dir,), daemon=True).start()
    if args.resume:
        return cli.main(["resume", run_dir])
    where = ["--distribution", "coarse", "--actors", "2", "--envs", "8"]
    kept = ["--run-dir", run_dir, "--checkpoint-every", str(SAVE_EVERY_S)]
    return cli.main(["train", "ppo", NAME, *where, *kept, "--steps", str(STEPS), "--seed", "0"])


if __name__ == "__main__":
    sys.exit(main())
