"""The values that travel."""

from __future__ import annotations

import jax

from runnel.execution.building import build
from runnel.types import PER_COLUMN, Trajectory

UNROLL, ENVS = 5, 3


def test_the_fields_of_a_trajectory_without_a_time_axis_are_listed() -> None:
    settings = {"unroll": UNROLL, "memory": "gru", "minibatches": 1}
    graph = build("ppo", "CartPole-v1", envs=ENVS, settings=settings).graph
    (rollout,) = graph.of_kind("rollout")
    assert isinstance(rollout.output, Trajectory)
    for name, field in rollout.output._asdict().items():
        leading = (ENVS,) if name in PER_COLUMN else (UNROLL, ENVS)
        leaves = jax.tree.leaves(field)
        assert leaves, name
        for leaf in leaves:
            assert leaf.shape[: len(leading)] == leading, name
