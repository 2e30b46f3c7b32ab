"""Runnel: distributed reinforcement learning. Write an algorithm once; run it under every distribution.

Names are imported when they are first used: a worker that only steps environments never imports JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from runnel.algorithm import Algorithm
    from runnel.environment import HostEnvironment, JaxEnvironment, TimeStep
    from runnel.errors import UserError
    from runnel.plan import Barrier, Distribution, Fragment, Free, Layout, Plan
    from runnel.replay import PrioritisedReplay, SequenceReplay, UniformReplay
    from runnel.training import Run, build, resume, train
    from runnel.types import Act, AgentSpec, Box, Discrete, EnvSpec, MultiDiscrete, Trajectory

_HOME = {
    "Algorithm": "algorithm",
    "HostEnvironment": "environment",
    "JaxEnvironment": "environment",
    "TimeStep": "environment",
    "UserError": "errors",
    "Barrier": "plan",
    "Distribution": "plan",
    "Fragment": "plan",
    "Free": "plan",
    "Layout": "plan",
    "Plan": "plan",
    "PrioritisedReplay": "replay",
    "SequenceReplay": "replay",
    "UniformReplay": "replay",
    "Run": "training",
    "build": "training",
    "resume": "training",
    "train": "training",
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
        raise AttributeError(f"module 'runnel' has no attribute '{name}'")
    return getattr(importlib.import_module(f"runnel.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """What there is to use, for `dir(runnel)` and tab completion: names are there before they are imported."""
    return sorted(__all__)
