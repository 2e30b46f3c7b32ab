"""MAPPO: masks, turns and states in one update, for one agent or several, with memory or without."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from teams import EDGE, Meeting
from toys import Tag

from runnel.algorithms.mappo import MAPPO
from runnel.graph.flow import trace
from runnel.runtime.programs.loop import Loop
from runnel.runtime.single_process.compiled import CompiledProgram

SMALL = MAPPO(unroll=8, epochs=2, minibatches=2, hidden=(16,))
VARIANTS = [
    {},
    {"memory": "lstm", "agent_ids": False},
    {"normalise_observations": True, "popart": False, "value_clip": None, "anneal_steps": 10_000},
]


@pytest.mark.parametrize(
    ("settings", "environment", "x64"),
    [(VARIANTS[0], Tag, True), (VARIANTS[1], Meeting, False), (VARIANTS[2], Meeting, True)],
)
def test_every_variant_can_be_traced(settings, environment, x64):
    with jax.enable_x64(x64):
        graph = trace(dataclasses.replace(SMALL, **settings), environment.spec, 4)
    assert sum(node.kind == "learn" for node in graph.nodes.values()) == 2


def test_the_policy_learns_from_turns_only_and_the_value_from_all():
    """One update on an unroll, and on the same one in which the resting did something else."""
    algorithm = dataclasses.replace(SMALL, entropy_cost=0.1, epochs=1, minibatches=1)
    loop = Loop(trace(algorithm, Meeting.spec, 4), Meeting())
    carry = jax.jit(loop.init)(jnp.uint32(0))
    _, trajectories, _ = jax.jit(loop.unroll)(carry)
    played, state = trajectories["walkers"], carry.states["walkers"]
    rests = ~played.observation["active"]
    assert rests.any()
    learn = jax.jit(algorithm.learn)
    other = played._replace(
        action=jnp.where(rests, 2 - played.action, played.action),
        extras=played.extras._replace(log_prob=jnp.where(rests, -9.0, played.extras.log_prob)),
    )
    (one, _), (same, _) = (learn(state, trajectory, jax.random.key(0)) for trajectory in (played, other))
    jax.tree.map(np.testing.assert_array_equal, one, same)
    paid, _ = learn(state, played._replace(reward=played.reward + 5.0 * rests), jax.random.key(0))
    assert any((a != b).any() for a, b in zip(*map(jax.tree.leaves, (one.critic, paid.critic)), strict=True))


@pytest.mark.slow
def test_walkers_meet_and_never_step_over_the_edge():
    """An illegal step would pay a hundred times what anything else does."""
    algorithm = MAPPO(unroll=16, learning_rate=3e-3, hidden=(32,))
    program = CompiledProgram(Loop(trace(algorithm, Meeting.spec, 32), Meeting()), jax.devices()[:1], 1)
    stretches = []
    while int(program.carry.iteration) < 120:
        stretches.append(program.run(30, 60, np.inf, lambda: False))
    begun, last = stretches[0].group_returns, stretches[-1].group_returns
    assert all(stretch.group_returns["walkers"] <= 0 for stretch in stretches)
    assert last["walkers"] > max(-0.1 * EDGE * 3, begun["walkers"])
    assert last["watcher"] / stretches[-1].mean_length > 0.8  # of a step: 1 is always right, 0 is chance
