"""Runnel: distributed reinforcement learning. Write an algorithm once; run it under every distribution.

Names are imported when they are first used: a worker that only steps environments never imports JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

from runnel import deprecated as _deprecated

__version__ = "0.1.0"

if TYPE_CHECKING:
    from runnel.algorithm import Algorithm, PerGroup
    from runnel.config.search_space import IntUniform, LogUniform, Uniform
    from runnel.environment import HostEnvironment, JaxEnvironment, TimeStep
    from runnel.errors import UserError
    from runnel.evaluation.evaluate import evaluate
    from runnel.evaluation.export import export
    from runnel.evaluation.loading import load, policies
    from runnel.evaluation.versus import versus
    from runnel.execution.building import build
    from runnel.execution.callbacks import Progress
    from runnel.execution.members.training import Members, resume_members, train_members
    from runnel.execution.populations.training import resume_population, train_population
    from runnel.execution.run import Run
    from runnel.execution.sweeps.sweep import Sweep, resume_sweep, sweep
    from runnel.execution.training import resume, train
    from runnel.league import League
    from runnel.matchmaking import PFSP, Candidate, Fixed, Latest, Matches, Matchmaker, Psro, UniformPast
    from runnel.payoffs import GameResult, PayoffTable
    from runnel.planning.distribution import REST, Barrier, BoundedStaleness, Distribution, Fragment, Layout
    from runnel.planning.plan import Plan
    from runnel.policy import Policies, Policy
    from runnel.population import PBT, Decision, PopulationRule
    from runnel.recording.sinks import Sink
    from runnel.replay import PrioritisedReplay, SequenceReplay, UniformReplay
    from runnel.types import Act, AgentSpec, Box, Discrete, EnvSpec, MultiDiscrete, Trajectory

_HOME = {
    "Algorithm": "algorithm",
    "IntUniform": "config.search_space",
    "LogUniform": "config.search_space",
    "Uniform": "config.search_space",
    "HostEnvironment": "environment",
    "JaxEnvironment": "environment",
    "TimeStep": "environment",
    "UserError": "errors",
    "evaluate": "evaluation.evaluate",
    "export": "evaluation.export",
    "load": "evaluation.loading",
    "policies": "evaluation.loading",
    "versus": "evaluation.versus",
    "build": "execution.building",
    "Progress": "execution.callbacks",
    "Members": "execution.members.training",
    "resume_members": "execution.members.training",
    "train_members": "execution.members.training",
    "resume_population": "execution.populations.training",
    "train_population": "execution.populations.training",
    "Run": "execution.run",
    "Sweep": "execution.sweeps.sweep",
    "resume_sweep": "execution.sweeps.sweep",
    "sweep": "execution.sweeps.sweep",
    "resume": "execution.training",
    "train": "execution.training",
    "PerGroup": "algorithm",
    "PFSP": "matchmaking",
    "Candidate": "matchmaking",
    "Fixed": "matchmaking",
    "Latest": "matchmaking",
    "League": "league",
    "Matches": "matchmaking",
    "Matchmaker": "matchmaking",
    "Psro": "matchmaking",
    "UniformPast": "matchmaking",
    "GameResult": "payoffs",
    "PayoffTable": "payoffs",
    "REST": "planning.distribution",
    "Barrier": "planning.distribution",
    "BoundedStaleness": "planning.distribution",
    "Distribution": "planning.distribution",
    "Fragment": "planning.distribution",
    "Layout": "planning.distribution",
    "Plan": "planning.plan",
    "Policies": "policy",
    "Policy": "policy",
    "PBT": "population",
    "Decision": "population",
    "PopulationRule": "population",
    "Sink": "recording.sinks",
    "PrioritisedReplay": "replay",
    "SequenceReplay": "replay",
    "UniformReplay": "replay",
    "Act": "types",
    "AgentSpec": "types",
    "Box": "types",
    "Discrete": "types",
    "EnvSpec": "types",
    "MultiDiscrete": "types",
    "Trajectory": "types",
}

__all__ = ["__version__", *_HOME]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        return _deprecated.attribute_of_package("runnel", name)
    return getattr(importlib.import_module(f"runnel.{_HOME[name]}"), name)


_deprecated.install()


def __dir__() -> list[str]:
    """The public names, for `dir(runnel)` and tab completion, including those that are not imported yet."""
    return sorted(__all__)
