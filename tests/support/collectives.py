"""Prints, as JSON, what crosses between the devices of a learner: the kind and the bytes of every collective.

A script, because the number of host devices must be set before JAX starts:

    python tests/support/collectives.py
"""

import json
import os
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
import jax.numpy as jnp
import numpy as np
from hlo import collectives

from runnel.algorithms.a2c import A2C
from runnel.algorithms.impala import IMPALA
from runnel.algorithms.ppo import PPO
from runnel.envs import make
from runnel.graph.flow import trace
from runnel.graph.nodes import tree_bytes
from runnel.runtime.programs.carry import IterationMetrics
from runnel.runtime.programs.loop import Loop
from runnel.runtime.programs.spmd import Spmd
from runnel.runtime.programs.stage import Stage


def main() -> None:
    found = {}
    for algorithm in (PPO(), PPO(memory="gru"), A2C(), IMPALA()):
        graph = trace(algorithm, make("CartPole-v1").spec, 16)
        loop, stage, spmd = Loop(graph), Stage(graph), Spmd(4)
        carry = spmd.everywhere(jax.jit(loop.init)(jnp.uint32(0)))
        unroll = graph.nodes["rollout"].output
        trajectory = spmd.columns({"agent": jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), unroll)})["agent"]

        def learn(carry, trajectory, stage=stage):
            return stage.run(carry, stage.nodes, {"rollout": trajectory}, IterationMetrics(jnp.int32(0), {}, {}))

        text = jax.jit(learn).lower(carry, trajectory).compile().as_text()
        crossing = collectives(text)
        name = f"{type(algorithm).__name__} {getattr(algorithm, 'memory', '')}"
        parameters = tree_bytes(graph.states["agent"].params)
        found[name] = {"crossing": crossing, "parameters": parameters, "memory": tree_bytes(unroll.memory)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
