"""What a program saves, with random numbers in it: for tests of what checkpoints are made of."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from runnel.environment import Episode, is_traceable
from runnel.execution.building import BuiltRun
from runnel.planning.channels import Topology, derive_channels
from runnel.runtime.recovery import action_history
from runnel.runtime.single_process.program import carry_types


def agents_of(built: BuiltRun) -> dict[str, int]:
    """By group: its agents in each environment."""
    return {group: spec.agents for group, spec in built.graph.spec.groups.items()}


def topology_of(built: BuiltRun) -> Topology:
    return derive_channels(built.plan, built.graph, host=not is_traceable(built.environment))


def random_saved(built: BuiltRun, seed: int = 0, cut: bool = False) -> dict[str, Any]:
    """A carry full of random numbers and, for host environments, episodes of random lengths; `cut`: some are cut."""
    draw = np.random.default_rng(seed)

    def leaf(like: Any) -> np.ndarray:
        if jax.dtypes.issubdtype(like.dtype, jax.dtypes.prng_key):
            like = jax.eval_shape(jax.random.key_data, like)
        if like.dtype == np.bool_:
            return draw.integers(0, 2, like.shape).astype(np.bool_)
        return draw.integers(0, 100, like.shape).astype(like.dtype)

    carry = jax.tree.map(leaf, carry_types(built.graph, built.environment))
    if is_traceable(built.environment):
        return {"carry": carry, "host": {}}
    acts = {node.group: node.output.action for node in built.graph.of_kind("act")}
    episodes = []
    for number in range(built.graph.envs):
        steps, actions = int(draw.integers(0, 6)), {}
        for group, agents in agents_of(built).items():
            shape = (steps, *((agents,) if agents > 1 else ()), *acts[group].shape[1:])
            actions[group] = draw.integers(0, 100, shape).astype(acts[group].dtype)
        episodes.append(Episode(number + 10, actions))
    marks = draw.integers(0, 2, built.graph.envs).astype(np.bool_) if cut else np.zeros(built.graph.envs, np.bool_)
    return {"carry": carry, "host": {**action_history.pack(episodes), "cut": marks}}
