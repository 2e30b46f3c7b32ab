"""Searches a space for the settings with which an algorithm trains best.

    found = runnel.sweep("ppo", "gymnax:CartPole-v1", over={"learning_rate": runnel.LogUniform(1e-4, 1e-2)}, trials=64)
    found.best, found.winner.result["iqm_return"]

Every trial is a few members of one directory, a member for each seed; `SweepDriver` trains them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runnel import algorithms
from runnel.algorithm import Algorithm
from runnel.config import run_config, search_space
from runnel.config.jax_config import configure_jax
from runnel.errors import UserError
from runnel.execution import config_file
from runnel.execution.members.training import OF_ONE_RUN, MemberMaker
from runnel.execution.run_directories import alone, cleared, fresh_directory, refuse_held
from runnel.execution.supervision.machine_pool import check_workers
from runnel.execution.sweeps.driver import Sweep, SweepDriver
from runnel.execution.sweeps.sweep_spec import in_iterations, made_spec
from runnel.execution.sweeps.trials import import_optuna
from runnel.execution.training import described, with_signature
from runnel.planning.plan import Distribution
from runnel.recording import sweep_file
from runnel.recording.files import write_json_atomically
from runnel.recording.sweep_file import SweepSpec
from runnel.reporting import metrics_server
from runnel.system import startup
from runnel.system.exits import contained
from runnel.user_code.loading import defined_enough

__all__ = ["Sweep", "resume_sweep", "sweep"]


def sweep(
    algorithm: Algorithm | type[Algorithm] | str,
    environment: str | Any,
    distribution: Distribution | type[Distribution] | str | None = None,
    *,
    over: Mapping[str, Any] | Sequence[str],
    trials: int | None = None,
    sampler: str = "tpe",
    batch: int | None = None,
    seeds: int | Sequence[int] = 3,
    halving: int | None = None,
    rungs: int | None = None,
    winner_seeds: int = 10,
    run_dir: str | Path | None = None,
    quiet: bool = False,
    launcher: str = "local",
    address: str | None = None,
    **asked: Any,
) -> Sweep:
    """Searches a space of settings for those that reach the highest return.

    `over`: by setting, a list of values, or `runnel.LogUniform`, `runnel.Uniform` or `runnel.IntUniform`; or text as on
    the command line. `trials`: the number of trials; `batch`: the number that is trained together. `sampler`: `tpe`,
    `random` or `grid`. `seeds`: the seeds of each trial, as for `train_members`; the objective is the mean of their
    final evaluations. `halving`: the best of this many trials is trained further, in `rungs` steps. The best trial's
    settings are trained again on `winner_seeds` unseen seeds. Other keywords are those of `train`, for each member.

    It is one function because it is a list of steps before the first trial, most of them one call. Its parameters are
    one list because each is a separate choice, which `runnel sweep` has as a flag.
    """
    defined_enough()
    began = time.monotonic()
    import_optuna()
    _refuse(asked)
    # The objective is an evaluation at the end: where nothing else is asked for, one at the beginning and one there.
    asked = {**asked, "eval_every": asked.get("eval_every") or asked.get("steps", run_config.RunConfig.steps)}
    maker = MemberMaker.of(algorithm, environment, distribution, {**asked, "run_dir": run_dir})
    configure_jax()
    with contained(), startup.starting(quiet), contextlib.ExitStack() as stack:
        stack.enter_context(metrics_server.serving(maker.run.metrics_port, maker.run.metrics_address, quiet))
        spec = made_spec(
            _class_of(algorithm), over, maker.run, trials=trials, sampler=sampler, batch=batch, seeds=seeds,
            halving=halving, rungs=rungs, winner_seeds=winner_seeds,
        )  # fmt: skip
        twice = sorted(set(spec.space) & set(maker.run.settings or {}))
        if twice:
            raise UserError(
                f"over={twice[0]}: found it among the settings for all trials too, expected it in one of them",
                keywords=("over",),
            )
        built = maker.built({})
        check_workers(built.plan)
        base = run_config.to_json(replace(maker.run, envs=built.graph.envs), described(built))
        with_signature(base, built, run_dir)
        # As a resumed sweep reads it from base.json.
        maker = MemberMaker(
            built.algorithm, built.made_from, built.distribution,
            replace(maker.run, envs=built.graph.envs, settings=None, env_settings=built.env_settings),
        )  # fmt: skip
        spec = in_iterations(spec, _probe(maker, spec))
        directory, created = fresh_directory(run_dir, built, spec.seed)
        stack.enter_context(alone(directory))
        stack.enter_context(cleared(created))
        refuse_held(directory)
        write_json_atomically(directory / sweep_file.BASE, base)
        sweep_file.write(directory, spec)
        return SweepDriver(directory, spec, maker, began, quiet, launcher, address).run()


def resume_sweep(
    run_dir: str | Path, *, quiet: bool = False, trust: Collection[str] = (), launcher: str = "local",
    address: str | None = None, metrics_port: int | None = None, metrics_address: str = metrics_server.LOOPBACK,
) -> Sweep:  # fmt: skip
    """Continues a sweep that was interrupted or killed; its result is that of an undisturbed one."""
    defined_enough()
    began, directory = time.monotonic(), Path(run_dir)
    import_optuna()
    raw = sweep_file.read_raw(directory)
    found = config_file.arguments(directory / sweep_file.BASE, trust=trust)
    algorithm, environment = found.pop("algorithm"), found.pop("environment")
    configure_jax()
    serving = metrics_server.serving(metrics_port, metrics_address, quiet)
    with contained(), startup.starting(quiet), serving, alone(directory):
        spec = sweep_file.of_raw(directory, raw, type(algorithm))
        maker = MemberMaker.of(algorithm, environment, found.pop("distribution", None), found)
        return SweepDriver(directory, spec, maker, began, quiet, launcher, address, trust).run()


def _class_of(algorithm: Any) -> type:
    cls = algorithms.load(algorithm) if isinstance(algorithm, str) else algorithm
    return cls if isinstance(cls, type) else type(cls)


def _refuse(asked: Mapping[str, Any]) -> None:
    for name in (*OF_ONE_RUN, "stop_at_return", "stop_at_eval_return", "opponents"):
        if asked.get(name) is not None and asked[name] is not False:
            raise UserError(f"{name}=: found it for a sweep, expected it for one run alone", keywords=(name,))


def _probe(maker: MemberMaker, spec: SweepSpec) -> set[int]:
    """Refuses settings that nothing can be trained with, before the first trial; returns the steps of an iteration."""
    steps = set()
    tried = search_space.probes(spec.space)
    if spec.sampler == "grid":  # every point is a trial; floats change nothing about what can be built
        points = search_space.grid(spec.space)[: spec.trials]
        tried += [{**tried[0], **{k: v for k, v in point.items() if type(v) is not float}} for point in points]
    for settings in tried:
        try:
            steps.add(maker.built(settings).graph.steps_per_iteration)
        except UserError as error:
            shown = ", ".join(f"{name}={value}" for name, value in settings.items())
            raise UserError(
                f"over=: found {shown}, which cannot be trained: {error}; expected values that can",
                keywords=("over", *error.keywords),
            ) from None
    return steps
