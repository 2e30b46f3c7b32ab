"""What a run is made of: algorithm, environment and distribution found, traced and planned. Nothing runs here."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple, cast

from runnel import algorithms, distributions, portable
from runnel import envs as environments
from runnel import settings as fields
from runnel.algorithm import Algorithm
from runnel.environment import Environment, is_traceable
from runnel.errors import UserError
from runnel.flow import trace
from runnel.graph import Graph
from runnel.plan import Distribution, Machine, Plan, build_plan
from runnel.tuned import tuned

DEFAULT_ENVS_HOST = 8
DEFAULT_ENVS_JAX = 64


class Built(NamedTuple):
    """What a run is made of, before anything runs."""

    algorithm: Algorithm
    environment: Environment
    distribution: Distribution
    graph: Graph
    plan: Plan


def build(
    algorithm: Algorithm | str,
    environment: str,
    distribution: Distribution | str | None = None,
    envs: int | None = None,
    settings: dict[str, Any] | None = None,
    env_settings: dict[str, Any] | None = None,
) -> Built:
    """Traces the algorithm on the environment and applies the distribution; starts nothing.

    A named algorithm takes the tuned settings of the environment, where there are some; `settings` override
    them. An instance is taken as it is.
    """
    known = tuned(algorithm, environment) if isinstance(algorithm, str) else {}
    tuned_envs = known.pop("envs", None)
    if isinstance(algorithm, str):
        chosen = _construct(algorithms.load(algorithm), {**known, **(settings or {})})
    else:
        chosen = dataclasses.replace(cast(Any, algorithm), **(settings or {}))
    fields.check(chosen)
    world = environments.make(environment, **(env_settings or {}))
    default_envs = DEFAULT_ENVS_JAX if is_traceable(world) else DEFAULT_ENVS_HOST
    count = envs if envs is not None else tuned_envs or default_envs
    if count < 1:
        raise UserError(f"--envs {count}: an environment or more is needed")
    if distribution is None:
        distribution = "fused" if is_traceable(world) else "inline"
    if isinstance(distribution, str):
        distribution = distributions.load(distribution)()
    graph = trace(chosen, world.spec, count)
    return Built(chosen, world, distribution, graph, build_plan(distribution, graph, world, Machine.here()))


def rebuild(run_dir: str | Path, config: dict[str, Any], distribution: Distribution | str | None = None) -> Built:
    """What a run directory's run is made of."""
    try:
        algorithm = portable.from_json(config["algorithm"], Algorithm)
        chosen = distribution or portable.from_json(config["distribution"], Distribution)
        name, env_settings = config["environment"]["name"], config["environment"]["settings"]
        count = config["envs"]
    except KeyError as error:
        raise UserError(f"{run_dir}/config.json has no {error}; it is not a run of this version") from None
    return build(algorithm, name, chosen, count, env_settings=env_settings)


def read_config(run_dir: str | Path) -> dict[str, Any]:
    """A run directory's config.json."""
    path = Path(run_dir) / "config.json"
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{run_dir} holds no run: there is no config.json in it") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise UserError(f"{path} is not a run's configuration")
    return config


def _construct(cls: type[Algorithm], settings: dict[str, Any]) -> Algorithm:
    try:
        return cls(**settings)
    except TypeError as error:
        raise UserError(f"{cls.__name__}: {error}") from None
