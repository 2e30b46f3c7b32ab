"""What an evaluation during training plays: everything but the parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runnel import distributions
from runnel import envs as environments
from runnel.algorithm import Algorithm
from runnel.config import serialization
from runnel.errors import UserError
from runnel.execution.building import BuiltRun, build, fixed_envs
from runnel.graph.nodes import Graph
from runnel.graph.typecheck import describe, space_type
from runnel.runtime.single_process.evaluation import Evaluator, make_evaluator, quotas


@dataclass(frozen=True)
class EvaluationTask:
    """An algorithm's policy on an environment, for a number of episodes from a seed."""

    algorithm: Algorithm
    environment: Any  # as the user gave it
    env_settings: dict[str, Any]
    episodes: int
    seed: int
    explore: bool = False
    fixed_envs: int | None = None  # where a vector of the environment has a number of its own

    def make(self, quota: Mapping[int, int]) -> tuple[Evaluator, Graph]:
        """An evaluator of the environments with these indices."""
        inline = distributions.default_for("host")
        built = build(self.algorithm, self.environment, inline, env_settings=self.env_settings)
        return make_evaluator(built.graph, built.environment, self.seed, quota, self.explore), built.graph

    def quota(self) -> dict[int, int]:
        return dict(enumerate(quotas(self.episodes, self.fixed_envs)))

    def to_json(self) -> dict[str, Any]:
        return {
            "algorithm": serialization.to_json(self.algorithm),
            "environment": environments.to_json(self.environment, self.env_settings),
            "episodes": self.episodes,
            "seed": self.seed,
            "explore": self.explore,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EvaluationTask:
        return cls(
            serialization.from_json(data["algorithm"], Algorithm),
            data["environment"]["name"],
            data["environment"]["settings"],
            data["episodes"],
            data["seed"],
            data["explore"],
        )


def task_of(
    built: BuiltRun, env_settings: Mapping[str, Any], episodes: int, seed: int, explore: bool
) -> EvaluationTask:
    """The evaluation of a run, on its environment with some other settings; refused if they change what agents see."""
    settings = {**built.env_settings, **env_settings}
    fixed = fixed_envs(built.environment)
    task = EvaluationTask(built.algorithm, built.made_from, settings, episodes, seed, explore, fixed)
    if env_settings:
        named = isinstance(built.made_from, str)
        world = (
            environments.make(built.made_from, **settings)
            if named
            else environments.of_object(built.made_from, settings)
        )
        _check_alike(built, world.spec.groups)
    return task


def _check_alike(built: BuiltRun, groups: Mapping[str, Any]) -> None:
    def words(specs: Mapping[str, Any]) -> str:
        return "; ".join(
            f"{group}: {describe(space_type(spec.observation))} -> {describe(space_type(spec.action))} x{spec.agents}"
            for group, spec in specs.items()
        )

    found, expected = words(groups), words(built.graph.spec.groups)
    if found != expected:
        raise UserError(
            f"with its settings for evaluation (eval.env.*) the environment is another one: found {found}, expected "
            f"{expected}"
        )
