"""Training from Python: builds a plan, runs it, and writes a run directory that can be resumed and evaluated.

`train` and `resume` are one file because they share every step between the user's arguments and a `Session`: checking
keywords, choosing machines, signing the user's code and holding the run directory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runnel import algorithms, distributions
from runnel import envs as environments
from runnel.algorithm import Algorithm
from runnel.config import run_config, serialization
from runnel.config import settings as fields
from runnel.config.jax_config import configure_jax
from runnel.config.run_config import OnNan, Precision, RunConfig
from runnel.envs import FAMILIES
from runnel.errors import UserError, nearest
from runnel.execution import plan_settings
from runnel.execution.building import BuiltRun, build, matchmaker, read_config, rebuild
from runnel.execution.callbacks import Callback, Callbacks
from runnel.execution.policies.group_algorithms import resolved
from runnel.execution.policies.stored_policies import Source
from runnel.execution.policies.warm_start import record_matched, warm_start
from runnel.execution.run import Run, finished, is_reached, may_be_done, of_run, read_result
from runnel.execution.run_directories import alone, cleared, fresh_directory, refuse_held
from runnel.execution.session.session import Session
from runnel.execution.snapshots.policy_recorder import check_metric
from runnel.execution.supervision.machine_pool import ClusterMachines, MachinePool, SingleMachine, check_workers, on
from runnel.execution.trust import WANDB, admit, sign
from runnel.matchmaking import Matchmaker
from runnel.planning.plan import Distribution, plural
from runnel.recording import named_sinks
from runnel.recording.files import clean
from runnel.recording.sinks import Sink, check_wandb
from runnel.reporting import metrics_server
from runnel.reporting.run_summary import summary
from runnel.system import startup
from runnel.system.exits import contained
from runnel.system.platform import has_worker_processes
from runnel.transport.interface import Transport, import_path
from runnel.user_code.loading import defined_enough

if TYPE_CHECKING:
    from runnel.launch.host_launcher import HostLauncher

__all__ = ["BuiltRun", "Run", "build", "read_config", "rebuild", "resolve", "resume", "train"]

ALONE = "a run of one process: it is here, and the cluster is not used; see --distribution"


def train(
    algorithm: Algorithm | type[Algorithm] | str | Mapping[str, Any],
    environment: str | Any,
    distribution: Distribution | type[Distribution] | str | None = None,
    *,
    envs: int | None = None,
    steps: int = 500_000,
    seed: int = 0,
    precision: Precision = "float32",
    run_dir: str | Path | None = None,
    stop_at_return: float | None = None,
    launcher: str | HostLauncher = "local",
    address: str | None = None,
    transport: Transport | str | None = None,
    quiet: bool = False,
    wandb: bool = False,
    sinks: Sequence[Sink | str] = (),
    metrics_port: int | None = None,
    metrics_address: str = metrics_server.LOOPBACK,
    on_update: Callback | None = None,
    on_evaluation: Callback | None = None,
    on_checkpoint: Callback | None = None,
    callback_every_s: float = 1.0,
    callback_every: int | None = None,
    checkpoint_every_s: float = 60.0,
    restarts: int = 10,
    hang_after_s: float = 120.0,
    on_nan: OnNan = "stop",
    init_from: Source | Mapping[str, Source] | None = None,
    frozen: Mapping[str, Source] | None = None,
    opponents: Matchmaker | type[Matchmaker] | str | None = None,
    eval_every: int | None = None,
    eval_episodes: int = 10,
    eval_seed: int | None = None,
    eval_env_settings: dict[str, Any] | None = None,
    eval_workers: int | None = None,
    eval_wait: bool = False,
    eval_explore: bool = False,
    eval_metric: str | None = None,
    stop_at_eval_return: float | None = None,
    keep_every: int | None = None,
    keep_every_s: float | None = None,
    keep_best: int = 1,
    settings: dict[str, Any] | None = None,
    env_settings: dict[str, Any] | None = None,
    **fields_of_distribution: Any,
) -> Run:
    """Trains until `steps` environment steps, or a mean return over 100 episodes, are reached.

    An algorithm is a name, an instance, or a class, which is used with its defaults and `settings`; or a mapping with
    one for each group of agents, `{"prey": "ppo", "predator": "dqn"}`, with settings such as `"prey.learning_rate"`. A
    function of observation and key, or a stored policy (`RUN_DIR@TAG`), can also act for a group, which then does not
    learn. An environment is a name, such as `"CartPole-v1"`, a class, function or `functools.partial` that makes one,
    or an environment object. Distributions over several processes need an object that has a name in a module.
    Other keywords are fields of the distribution: `train("ppo", "CartPole-v1", "coarse", actors=4)`.

    A worker that dies, raises, or sends no heartbeat for `hang_after_s` is replaced, up to `restarts` times within
    ten minutes. An update with NaN or infinity in the learner's state is refused; then `on_nan` ends the run, skips
    the update, or returns to the newest checkpoint.

    With `eval_every`, the greedy policy is evaluated at this interval of steps, without effect on training;
    `runnel.load(run, "best")` is the policy with the best evaluation. The fields of `RunConfig` describe the
    other keywords.

    `init_from`: the stored policy whose parameters training begins with, for all groups or by group: `RUN_DIR@TAG`, a
    `Run`, a snapshot or a policy. The optimiser is initialised. `frozen`: by group, a stored policy of the same
    algorithm that acts for it; the group does not learn. `opponents`: a matchmaker, such as `runnel.PFSP()`; in a
    symmetric game one seat learns, and the matchmaker chooses past policies for the others.

    With `launcher="ray"`, workers run on all machines of a Ray cluster: the one at `address`, otherwise one that is
    found, otherwise one that is started on this machine.

    `on_update`, `on_evaluation` and `on_checkpoint` are called with a `runnel.Progress`; one that returns False ends
    the run, and one that raises interrupts it, with a checkpoint. `on_update` is called several times a second at most,
    after updates, and not before `callback_every_s` have passed, or instead at every multiple of `callback_every`
    environment steps; `on_evaluation` needs `eval_every`.

    `sinks` receive every line of metrics: objects with `write(record)` and `close()`, see `runnel.Sink`, or names of
    trackers, such as `"mlflow"`. The page "Extend Runnel" describes sinks, launchers and transports of your own. None
    of them is saved in the run's configuration, nor is `metrics_port`: pass them to `resume` again.

    It is one function because most of it is this text and its parameters, which are one list because editors complete
    them, type checkers know them, and each is a flag of `runnel train`.
    """
    given = fields.check_arguments(train, locals())
    defined_enough()
    began = time.monotonic()
    run, distribution = asked_of_train(given)
    callbacks = Callbacks(on_update, on_evaluation, on_checkpoint, callback_every_s, callback_every)
    callbacks.check_evaluation(run.eval_every)
    configure_jax()
    one, settings = resolved(algorithm, environment, settings)
    with callbacks.may_exit(), contained(), startup.starting(quiet), contextlib.ExitStack() as stack:
        stack.enter_context(metrics_server.serving(metrics_port, metrics_address, quiet))
        built, pool = settle(
            stack, launcher, address, transport, distribution, environment,
            lambda: build(
                one, environment, distribution, run.envs, settings, env_settings, frozen=frozen or (),
                opponents=matchmaker(opponents), precision=precision,
            ),
        )  # fmt: skip
        config = run_config.to_json(replace(run, envs=built.graph.envs), described(built))
        built = with_signature(config, built, run_dir)
        if built.plan.workers > 1:
            check_portable(config, built)
        initial, notes, matched = warm_start(built, run.seed, init_from, frozen)
        built = noted(built, notes)
        directory, made = fresh_directory(run_dir, built, run.seed)
        built = noted(built, stack.enter_context(alone(directory)))
        stack.enter_context(cleared(made))
        refuse_held(directory)  # of two that start at once, the other may have been faster
        record_matched(directory, matched)
        session = Session(
            directory, config, built, began=began, quiet=quiet, pool=pool, sinks=sinks, callbacks=callbacks,
            initial=initial,
        )  # fmt: skip
        return session.run()


def resolve(
    algorithm: Algorithm | type[Algorithm] | str | Mapping[str, Any],
    environment: str | Any,
    distribution: Distribution | type[Distribution] | str | None = None,
    **asked: Any,
) -> dict[str, Any]:
    """The config.json that `train` would write with the same arguments.

    Builds the plan, for this machine, to report errors. Nothing is started, and nothing is written.
    """
    call = inspect.signature(train).bind(algorithm, environment, distribution, **asked)
    call.apply_defaults()
    run, distribution = asked_of_train(fields.check_arguments(train, call.arguments))
    configure_jax()
    if run.run_dir is not None and Path(run.run_dir).exists():
        refuse_held(Path(run.run_dir))
    with contained():
        frozen = tuple(run.frozen or ())
        one, settings = resolved(algorithm, environment, run.settings)
        built = build(
            one, environment, distribution, run.envs, settings, run.env_settings, frozen=frozen,
            opponents=matchmaker(run.opponents), precision=run.precision,
        )  # fmt: skip
        if run.eval_every is not None:
            check_metric(run.eval_metric, built.graph)
    config = run_config.to_json(replace(run, envs=built.graph.envs), described(built))
    signed = sign(config, run.run_dir, new_key=False)
    if signed.code is not None:
        config["code"] = signed.code
    if built.plan.workers > 1:
        check_portable(config, built)
    return clean(config)


def asked_of_train(given: dict[str, Any]) -> tuple[RunConfig, Distribution | str | None]:
    """The checked arguments of `train`, as a `RunConfig` and a distribution."""
    run, own = RunConfig.of(given), given["fields_of_distribution"]
    _check_keywords(train, own, given["algorithm"], given["distribution"])
    distribution = distributions.with_fields(given["distribution"], own)
    named_sinks.check(run.sinks)
    metrics_server.check(run.metrics_port, run.metrics_address, run.quiet)
    if run.wandb:
        check_wandb()
    return run, distribution


def resume(
    run: str | Path | Run,
    *,
    steps: int | None = None,
    distribution: Distribution | str | None = None,
    on_nan: OnNan | None = None,
    launcher: str | HostLauncher = "local",
    address: str | None = None,
    transport: Transport | str | None = None,
    quiet: bool = False,
    algorithm: Algorithm | None = None,
    environment: Any = None,
    trust: Collection[str] = (),
    sinks: Sequence[Sink | str] = (),
    metrics_port: int | None = None,
    metrics_address: str = metrics_server.LOOPBACK,
    on_update: Callback | None = None,
    on_evaluation: Callback | None = None,
    on_checkpoint: Callback | None = None,
    callback_every_s: float = 1.0,
    callback_every: int | None = None,
    **fields_of_distribution: Any,
) -> Run:
    """Continues a run, named by its directory or as returned by `train`, from its newest whole checkpoint.

    A run that has finished is returned unchanged. `algorithm` and `environment` replace those in its config.json, for
    objects that this process cannot import: a class of a notebook, a lambda. Other keywords are fields of the
    distribution.

    `trust`: names of code in the run's configuration that may be imported although no run of this user's has signed
    them. They are signed from then on. `sinks` and `metrics_port` as for `train`.

    It is one function because it is the steps of `train` in their order, with a run directory in place of arguments.
    Its parameters are one list because they are those of `train` that may change.
    """
    steps = fields.check_arguments(resume, locals())["steps"]
    defined_enough()
    began = time.monotonic()
    named_sinks.check(sinks)
    configure_jax()
    directory, config, given = of_run(run, algorithm, environment)
    given["trusted"] = trust
    run_config.check_complete(directory / "config.json", config)
    if fields_of_distribution:
        if distribution is None:
            admit(directory, config, trust, ("distribution",))
        distribution = distribution or serialization.from_json(config["distribution"], Distribution)
        _check_keywords(resume, fields_of_distribution, None, distribution)
        distribution = distributions.with_fields(distribution, fields_of_distribution)
    asked = changed(run_config.from_json(config), steps, on_nan, read_result(directory))
    callbacks = Callbacks(on_update, on_evaluation, on_checkpoint, callback_every_s, callback_every)
    callbacks.check_evaluation(asked.eval_every)
    with callbacks.may_exit(), contained(), startup.starting(quiet), contextlib.ExitStack() as stack:
        stack.enter_context(metrics_server.serving(metrics_port, metrics_address, quiet))
        ended = _finished(directory, config, asked, given, quiet)
        if ended is not None:
            return ended
        admit(directory, config, trust, (WANDB,))
        notes = stack.enter_context(alone(directory))
        planned_by = distribution or config["distribution"]
        built, pool = settle(
            stack, launcher, address, transport, planned_by, config["environment"]["name"],
            lambda: rebuild(directory, config, distribution, **given),
        )  # fmt: skip
        built = noted(built, notes)
        config = run_config.to_json(asked, described(built))
        if built.plan.workers > 1:
            check_portable(config, built)
        built = with_signature(config, built, directory)
        session = Session(
            directory, config, built, began=began, quiet=quiet, resumed=True, pool=pool, sinks=sinks,
            callbacks=callbacks,
        )  # fmt: skip
        return session.run()


def changed(stored: RunConfig, steps: int | None, on_nan: OnNan | None, result: dict[str, Any] | None) -> RunConfig:
    """The configuration of a resumed run: the stored one with the changes that `resume` was called with."""
    if on_nan is not None:
        stored = replace(stored, on_nan=on_nan)
    if steps is None:
        return stored
    # What is reached already is left out: more steps are to go beyond it.
    if is_reached(result, "mean_return", stored.stop_at_return):
        stored = replace(stored, stop_at_return=None)
    if is_reached(result, "highest_eval_return", stored.stop_at_eval_return):
        stored = replace(stored, stop_at_eval_return=None)
    return replace(stored, steps=steps)


def with_signature(config: dict[str, Any], built: BuiltRun, run_dir: str | Path | None) -> BuiltRun:
    """Signs the user's own code that a run uses, so that its directory can be used again without `--trust`."""
    signed = sign(config, run_dir)
    config.pop("code", None)
    if signed.code is not None:
        config["code"] = signed.code
    return built._replace(plan=replace(built.plan, notes=(*built.plan.notes, *filter(None, [signed.problem]))))


def _finished(
    directory: Path, config: dict[str, Any], asked: RunConfig, given: dict[str, Any], quiet: bool
) -> Run | None:
    """A run that has nothing left to train, in its final state."""
    if not may_be_done(read_result(directory), asked):
        return None
    ended = finished(directory, asked, rebuild(directory, config, distributions.default_for("host"), **given))
    if ended is not None and not quiet:
        print(f"nothing is left to train after {ended.result['env_steps']:,} steps; resume it with more --steps")
        print(summary({**ended.result, "run_dir": str(directory)}), flush=True)
    return ended


def described(built: BuiltRun) -> dict[str, Any]:
    """The algorithm, environment and distribution of a run, as in config.json."""
    return {
        "algorithm": plan_settings.to_json(built.algorithm, built.asked),
        "environment": environments.to_json(built.made_from, built.env_settings),
        "distribution": serialization.to_json(built.distribution),
    }


def _check_keywords(called: Callable[..., Any], given: dict[str, Any], algorithm: Any, distribution: Any) -> None:
    """Refuses a keyword that is neither one of `train` or `resume` nor a field of any distribution."""
    chosen = [distribution] if isinstance(distribution, str) else []
    known = (
        {field for name in (*distributions.names(), *chosen) for field in distributions.fields(name)} if given else {}
    )
    for name, value in given.items():
        if name in known or (distribution is not None and hasattr(distribution, name)):
            continue
        cls = algorithms.load(algorithm) if isinstance(algorithm, str) else algorithm
        cls = cls if isinstance(cls, type) else type(cls)
        if dataclasses.is_dataclass(cls) and name in (field.name for field in dataclasses.fields(cls)):
            as_instance = f"{cls.__name__}({name}={value!r})"
            how = f"settings={{{name!r}: {value!r}}}" if isinstance(algorithm, str) else as_instance
            raise UserError(
                f"'{name}' is a setting of {cls.__name__}; give it as {how}", page="command-line#from-python"
            )
        arguments = [each for each in inspect.signature(called).parameters if each != "fields_of_distribution"]
        raise UserError(
            f"{called.__name__} has no '{name}'{nearest(name, [*arguments, *known])}", page="command-line#from-python"
        )


def check_portable(config: dict[str, Any], built: BuiltRun) -> None:
    """Refuses objects that worker processes cannot import."""
    for part in ("algorithm", "distribution", "environment"):
        why = serialization.reason(config[part])
        if why is not None and part == "environment":
            raise UserError(
                f"{built.plan.distribution} runs in {built.plan.workers} processes, which cannot be given this object "
                f"({environments.label(built.made_from)}): pass its class with env_settings=, or a function of a "
                f"module; {distributions.default_for('host')} takes it as it is",
                page="add-an-environment#an-object-of-python",
            )
        if why is not None:
            raise UserError(
                f"distribution {built.plan.distribution} runs in {built.plan.workers} processes, and {why}; "
                f"{' and '.join(distributions.of_one_process())} run it as it is",
                page="command-line#from-python",
            )


def settle(
    stack: contextlib.ExitStack, launcher: str | HostLauncher, address: str | None, transport: Transport | str | None,
    distribution: Any, environment: Any, make: Callable[[], BuiltRun], cpus_per_host: int | None = None,
) -> tuple[BuiltRun, MachinePool]:  # fmt: skip
    """Builds a run, for this machine or for those that a launcher finds, which start meanwhile.

    `cpus_per_host`: the CPUs that it takes of each machine of a Ray cluster. None: all that are free.
    """
    if isinstance(launcher, str) and launcher not in ("local", "ray") and ":" not in launcher:
        raise UserError(
            f"launcher '{launcher}' is not known; use local, ray or package.module:callable", page="extend#a-launcher"
        )
    carried_by = import_path(transport)
    pool: MachinePool = _here(launcher, carried_by, distribution, environment)
    stack.callback(pool.close)
    built = make()
    check_workers(built.plan)
    if launcher != "local" and built.plan.workers > 1:
        flags, notes = "", ()
        if isinstance(launcher, str) and launcher != "ray":
            flags = f" --launcher {launcher}"
            launcher = _own_launcher(launcher)
            stack.callback(launcher.close)
        elif isinstance(launcher, str):
            from runnel.launch.ray_launcher import RayHostLauncher

            startup.phase("connecting to the Ray cluster")
            launcher = RayHostLauncher(address, built.plan.workers, cpus_per_host=cpus_per_host)
            stack.callback(launcher.close)
            flags = " --launcher ray" + (f" --address {address}" if address else "")
            notes = ("no Ray cluster was found: one is started on this machine",) if launcher.started else ()
            if launcher.open:
                notes = (
                    f"the Ray cluster at {launcher.address} admits clients without a token: anyone who reaches it can "
                    "run code as you; start Ray with RAY_AUTH_MODE=token",
                )
        from runnel.launch.cluster import Cluster

        startup.phase("preparing the machines")
        pool = ClusterMachines(Cluster(launcher, transport=carried_by), flags)
        stack.callback(pool.close)
        built = on(built, pool.machines)
        if not notes:
            notes = (f"on {plural(len(pool.machines), 'machine')}: {', '.join(m.name for m in pool.machines)}",)
        built = built._replace(plan=replace(built.plan, notes=(*notes, *built.plan.notes)))
    elif launcher != "local":
        built = built._replace(plan=replace(built.plan, notes=(ALONE, *built.plan.notes)))
    return built, pool


def _own_launcher(path: str) -> HostLauncher:
    """The launcher that the user's own `package.module:callable` returns when called without arguments."""
    make = serialization.import_object(path)
    if not callable(make):
        raise UserError(
            f"--launcher {path}: found a {type(make).__name__}; expected a callable that returns a HostLauncher"
        )
    made: Any = make()
    if not all(hasattr(made, name) for name in ("interface", "start", "poll", "why", "add", "drop", "close")):
        raise UserError(
            f"--launcher {path}: returned a {type(made).__name__}; expected a runnel.launch.host_launcher.HostLauncher"
        )
    return made


def _here(launcher: str | HostLauncher, transport: str, distribution: Any, environment: Any) -> SingleMachine:
    """This machine. If workers will be needed, fork servers import their libraries meanwhile."""
    if launcher != "local" or not distributions.needs_workers(distribution) or not has_worker_processes():
        return SingleMachine(transport=transport)
    from runnel.launch import LocalLauncher
    from runnel.launch.host import ENV_ONLY_MODULES, JAX_MODULES

    local = LocalLauncher()
    families = [family for family in FAMILIES if isinstance(environment, str) and environment.startswith(family.prefix)]
    packages = [family.package for family in families if family.package]
    local.warm(env_only=ENV_ONLY_MODULES, jax=[*JAX_MODULES, *packages])
    return SingleMachine(local, transport)


def noted(built: BuiltRun, notes: Sequence[str]) -> BuiltRun:
    return built._replace(plan=replace(built.plan, notes=(*built.plan.notes, *notes)))
