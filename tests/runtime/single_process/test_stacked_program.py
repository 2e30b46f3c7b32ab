"""The program of many members, as JAX has traced it: nothing selects over whole carries or replays."""

from typing import Any

import jax
import pytest
from traced import traced_settings

from runnel.algorithms.a2c import A2C
from runnel.algorithms.c51 import C51
from runnel.algorithms.ddpg import DDPG
from runnel.algorithms.dqn import DQN
from runnel.algorithms.impala import IMPALA
from runnel.algorithms.mappo import MAPPO
from runnel.algorithms.ppo import PPO
from runnel.algorithms.qmix import QMIX
from runnel.algorithms.reinforce import Reinforce
from runnel.algorithms.sac import SAC
from runnel.algorithms.td3 import TD3
from runnel.algorithms.vdn import VDN
from runnel.execution.building import build
from runnel.graph.flow import trace
from runnel.ops.primitives import equations
from runnel.runtime.programs.loop import Loop
from runnel.runtime.programs.traced_settings import setting_type, with_settings
from runnel.runtime.single_process.cohort import CohortProgram

MEMBERS = 3
CARTPOLE, PENDULUM, MEETING = "gymnax:CartPole-v1", "gymnax:Pendulum-v1", "teams:Meeting"
REPLAYED: dict[str, Any] = {"min_size": 16, "capacity": 128, "batch": 8, "samples_per_insert": 0.5, "hidden": (8,)}
CASES = {
    "ppo": (PPO(unroll=8, minibatches=2, epochs=1, hidden=(8,), value_clip=0.2, dual_clip=3.0), CARTPOLE),
    "ppo gru": (PPO(unroll=8, minibatches=2, epochs=1, hidden=(8,), memory="gru"), CARTPOLE),
    "a2c": (A2C(hidden=(8,)), CARTPOLE),
    "impala": (IMPALA(hidden=(8,)), CARTPOLE),
    "reinforce": (Reinforce(hidden=(8,)), CARTPOLE),
    "dqn": (DQN(unroll=4, target_period=3, **REPLAYED), CARTPOLE),
    "dqn prioritised": (DQN(unroll=4, prioritised=True, **REPLAYED), CARTPOLE),
    "c51": (C51(unroll=4, **REPLAYED), CARTPOLE),
    "ddpg": (DDPG(**REPLAYED), PENDULUM),
    "td3": (TD3(**REPLAYED), PENDULUM),
    "sac": (SAC(prioritised=True, target_entropy=-1.0, **REPLAYED), PENDULUM),
    "mappo": (MAPPO(unroll=8, minibatches=2, epochs=1, hidden=(8,), dual_clip=3.0), MEETING),
    "vdn": (VDN(unroll=4, **REPLAYED), MEETING),
    "qmix": (QMIX(unroll=4, mixing_embed=4, **REPLAYED), MEETING),
}


@pytest.mark.parametrize("case", CASES)
def test_loops_and_branches_of_members_stay_loops_and_branches(case: str) -> None:
    algorithm, environment = CASES[case]
    built = build(algorithm, environment, "fused", 4)
    names = traced_settings(built.algorithm)
    assert "learning_rate" in names

    def make_loop(values: Any) -> Loop:
        graph = trace(with_settings(built.algorithm, values), built.graph.spec, 4)
        return Loop(graph, built.environment)  # type: ignore[arg-type]

    program = CohortProgram(make_loop, jax.devices()[:1], names)
    carry = program.types(MEMBERS)
    mapped = jax.vmap(program.once, in_axes=(program.axes, 0), out_axes=(program.axes, 0))
    replays = [leaf.shape for each in carry.replays.values() for leaf in jax.tree.leaves(each.items) if leaf.ndim > 1]
    found = list(equations(jax.make_jaxpr(mapped)(carry, {name: setting_type(MEMBERS) for name in names})))
    for equation in found:
        name = equation.primitive.name
        if name == "while":
            assert equation.params["cond_jaxpr"].out_avals[0].shape == ()
        if name == "cond":
            assert equation.invars[0].aval.shape == ()
        if name == "select_n":
            assert equation.outvars[0].aval.shape not in replays
    assert "cond" in {equation.primitive.name for equation in found}, "the look at what an update made"
    assert bool(replays) == hasattr(algorithm, "samples_per_insert")
