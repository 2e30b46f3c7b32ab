"""Training from Python: build a plan, run it, and leave a run directory that can be resumed and evaluated."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from pathlib import Path
from typing import Any, Literal, get_args

from runnel import portable
from runnel.algorithm import Algorithm
from runnel.building import Built, build, read_config, rebuild
from runnel.configure import configure_jax
from runnel.errors import UserError
from runnel.plan import Distribution
from runnel.session import Run, Session
from runnel.sinks import check_wandb

__all__ = ["Built", "Run", "build", "read_config", "rebuild", "resume", "train"]

DEFAULT_STEPS = 500_000

OnNan = Literal["stop", "skip", "rollback"]
"""What to do when an update is refused because something is not finite."""

LIGHT = ("runnel.workers", "runnel.runtime.light", "runnel.envs.gymnasium")
HEAVY = ("runnel.workers", "runnel.building", "runnel.runtime.worker", "runnel.envs.stepped", "rlax", "distrax")
"""What workers import; the servers that they are forked from do it for them."""


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
    restarts: int = 10,
    hang_after_s: float = 120.0,
    on_nan: OnNan = "stop",
    settings: dict[str, Any] | None = None,
    env_settings: dict[str, Any] | None = None,
) -> Run:
    """Trains until `steps` environment steps, or a mean return over 100 episodes, are reached.

    A worker that dies, raises, or gives no sign of life for `hang_after_s` is replaced, up to `restarts` times within
    ten minutes. An update that would bring NaN or infinity into the learner's state is refused; then `on_nan` ends the
    run, skips the update, or goes back to the newest checkpoint.
    """
    portable.defined_enough()
    began = time.monotonic()
    if steps < 1:
        raise UserError(f"--steps {steps}: a step or more is needed")
    if launcher != "local":
        raise UserError(f"launcher '{launcher}' is not in this version; use local")
    if wandb:
        check_wandb()
    configure_jax()
    with contextlib.closing(_Servers(distribution)) as servers:
        built = build(algorithm, environment, distribution, envs, settings, env_settings)
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
            "restarts": restarts,
            "hang_after_s": hang_after_s,
            "on_nan": _known(on_nan),
        }
        if built.plan.workers > 1:
            _check_portable(config, built)
        directory = _fresh_directory(run_dir, built, seed)
        session = Session(directory, config, built, began=began, quiet=quiet, launcher=servers.launcher)
        return session.run()


def resume(
    run_dir: str | Path,
    *,
    steps: int | None = None,
    distribution: Distribution | str | None = None,
    on_nan: OnNan | None = None,
    quiet: bool = False,
) -> Run:
    """Goes on with a run where its newest whole checkpoint left it."""
    portable.defined_enough()
    began = time.monotonic()
    configure_jax()
    directory, config = Path(run_dir), read_config(run_dir)
    if on_nan is not None:
        config["on_nan"] = _known(on_nan)
    with contextlib.closing(_Servers(distribution or config.get("distribution"))) as servers:
        built = rebuild(run_dir, config, distribution)
        if steps is not None:
            config["steps"] = steps
            reached = _mean_return(directory)
            if None not in (reached, config["stop_at_return"]) and reached >= config["stop_at_return"]:
                config["stop_at_return"] = None  # it has been reached; who asks for more steps wants to go beyond
        config["distribution"] = portable.to_json(built.distribution)
        session = Session(directory, config, built, began=began, quiet=quiet, resumed=True, launcher=servers.launcher)
        return session.run()


def _mean_return(directory: Path) -> Any:
    """What the run's last result tells; None where there is none that can be read."""
    try:
        found = json.loads((directory / "result.json").read_text())["mean_return"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if type(found) in (int, float) else None


def _known(on_nan: str) -> str:
    known = get_args(OnNan)
    if on_nan not in known:
        raise UserError(f"on_nan is {on_nan!r}; wanted {', '.join(map(repr, known))}")
    return on_nan


def _check_portable(config: dict[str, Any], built: Built) -> None:
    """Workers are other processes: what they cannot import they cannot run."""
    for part in ("algorithm", "distribution"):
        why = portable.reason(config[part])
        if why is not None:
            raise UserError(
                f"distribution {built.plan.distribution} runs in {built.plan.workers} processes, and {why}; "
                "inline and fused run it as it is"
            )


class _Servers:
    """The launcher of a run, whose servers import while this process does; none where no workers will be needed."""

    def __init__(self, distribution: Any):
        self.launcher: Any = None
        if isinstance(distribution, dict):
            distribution = str(distribution.get("class"))
        name = distribution if isinstance(distribution, str) else type(distribution).__name__
        if name.rpartition(":")[2].lower() in ("nonetype", "inline", "fused"):
            return
        from runnel.launch import LocalLauncher

        self.launcher = LocalLauncher()
        self.launcher.warm(light=LIGHT, jax=HEAVY)

    def close(self) -> None:
        if self.launcher is not None:
            self.launcher.close()


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
