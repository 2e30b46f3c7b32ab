"""The environment and episodes of evaluations during training: everything but the parameters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from runnel import distributions
from runnel import envs as environments
from runnel.algorithm import Algorithm
from runnel.config import serialization
from runnel.config.run_config import Precision
from runnel.errors import UserError
from runnel.execution.building import BuiltRun, build, fixed_envs
from runnel.graph.nodes import Graph
from runnel.graph.typecheck import describe, space_type
from runnel.runtime.single_process.evaluation import CompiledEvaluator, Evaluator, make_evaluator, quotas
from runnel.types import Box, Discrete, Leaf, MultiDiscrete, Space, space_map

MOST_EVALUATORS: Final = 256
"""The number of evaluators kept besides the first; there are more if settings change all the time."""


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
    precision: Precision = "float32"  # that the policy computes in
    train_envs: int | None = None  # with how many the algorithm is built: its settings may not fit another number

    def make(self, quota: Mapping[int, int]) -> tuple[Evaluator, Graph]:
        """An evaluator of the environments with these indices."""
        inline = distributions.default_for("host")
        built = build(
            self.algorithm, self.environment, inline, self.train_envs,
            env_settings=self.env_settings, precision=self.precision,
        )  # fmt: skip
        return make_evaluator(built.graph, built.environment, self.seed, quota, self.explore), built.graph

    def differs_in_seed(self, other: EvaluationTask) -> bool:
        """Whether one compiled program serves both."""
        return replace(self, seed=other.seed) == other

    def differs_in_settings(self, other: EvaluationTask) -> bool:
        """Whether both play the same with algorithms of one class: one compiled program may serve both."""
        alike = replace(self, seed=other.seed, algorithm=other.algorithm) == other
        return alike and type(self.algorithm) is type(other.algorithm)

    def quota(self) -> dict[int, int]:
        return dict(enumerate(quotas(self.episodes, self.fixed_envs)))

    def to_json(self) -> dict[str, Any]:
        return {
            "algorithm": serialization.to_json(self.algorithm),
            "environment": environments.to_json(self.environment, self.env_settings),
            "episodes": self.episodes,
            "seed": self.seed,
            "explore": self.explore,
            "train_envs": self.train_envs,
            "precision": self.precision,
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
            train_envs=data["train_envs"],
            precision=data["precision"],
        )


MakeEvaluator = Callable[["EvaluationTask"], tuple[Evaluator, Graph]]


def make_evaluator_of(task: EvaluationTask) -> tuple[Evaluator, Graph]:
    """An evaluator of all episodes."""
    return task.make(task.quota())


class SharedEvaluations:
    """Evaluators of several runs, which share a compiled program if the runs act with the same settings."""

    def __init__(self) -> None:
        self._made: list[tuple[EvaluationTask, Evaluator, Graph]] = []
        self._lock = threading.Lock()

    def make(self, task: EvaluationTask) -> tuple[Evaluator, Graph]:
        with self._lock:
            for known, evaluator, graph in self._made:
                if isinstance(evaluator, CompiledEvaluator) and known.differs_in_seed(task):
                    return evaluator.with_seed(task.seed), graph
            made, graph = make_evaluator_of(task)
            for known, evaluator, _ in self._made:
                if not isinstance(evaluator, CompiledEvaluator) or not isinstance(made, CompiledEvaluator):
                    continue
                if known.differs_in_settings(task) and evaluator.same_program(made):
                    made = evaluator.with_seed(task.seed)
                    break
            self._made = [*self._made[:1], *self._made[1:][-MOST_EVALUATORS:], (task, made, graph)]
            return made, graph


def task_of(
    built: BuiltRun, env_settings: Mapping[str, Any], episodes: int, seed: int, explore: bool
) -> EvaluationTask:
    """The evaluation of a run, on its environment with some other settings; refused if they change what agents see."""
    settings = {**built.env_settings, **env_settings}
    fixed = fixed_envs(built.environment)
    train_envs = built.graph.envs if fixed is None else None
    task = EvaluationTask(
        built.algorithm, built.made_from, settings, episodes, seed, explore, fixed,
        precision=built.graph.precision, train_envs=train_envs,
    )  # fmt: skip
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
            f"{group}: {_space_words(spec.observation)} -> {_space_words(spec.action)}{_bounds(spec.action)} "
            f"x{spec.agents}"
            for group, spec in specs.items()
        )

    found, expected = words(groups), words(built.graph.spec.groups)
    if found != expected:
        raise UserError(
            f"with its settings for evaluation (eval.env.*) the environment is another one: found {found}, expected "
            f"{expected}"
        )


def _space_words(space: Space) -> str:
    """The types of a space's values, and the upper bound of integers."""
    below: list[str] = []

    def look(leaf: Leaf) -> None:
        sizes = (leaf.n,) if isinstance(leaf, Discrete) else leaf.sizes if isinstance(leaf, MultiDiscrete) else ()
        below.extend(map(str, sizes))

    space_map(look, space)
    return describe(space_type(space)) + (f" below {', '.join(below)}" if below else "")


def _bounds(space: Space) -> str:
    """The bounds of a space's real values, to which a policy scales its actions."""
    found: list[str] = []

    def look(leaf: Leaf) -> None:
        if isinstance(leaf, Box):
            found.append(f"{np.asarray(leaf.low).tolist()} to {np.asarray(leaf.high).tolist()}")

    space_map(look, space)
    return f" from {', '.join(found)}" if found else ""
