"""Trains the same thing in several ways and prints, as JSON, how far apart the parameters end.

A script, because the number of host devices and the default precision must be set before JAX starts:

    python tests/same_training.py
"""

import json
import os
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
sys.path.insert(0, str(Path(__file__).parent))

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np
from toys import Corridor, Drift, Reinforce, Tag

from runnel.algorithms.dqn import DQN
from runnel.algorithms.ppo import PPO
from runnel.envs.gymnax import GymnaxEnvironment
from runnel.envs.stepped import Stepped
from runnel.flow import trace
from runnel.runtime.compiled import CompiledProgram
from runnel.runtime.loop import Loop
from runnel.runtime.stepped import SteppedProgram

UPDATES = 5

CASES = {
    "PPO": (
        PPO(unroll=16, normalise_observations=True, normalise_returns=True),
        GymnaxEnvironment("CartPole-v1"),
    ),
    "PPO continuous": (PPO(unroll=16, value_clip=0.2, anneal_steps=10_000), GymnaxEnvironment("Pendulum-v1")),
    "PPO GRU": (PPO(unroll=16, memory="gru", minibatches=2), GymnaxEnvironment("CartPole-v1")),
    "DQN": (DQN(unroll=4, batch=32, min_size=64, capacity=512), GymnaxEnvironment("CartPole-v1")),
    "own algorithm": (Reinforce(), Corridor()),
    "groups": (Drift(), Tag()),
}


def updates_of(program) -> int:
    return max(int(count) for count in program.carry.updates.values())


def parameters(program) -> list[np.ndarray]:
    while updates_of(program) < UPDATES:
        program.run(1, 60, np.inf, lambda: False)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(program.carry.states)]


def ways(algorithm, environment, envs=32):
    graph = trace(algorithm, environment.spec, envs)
    loop = Loop(graph, environment)
    yield "inline", SteppedProgram(loop, None, 7)
    yield (
        "inline, stepped from the host",
        SteppedProgram(Loop(graph), Stepped(environment).open(range(envs), 7), 7),
    )
    for devices in (1, 2, 8):
        yield f"fused on {devices}", CompiledProgram(loop, jax.devices()[:devices], 7)


def main() -> None:
    distances = {}
    for name, (algorithm, environment) in CASES.items():
        reference = None
        for way, program in ways(algorithm, environment):
            first = [np.asarray(leaf) for leaf in jax.tree.leaves(program.carry.states)]
            found = parameters(program)
            reference = found if reference is None else reference
            gaps = [
                np.abs(a.astype(float) - b.astype(float)).max(initial=0.0)
                for a, b in zip(found, reference, strict=True)
            ]
            distances[f"{name}: {way}"] = float(max(gaps))
            moved = max(
                np.abs(a.astype(float) - b.astype(float)).max(initial=0.0) for a, b in zip(found, first, strict=True)
            )
            assert np.isfinite(moved)
            assert moved > 1e-4, f"{name}: {way} learnt nothing"
    print(json.dumps(distances))


if __name__ == "__main__":
    main()
