"""The program of many members, as JAX has traced it: nothing selects over whole carries or replays."""

from typing import Any

import jax
import pytest

from runnel.algorithms.a2c import A2C
from runnel.algorithms.c51 import C51
from runnel.algorithms.ddpg import DDPG
from runnel.algorithms.dqn import DQN
from runnel.algorithms.impala import IMPALA
from runnel.algorithms.ppo import PPO
from runnel.algorithms.reinforce import Reinforce
from runnel.algorithms.sac import SAC
from runnel.algorithms.td3 import TD3
from runnel.execution.building import build
from runnel.ops.primitives import equations
from runnel.runtime.programs.loop import Loop
from runnel.runtime.single_process.cohort import CohortProgram

MEMBERS = 3
CARTPOLE, PENDULUM = "gymnax:CartPole-v1", "gymnax:Pendulum-v1"
REPLAYED: dict[str, Any] = {"min_size": 16, "capacity": 128, "batch": 8, "samples_per_insert": 0.5, "hidden": (8,)}
CASES = {
    "ppo": (PPO(unroll=8, minibatches=2, epochs=1, hidden=(8,)), CARTPOLE),
    "ppo gru": (PPO(unroll=8, minibatches=2, epochs=1, hidden=(8,), memory="gru"), CARTPOLE),
    "a2c": (A2C(hidden=(8,)), CARTPOLE),
    "impala": (IMPALA(hidden=(8,)), CARTPOLE),
    "reinforce": (Reinforce(hidden=(8,)), CARTPOLE),
    "dqn": (DQN(unroll=4, target_period=3, **REPLAYED), CARTPOLE),
    "dqn prioritised": (DQN(unroll=4, prioritised=True, **REPLAYED), CARTPOLE),
    "c51": (C51(unroll=4, **REPLAYED), CARTPOLE),
    "ddpg": (DDPG(**REPLAYED), PENDULUM),
    "td3": (TD3(**REPLAYED), PENDULUM),
    "sac": (SAC(prioritised=True, **REPLAYED), PENDULUM),
}


@pytest.mark.parametrize("case", CASES)
def test_loops_and_branches_of_members_stay_loops_and_branches(case: str) -> None:
    algorithm, environment = CASES[case]
    built = build(algorithm, environment, "fused", 4)
    program = CohortProgram(lambda _: Loop(built.graph, built.environment), jax.devices()[:1])  # type: ignore[arg-type]
    carry = program.types(MEMBERS)
    mapped = jax.vmap(program.once, in_axes=(program.axes, 0), out_axes=(program.axes, 0))
    replays = [leaf.shape for each in carry.replays.values() for leaf in jax.tree.leaves(each.items) if leaf.ndim > 1]
    found = list(equations(jax.make_jaxpr(mapped)(carry, {})))
    for equation in found:
        name = equation.primitive.name
        if name == "while":
            assert equation.params["cond_jaxpr"].out_avals[0].shape == ()
        if name == "cond":
            assert equation.invars[0].aval.shape == ()
        if name == "select_n":
            assert equation.outvars[0].aval.shape not in replays
    assert "cond" in {equation.primitive.name for equation in found}, "the look at what an update made"
    assert bool(replays) == (case in ("dqn", "dqn prioritised", "c51", "ddpg", "td3", "sac"))
