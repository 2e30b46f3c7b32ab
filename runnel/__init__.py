"""Runnel: distributed reinforcement learning. Write an algorithm once; run it under every distribution.

Names are imported when they are first used: a worker that only steps environments never imports JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

from runnel import deprecated as _deprecated

__version__ = "0.1.0"

if TYPE_CHECKING:
    from runnel.algorithm import Algorithm
    from runnel.environment import HostEnvironment, JaxEnvironment, TimeStep
    from runnel.errors import UserError
    from runnel.evaluation.export import export
    from runnel.evaluation.loading import load, policies
    from runnel.execution.building import build
    from runnel.execution.callbacks import Progress
    from runnel.execution.run import Run
    from runnel.execution.training import resume, train
    from runnel.planning.distribution import REST, Barrier, BoundedStaleness, Distribution, Fragment, Layout
    from runnel.planning.plan import Plan
    from runnel.policy import Policies, Policy
    from runnel.recording.sinks import Sink
    from runnel.replay import PrioritisedReplay, SequenceReplay, UniformReplay
    from runnel.types import Act, AgentSpec, Box, Discrete, EnvSpec, MultiDiscrete, Trajectory

_HOME = {
    "Algorithm": "algorithm",
    "HostEnvironment": "environment",
    "JaxEnvironment": "environment",
    "TimeStep": "environment",
    "UserError": "errors",
    "export": "evaluation.export",
    "load": "evaluation.loading",
    "policies": "evaluation.loading",
    "build": "execution.building",
    "Progress": "execution.callbacks",
    "Run": "execution.run",
    "resume": "execution.training",
    "train": "execution.training",
    "REST": "planning.distribution",
    "Barrier": "planning.distribution",
    "BoundedStaleness": "planning.distribution",
    "Distribution": "planning.distribution",
    "Fragment": "planning.distribution",
    "Layout": "planning.distribution",
    "Plan": "planning.plan",
    "Policies": "policy",
    "Policy": "policy",
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
    """What there is to use, for `dir(runnel)` and tab completion: names are there before they are imported."""
    return sorted(__all__)
