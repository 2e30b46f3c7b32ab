"""Builds a run: finds algorithm, environment and distribution, traces the graph and makes the plan. Starts nothing."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, cast

import jax

from runnel import algorithms, distributions
from runnel import envs as environments
from runnel.algorithm import Algorithm
from runnel.config import policy_config, run_config, serialization
from runnel.config import settings as fields
from runnel.config.presets import tuned
from runnel.config.run_config import Precision
from runnel.environment import METRIC_NAME, MOST_METRICS, Environment, JaxEnvironment, is_traceable
from runnel.errors import UserError, nearest
from runnel.execution import plan_settings, trust
from runnel.execution.arranged_game import arranged_game
from runnel.graph.flow import trace
from runnel.graph.nodes import Graph
from runnel.graph.typecheck import describe, same_types, space_type, typed
from runnel.matchmaking import Matchmaker
from runnel.planning.channels import derive_channels
from runnel.planning.network_estimate import estimate_network
from runnel.planning.plan import Distribution, Machine, NotCompiled, Plan, build_plan
from runnel.recording import members_file, run_directory
from runnel.recording.files import read_json
from runnel.system import startup
from runnel.types import AgentSpec, EnvSpec

DEFAULT_ENVS_HOST = 8
DEFAULT_ENVS_JAX = 64


class BuiltRun(NamedTuple):
    """The components of a run, before anything runs."""

    algorithm: Algorithm
    environment: Environment
    env_settings: dict[str, Any]  # the settings of the environment
    distribution: Distribution
    graph: Graph
    plan: Plan
    tuned: tuple[str, ...] = ()  # tuned settings of the algorithm that the user did not override
    made_from: str | Any = ""  # the environment as the user gave it
    asked: Mapping[str, Any] = MappingProxyType({})  # by setting that the plan decided: what the user asked for
    decided: tuple[str, ...] = ()  # notes on these

    @property
    def max_staleness(self) -> int:
        """The staleness that the algorithm tolerates under a plan with asynchronous actors."""
        return plan_settings.undecided(self.algorithm, self.asked).max_staleness


def build(
    algorithm: Algorithm | type[Algorithm] | str,
    environment: str | Any,
    distribution: Distribution | type[Distribution] | str | None = None,
    envs: int | None = None,
    settings: dict[str, Any] | None = None,
    env_settings: dict[str, Any] | None = None,
    machine: Machine | Sequence[Machine] | None = None,
    frozen: Collection[str] = (),
    opponents: Matchmaker | None = None,
    asked: Mapping[str, Any] | None = None,
    precision: Precision = "float32",
    **fields_of_distribution: Any,
) -> BuiltRun:
    """Traces the algorithm on the environment and applies the distribution; starts nothing.

    The plan is for this machine, or for the given ones, of which the first is the driver's.

    A named algorithm has the tuned settings of the environment, if there are any; `settings` override them. An
    instance is used unchanged, a class with its defaults. An environment is a name, a class, a function that
    returns one, or an instance. Groups in `frozen` act and do not learn. `asked`: the given values of settings that
    the plan decided (`plan_settings.py`). `precision`: that of networks. Other keywords are fields of the distribution:
    `build("ppo", "CartPole-v1", "coarse", actors=4)`.

    It is one function because each of its steps needs what the last one has settled: settings, environment, number of
    environments, graph, plan. Its parameters are one list because they are those of `train` that decide on a plan.
    """
    envs = fields.check_arguments(build, locals())["envs"]
    named = isinstance(environment, str)
    distribution = distributions.with_fields(distribution, fields_of_distribution)
    known = _tuned_for(algorithm, environment)
    tuned_envs = known.pop("envs", None)
    chosen = _chosen(algorithm, known, settings or {})
    central = environments.central_settings(environment) if named and chosen.central else {}
    env_settings = {**central, **(env_settings or {})}
    startup.phase(f"making the environment {environments.label(environment)}")
    world = (
        environments.make(environment, **env_settings) if named else environments.of_object(environment, env_settings)
    )
    if is_traceable(world):
        _check_traced(cast(JaxEnvironment, world))
    if opponents is not None:
        arranged = arranged_game(world.spec, chosen, opponents, env_settings)
        if arranged.seats is not None:
            world = environments.seated(world, arranged.seats)
        if arranged.lineups is not None:
            world = environments.lined_up(world, arranged.lineups)
        chosen, env_settings = arranged.algorithm, {**env_settings, **arranged.env_settings}
    default_envs = DEFAULT_ENVS_JAX if is_traceable(world) else fixed_envs(world) or DEFAULT_ENVS_HOST
    count = envs if envs is not None else tuned_envs or default_envs
    expected = run_config.out_of_range("envs", count)
    if expected:
        raise UserError(f"envs={count}: found {count}, expected {expected}", keywords=("envs",))
    if distribution is None:
        distribution = distributions.default_for("jax" if is_traceable(world) else "host")
    if isinstance(distribution, str):
        distribution = distributions.load(distribution)()
    fields.check_declared(type(distribution))
    startup.phase(f"tracing {type(chosen).__name__}")

    def traced(algorithm: Algorithm) -> tuple[Graph, Plan]:
        graph = trace(algorithm, world.spec, count, frozen, precision)
        return graph, planned(distribution, graph, world, machine or Machine.here())

    decided = plan_settings.decide(chosen, asked or {}, traced, waits=type(distribution).one_process)
    in_force = [f"{name}={fields.default_text(value)}" for name, value in known.items() if name not in (settings or {})]
    in_force += [f"--envs {tuned_envs}"] if tuned_envs and envs is None else []
    return BuiltRun(
        decided.algorithm, world, env_settings, distribution, decided.graph, decided.plan, tuple(in_force), environment,
        decided.asked, decided.notes,
    )  # fmt: skip


def chosen_algorithm(algorithm: Any, environment: Any, settings: Mapping[str, Any]) -> Algorithm:
    """The algorithm of a name, a class or an instance as `build` takes it for this environment."""
    known = _tuned_for(algorithm, environment)
    known.pop("envs", None)
    return _chosen(algorithm, known, dict(settings))


def _tuned_for(algorithm: Any, environment: Any) -> dict[str, Any]:
    """The tuned settings of a named algorithm on a named environment."""
    named = isinstance(algorithm, str) and isinstance(environment, str)
    return tuned(algorithms.known_as(algorithm), environment) if named else {}


MATCHMAKERS: Final = {
    "fixed": "runnel.matchmaking:Fixed",
    "league": "runnel.league:League",
    "latest": "runnel.matchmaking:Latest",
    "pfsp": "runnel.matchmaking:PFSP",
    "psro": "runnel.matchmaking:Psro",
    "uniform": "runnel.matchmaking:UniformPast",
}


def matchmaker(
    given: Matchmaker | type[Matchmaker] | str | None, settings: Mapping[str, Any] | None = None
) -> Matchmaker | None:
    """A matchmaker, by instance or by name: one of Runnel's, or the user's own at `package.module:Name`."""
    if isinstance(given, type) and issubclass(given, Matchmaker):
        return given(**(settings or {}))
    if given is not None and not isinstance(given, str | Matchmaker):
        raise UserError(f"opponents={given!r}: found {fields.shown(given)}, expected a name or a runnel.Matchmaker")
    if not isinstance(given, str):
        return given
    cls = serialization.load_class(given, MATCHMAKERS, Matchmaker, "matchmaker", page="self-play#past-opponents")
    return cls(**(settings or {}))


def planned(
    distribution: Distribution, graph: Graph, environment: Environment, machines: Machine | Sequence[Machine]
) -> Plan:
    """The plan for one machine or several; for several it also estimates the network traffic."""
    try:
        plan = build_plan(distribution, graph, environment, machines)
    except NotCompiled as error:
        same = environments.in_jax(graph.spec.name)
        text = f"{error}, or use its JAX version, {same}" if same else str(error)
        raise UserError(text, keywords=error.keywords, page=error.page) from None
    _check_vectors(plan, environment)
    _check_lineups(plan, graph)
    if not plan.hosts:
        return plan
    return dataclasses.replace(
        plan, across=estimate_network(plan, graph, derive_channels(plan, graph, host=not is_traceable(environment)))
    )


def fixed_envs(environment: Environment) -> int | None:
    """The number of environments of each vector of a host environment, if it is fixed."""
    return getattr(environment, "fixed_envs", None)


def _check_vectors(plan: Plan, environment: Environment) -> None:
    """Refuses a plan whose workers would need vectors of another size than the environment's fixed one."""
    fixed, stepping = fixed_envs(environment), plan.stepping
    if fixed is None:
        return
    if stepping.env_splits > 1 and getattr(environment, "one_vector", False):
        raise UserError(
            f"{environment.spec.name} is one vector, made already: found env_splits={stepping.env_splits}, for which a "
            "worker needs as many; expected env_splits=1, or a function that makes a vector"
        )
    vectors = len(stepping.environments) * stepping.env_splits
    total = sum(stop - start for start, stop in stepping.environments)
    if any((stop - start) != fixed * stepping.env_splits for start, stop in stepping.environments):
        have = f"has {fixed} environments" if vectors == 1 else f"has {fixed} environments, and {vectors} are needed"
        raise UserError(
            f"envs={total}: each vector of {environment.spec.name} {have}; found envs={total}, expected "
            f"envs={fixed * vectors}, or a callable that takes `num_envs`",
            keywords=("envs",),
        )


def _check_lineups(plan: Plan, graph: Graph) -> None:
    """Refuses a plan whose workers would step only part of the line-ups: their pattern divides trajectories."""
    patterns = math.lcm(*(len(agents.plays) or 1 for agents in graph.spec.groups.values()))
    stepping = plan.stepping
    blocks = len(stepping.environments) * stepping.env_splits
    if any((stop - start) % (patterns * stepping.env_splits) for start, stop in stepping.environments):
        raise UserError(
            f"envs={graph.envs}: {graph.spec.name} has {patterns} line-ups, and its environments are in {blocks} "
            f"blocks; found {graph.envs // blocks} environments in each, expected a multiple of {patterns}, such as "
            f"envs={patterns * blocks}",
            keywords=("envs",),
        )


def rebuild(
    run_dir: str | Path, config: dict[str, Any], distribution: Distribution | str | None = None,
    algorithm: Algorithm | None = None, environment: Any = None, trusted: Collection[str] = (),
    **fields_of_distribution: Any,
) -> BuiltRun:  # fmt: skip
    """Builds the run of a run directory; an `algorithm` or `environment` that is given replaces the recorded one.

    `trusted`: names of code in its configuration that the user trusts.
    """
    run_config.check_complete(Path(run_dir) / "config.json", config)
    given = {"algorithm": algorithm, "distribution": distribution, "environment": environment}
    trust.admit(run_dir, config, trusted, [part for part, value in given.items() if value is None])
    asked = plan_settings.asked_in(config["algorithm"]) if algorithm is None else {}
    algorithm = algorithm or serialization.from_json(config["algorithm"], Algorithm)
    chosen = distribution or serialization.from_json(config["distribution"], Distribution)
    kept = config["environment"]
    if environment is None:
        environment = serialization.held(kept) if "unavailable" in kept else kept["name"]
    if environment is None:
        raise UserError(
            f"{run_dir} was trained on {kept['unavailable']}, which no other process can import; in Python, "
            "give it again: environment=...",
            page="command-line#from-python",
        )
    return build(
        algorithm, environment, chosen, config["envs"], env_settings=kept["settings"],
        frozen=tuple(config.get("frozen") or ()), asked=asked, precision=config.get("precision", "float32"),
        **fields_of_distribution,
    )  # fmt: skip


def read_config(run_dir: str | Path) -> dict[str, Any]:
    """A run directory's config.json."""
    path = Path(run_dir) / "config.json"
    try:
        config = read_json(run_dir, "config.json")
    except FileNotFoundError:
        members_file.refuse_several(run_dir)
        there = Path(run_dir).exists()
        what = f"{run_dir} holds no run: there is no config.json in it" if there else run_directory.absent(run_dir)
        raise UserError(what, page="run-directory") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(config, dict):
        raise UserError(f"{path} is not a run's configuration")
    if policy_config.is_policy(config):
        raise UserError(f"{run_dir} holds a saved policy, expected a run directory: only a run names its environment")
    run_config.check_json(path, config)
    check_scripts(path, config, run_dir)
    return config


def check_scripts(path: Path, config: dict[str, Any], run_dir: str | Path | None) -> None:
    """Refuses scripts in a configuration that are not named by absolute paths outside of the run's directory."""
    for name in _names(config):
        file, colon, _ = name.rpartition(":")
        if not colon or not file.endswith(".py"):
            continue
        if not os.path.isabs(file):
            raise UserError(f"{path} names the script '{file}'; expected its absolute path, as runs write it")
        if run_dir is not None and Path(file).resolve().is_relative_to(Path(run_dir).resolve()):
            raise UserError(
                f"{path} names the script '{file}', which lies in the run's own directory: a run is data, and nothing "
                "in it is executed; move the script elsewhere and change its path here"
            )


def _names(data: Any) -> Iterator[str]:
    """Every text in a configuration."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict | list):
        for part in data.values() if isinstance(data, dict) else data:
            yield from _names(part)


def _check_traced(environment: JaxEnvironment) -> None:
    """Refuses a JAX environment whose values differ from the types in its spec, or change type from step to step."""
    spec, key = environment.spec, jax.eval_shape(lambda: jax.random.key(0))

    def by_group(make: Callable[[AgentSpec], Any]) -> Any:
        values = {g: make(agents) for g, agents in spec.groups.items()}
        return values if len(values) > 1 else next(iter(values.values()))

    state, observation = typed(environment.reset, key, what=f"{spec.name}: reset")
    wanted = by_group(lambda agents: space_type(agents.observation, *_agents(agents)))
    same_types(wanted, observation, f"{spec.name}: reset returns an observation")
    action = by_group(lambda agents: space_type(agents.action, *_agents(agents)))
    after, timestep = typed(environment.step, state, action, key, what=f"{spec.name}: step")
    same_types(state, after, f"{spec.name}: step returns a state")
    same_types(wanted, timestep.observation, f"{spec.name}: step returns an observation")
    reward = by_group(lambda agents: jax.ShapeDtypeStruct(_agents(agents), float))
    if [x.shape for x in jax.tree.leaves(timestep.reward)] != [x.shape for x in jax.tree.leaves(reward)]:
        raise UserError(f"{spec.name}: step returns rewards {describe(timestep.reward)}, expected {describe(reward)}")
    if any(x.dtype.kind == "c" for x in jax.tree.leaves(timestep.reward)):
        raise UserError(f"{spec.name}: step returns rewards {describe(timestep.reward)}, expected real numbers")
    for name in ("terminated", "truncated"):
        flag = getattr(timestep, name)
        if flag.shape != () or flag.dtype != bool:
            raise UserError(f"{spec.name}: step returns {name} as {describe(flag)}, expected a single bool")
    _check_metrics(spec, timestep.metrics)


def _check_metrics(spec: EnvSpec, metrics: Any) -> None:
    """Refuses metrics that are not numbers by name, or by group and name."""
    said = f"{spec.name}: step returns metrics"
    if not isinstance(metrics, dict) and metrics != ():
        raise UserError(f"{said} {describe(metrics)}, expected a dict from name to a number, or ()")
    grouped = bool(metrics) and all(isinstance(value, dict) for value in metrics.values())
    if grouped and not metrics.keys() <= spec.groups.keys():
        other, known = next(name for name in metrics if name not in spec.groups), ", ".join(spec.groups)
        raise UserError(f"{said} of the group '{other}', expected one of its groups: {known}")
    for named in metrics.values() if grouped else [dict(metrics)]:
        if len(named) > MOST_METRICS:
            raise UserError(f"{said} of {len(named)} names, expected {MOST_METRICS} or fewer")
        for name, value in named.items():
            if not isinstance(name, str) or not METRIC_NAME.fullmatch(name):
                raise UserError(f"{said} called {name!r}, expected letters, digits, '_', '.' and '-', at most 64")
            if isinstance(value, dict) or getattr(value, "shape", None) != () or value.dtype.kind not in "biuf":
                raise UserError(f"{said} whose '{name}' is {describe(value)}, expected a single bool, int or float")


def _agents(agents: AgentSpec) -> tuple[int, ...]:
    return (agents.agents,) if agents.agents > 1 else ()


def _chosen(algorithm: Algorithm | type[Algorithm] | str, tuned: dict[str, Any], given: dict[str, Any]) -> Algorithm:
    """The algorithm of a name, a class or an instance, with the settings that were given."""
    cls = algorithms.load(algorithm) if isinstance(algorithm, str) else algorithm
    instance = None if isinstance(cls, type) else cls
    cls = cls if isinstance(cls, type) else type(cls)
    if not issubclass(cls, Algorithm):
        raise UserError(
            f"algorithm: found {fields.shown(algorithm)}, expected a name such as 'ppo', or a runnel.Algorithm"
        )
    known = fields.hints_of(cls)
    for name in given:
        if name not in known:
            raise UserError(f"{cls.__name__} has no setting '{name}'{nearest(name, known)}")
    try:
        chosen = cls(**{**tuned, **given}) if instance is None else dataclasses.replace(cast(Any, instance), **given)
    except (TypeError, ValueError) as error:
        raise UserError(f"{cls.__name__}: {error}") from None
    fields.check(chosen)
    return chosen
