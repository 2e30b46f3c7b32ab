"""Training from Python: build a plan, run it, and leave a run directory that can be resumed and evaluated."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

from runnel import portable
from runnel.algorithm import Algorithm
from runnel.building import Built, build, read_config, rebuild
from runnel.configure import configure_jax
from runnel.errors import UserError
from runnel.metrics import check_wandb
from runnel.plan import Distribution
from runnel.session import Run, Session

__all__ = ["Built", "Run", "build", "read_config", "rebuild", "resume", "train"]

DEFAULT_STEPS = 500_000


def train(
    algorithm: Algorithm | str,
    environment: str,
    distribution: Distribution | str | None = None,
    *,
    envs: int | None = None,
    steps: int = DEFAULT_STEPS,
    seed: int = 0,
    run_dir: str | Path | None = None,
    stop_at_return: float | None = None,
    launcher: str = "local",
    quiet: bool = False,
    wandb: bool = False,
    checkpoint_every_s: float = 60.0,
    settings: dict[str, Any] | None = None,
    env_settings: dict[str, Any] | None = None,
) -> Run:
    """Trains until `steps` environment steps, or a mean return over 100 episodes, are reached."""
    began = time.monotonic()
    if steps < 1:
        raise UserError(f"--steps {steps}: a step or more is needed")
    if launcher != "local":
        raise UserError(f"launcher '{launcher}' is not in this version; use local")
    if wandb:
        check_wandb()
    configure_jax()
    built = build(algorithm, environment, distribution, envs, settings, env_settings)
    directory = _fresh_directory(run_dir, built, seed)
    config = {
        "algorithm": portable.to_json(built.algorithm),
        "environment": {"name": environment, "settings": env_settings or {}},
        "distribution": portable.to_json(built.distribution),
        "envs": built.graph.envs,
        "steps": steps,
        "seed": seed,
        "stop_at_return": stop_at_return,
        "wandb": wandb,
        "checkpoint_every_s": checkpoint_every_s,
    }
    session = Session(directory, config, built, began=began, quiet=quiet)
    return session.run()


def resume(
    run_dir: str | Path,
    *,
    steps: int | None = None,
    distribution: Distribution | str | None = None,
    quiet: bool = False,
) -> Run:
    """Goes on with a run where its newest whole checkpoint left it."""
    began = time.monotonic()
    configure_jax()
    directory, config = Path(run_dir), read_config(run_dir)
    built = rebuild(run_dir, config, distribution)
    if steps is not None:
        config["steps"] = steps
        if (directory / "result.json").exists():
            reached = json.loads((directory / "result.json").read_text()).get("mean_return")
            if None not in (reached, config["stop_at_return"]) and reached >= config["stop_at_return"]:
                config["stop_at_return"] = None  # it has been reached; who asks for more steps wants to go beyond
    config["distribution"] = portable.to_json(built.distribution)
    session = Session(directory, config, built, began=began, quiet=quiet, resumed=True)
    return session.run()


def _fresh_directory(run_dir: str | Path | None, built: Built, seed: int) -> Path:
    """A directory for the run; one that already holds a run is refused, never written over."""
    if run_dir is None:
        slug = re.sub(
            r"[^A-Za-z0-9.]+", "-", f"{type(built.algorithm).__name__.lower()}-{built.graph.spec.name}-{seed}"
        )
        run_dir = Path("runs") / f"{slug}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    directory = Path(run_dir)
    held = [
        name for name in ("config.json", "metrics.jsonl", "checkpoints", "result.json") if (directory / name).exists()
    ]
    if held:
        raise UserError(
            f"{directory} already holds a run ({', '.join(held)}); go on with it by `runnel resume {directory}`, "
            "or choose another --run-dir"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"cannot write a run into {directory}: {error.strerror}; choose another --run-dir") from None
    return directory
