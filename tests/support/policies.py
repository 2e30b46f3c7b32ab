"""Policies that have learnt nothing, for tests: of any algorithm on any environment, without training."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

import runnel
from runnel.execution.building import BuiltRun
from runnel.execution.snapshots.descriptions import described_policies
from runnel.execution.training import described
from runnel.policy import Policy
from runnel.recording.parameters import as_numpy, parameter_leaves
from runnel.runtime.programs.loop import Loop


def fresh(
    algorithm: Any, environment: Any, seed: int = 0, moved: float = 0.0, **settings: Any
) -> tuple[BuiltRun, dict[str, Any], dict[str, Policy]]:
    """The run that would train it; by group, the learner's first state and its policy. `moved`: adds noise of that
    size to all parameters, which may begin at zero."""
    built = runnel.build(algorithm, environment, "inline", envs=2, env_settings=settings or None)
    loop, rng = Loop(built.graph), np.random.default_rng(seed)
    states = {group: loop.init_state(jax.numpy.uint32(seed), group) for group in built.graph.states}
    if moved:
        states = {
            g: s._replace(params=jax.tree.map(lambda x: _moved(x, rng, moved), s.params)) for g, s in states.items()
        }
    policies = {
        group: Policy(
            built.algorithm, config, {n: as_numpy(leaf) for n, leaf in parameter_leaves(states[group]).items()}
        )
        for group, config in described_policies(built, described(built)).items()
    }  # fmt: skip
    return built, states, policies


def _moved(leaf: Any, rng: np.random.Generator, size: float) -> Any:
    if not jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating):
        return leaf
    return leaf + np.abs(size * rng.standard_normal(leaf.shape)).astype(leaf.dtype)
