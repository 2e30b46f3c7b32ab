"""Training from Python: build a plan, run it, and leave a run directory that can be resumed and evaluated."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from runnel import lock, portable, rundir
from runnel.algorithm import Algorithm
from runnel.building import Built, build, read_config, rebuild
from runnel.configure import configure_jax
from runnel.envs import FAMILIES
from runnel.errors import UserError
from runnel.exits import contained
from runnel.files import check_layout, read_json
from runnel.plan import Distribution, plural
from runnel.premises import Machines, OneMachine, Premises, on
from runnel.session import Run, Session
from runnel.sinks import check_wandb

if TYPE_CHECKING:
    from runnel.launch.hosts import Hosts

__all__ = ["Built", "Run", "build", "read_config", "rebuild", "resume", "train"]

DEFAULT_STEPS = 500_000

ALONE = "a run of one process: it is here, and the cluster is not used; see --distribution"

OnNan = Literal["stop", "skip", "rollback"]
"""What to do when an update is refused because something is not finite."""


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
    launcher: str | Hosts = "local",
    address: str | None = None,
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

    With `launcher="ray"` workers run on all machines of a Ray cluster: that at `address`, else one that can be found,
    else one that is started on this machine.
    """
    portable.defined_enough()
    began = time.monotonic()
    if steps < 1:
        raise UserError(f"--steps {steps}: a step or more is needed")
    if wandb:
        check_wandb()
    configure_jax()
    with contained(), contextlib.ExitStack() as stack:
        built, premises = _settle(
            stack, launcher, address, distribution, environment,
            lambda: build(algorithm, environment, distribution, envs, settings, env_settings),
        )  # fmt: skip
        config = {
            "algorithm": portable.to_json(built.algorithm),
            "environment": {"name": _whole(environment), "settings": built.env_settings},
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
        built = stack.enter_context(_alone(directory, built))
        _refuse_held(directory)  # of two that start at once, the other may have been faster
        session = Session(directory, config, built, began=began, quiet=quiet, premises=premises)
        return session.run()


def resume(
    run_dir: str | Path,
    *,
    steps: int | None = None,
    distribution: Distribution | str | None = None,
    on_nan: OnNan | None = None,
    launcher: str | Hosts = "local",
    address: str | None = None,
    quiet: bool = False,
) -> Run:
    """Goes on with a run where its newest whole checkpoint left it."""
    portable.defined_enough()
    began = time.monotonic()
    configure_jax()
    directory, config = Path(run_dir), read_config(run_dir)
    if on_nan is not None:
        config["on_nan"] = _known(on_nan)
    with contained(), contextlib.ExitStack() as stack:
        built, premises = _settle(
            stack, launcher, address, distribution or config.get("distribution"), config["environment"]["name"],
            lambda: rebuild(run_dir, config, distribution),
        )  # fmt: skip
        built = stack.enter_context(_alone(directory, built))
        if steps is not None:
            config["steps"] = steps
            reached = _mean_return(directory)
            if None not in (reached, config["stop_at_return"]) and reached >= config["stop_at_return"]:
                config["stop_at_return"] = None  # it has been reached; who asks for more steps wants to go beyond
        config["distribution"] = portable.to_json(built.distribution)
        session = Session(directory, config, built, began=began, quiet=quiet, resumed=True, premises=premises)
        return session.run()


def _mean_return(directory: Path) -> Any:
    """What the run's last result tells; None where there is none that can be read."""
    try:
        found = read_json(directory, "result.json")["mean_return"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if type(found) in (int, float) else None


def _whole(environment: str) -> str:
    """The name as a run keeps it: that of a script by its whole path, for the run is evaluated from anywhere."""
    file, _, attribute = environment.rpartition(":")
    return f"{Path(file).resolve()}:{attribute}" if file.endswith(".py") else environment


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


def _settle(
    stack: contextlib.ExitStack, launcher: str | Hosts, address: str | None, distribution: Any, environment: Any,
    make: Callable[[], Built],
) -> tuple[Built, Premises]:  # fmt: skip
    """Builds a run, for this machine or for those that a launcher finds, and has them made ready meanwhile."""
    if isinstance(launcher, str) and launcher not in ("local", "ray"):
        raise UserError(f"launcher '{launcher}' is not known; use local or ray")
    premises: Premises = _here(launcher, distribution, environment)
    stack.callback(premises.close)
    built = make()
    if launcher != "local" and built.plan.workers > 1:
        flags, notes = "", ()
        if isinstance(launcher, str):
            from runnel.launch.ray import RayHosts

            launcher = RayHosts(address, built.plan.workers)
            stack.callback(launcher.close)
            flags = " --launcher ray" + (f" --address {address}" if address else "")
            notes = ("no Ray cluster was found: one is started on this machine",) if launcher.started else ()
        from runnel.launch.cluster import Cluster

        premises = Machines(Cluster(launcher), flags)
        stack.callback(premises.close)
        built = on(built, premises.machines)
        if not notes:
            notes = (f"on {plural(len(premises.machines), 'machine')}: {', '.join(m.name for m in premises.machines)}",)
        built = built._replace(plan=replace(built.plan, notes=(*notes, *built.plan.notes)))
    elif launcher != "local":
        built = built._replace(plan=replace(built.plan, notes=(ALONE, *built.plan.notes)))
    return built, premises


def _here(launcher: str | Hosts, distribution: Any, environment: Any) -> OneMachine:
    """This machine; where workers will be needed, with servers that import for them while this process does."""
    if isinstance(distribution, dict):
        distribution = str(distribution.get("class"))
    name = distribution if isinstance(distribution, str) else type(distribution).__name__
    if launcher != "local" or name.rpartition(":")[2].lower() in ("nonetype", "inline", "fused"):
        return OneMachine()
    from runnel.launch import LocalLauncher
    from runnel.launch.host import HEAVY, LIGHT

    local = LocalLauncher()
    families = [family for family in FAMILIES if isinstance(environment, str) and environment.startswith(family.prefix)]
    local.warm(light=LIGHT, jax=[*HEAVY, *(family.package for family in families)])
    return OneMachine(local)


def _fresh_directory(run_dir: str | Path | None, built: Built, seed: int) -> Path:
    """A directory for the run; one that already holds a run is refused, never written over."""
    if run_dir is None:
        slug = re.sub(
            r"[^A-Za-z0-9.]+", "-", f"{type(built.algorithm).__name__.lower()}-{built.graph.spec.name}-{seed}"
        )
        run_dir = Path("runs") / f"{slug}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    directory = Path(run_dir)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write a run into {directory}: {error.strerror}; choose another --run-dir") from None
    _refuse_held(directory)
    return directory


def _refuse_held(directory: Path) -> None:
    held = [
        name
        for name in ("config.json", "metrics.jsonl", "checkpoints", "result.json")
        if rundir.exists(directory, name)
    ]
    if held:
        raise UserError(
            f"{directory} already holds a run ({', '.join(held)}); go on with it by `runnel resume {directory}`, "
            "or choose another --run-dir"
        )


@contextlib.contextmanager
def _alone(directory: Path, built: Built) -> Iterator[Built]:
    """Around a run: keeps others out of its directory, and refuses one that a run could not write into as it should."""
    check_layout(directory)
    notes: list[str] = []
    with lock.hold(directory, notes.append):
        yield built._replace(plan=replace(built.plan, notes=(*built.plan.notes, *notes)))
