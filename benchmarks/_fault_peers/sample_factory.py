"""Sample Factory: APPO over two rollout workers, one inference and one learner process; the same command resumes.

Its settings against faults are heartbeats. They are left as they are (a check every 180 s), or with --tolerant made
every 20 s. Other settings make the run small.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

from benchmarks._fault_env import Faulty
from benchmarks._fault_peers._telling import SAVE_EVERY_S, STEPS, Telling, arguments


class Tell(AlgoObserver):
    def __init__(self, directory: Path):
        self._directory, self._telling = directory, Telling(directory)
        self._looked_at, self._finite = 0.0, True

    def on_start(self, runner: Runner) -> None:
        (learner,) = runner.processes
        (self._directory / "learner.json").write_text(json.dumps({"pid": learner.pid}))

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        if runner.env_steps:
            if time.monotonic() - self._looked_at > 2.0:
                self._looked_at = time.monotonic()
                self._finite = self._newest_is_finite()
            self._telling.tell(sum(runner.env_steps.values()), self._finite)

    def _newest_is_finite(self) -> bool:
        """The learner is another process: what it saved last is what can be seen of its parameters."""
        kept = sorted((self._directory / "train" / "run" / "checkpoint_p0").glob("checkpoint_*.pth"))
        if not kept:
            return True
        try:
            model = torch.load(kept[-1], map_location="cpu", weights_only=False)["model"]
        except (OSError, RuntimeError, EOFError):
            return self._finite  # it has just been replaced
        return all(bool(torch.isfinite(each).all()) for each in model.values())


def make_env(full_env_name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> Faulty:
    return Faulty()


def main() -> int:
    args = arguments()
    register_env("faulty", make_env)
    settings = {
        "env": "faulty",
        "train_dir": str(args.dir / "train"),
        "experiment": "run",
        "device": "cpu",
        "num_workers": 2,
        "num_envs_per_worker": 4,
        "rollout": 32,
        "batch_size": 512,
        "num_epochs": 2,
        "use_rnn": False,
        "encoder_mlp_layers": [64, 64],
        "train_for_env_steps": STEPS,
        "save_every_sec": int(SAVE_EVERY_S),
        "decorrelate_experience_max_seconds": 0,
    }
    if args.tolerant:
        settings |= {"heartbeat_interval": 5, "heartbeat_reporting_interval": 20}
    argv = []
    for name, value in settings.items():
        argv += [f"--{name}", *map(str, value)] if isinstance(value, list) else [f"--{name}={value}"]
    parser, _ = parse_sf_args(argv)
    _, runner = make_runner(parse_full_cfg(parser, argv))
    runner.register_observer(Tell(args.dir))
    status = runner.init()
    if status == ExperimentStatus.SUCCESS:
        status = runner.run()
    return int(status)


if __name__ == "__main__":
    raise SystemExit(main())
