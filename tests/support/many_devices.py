"""Trains the same thing under `fused` on several numbers of devices and prints, as JSON, what differs and what crosses.

    python tests/support/many_devices.py "PPO" 30 1,3,5        the algorithm, the environments, how many devices

A script, because the number of host devices must be set before JAX starts.
"""

import json
import os
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = "{} --xla_force_host_platform_device_count={}".format(
    os.environ.get("XLA_FLAGS", ""), max(int(count) for counts in sys.argv[3::3] for count in counts.split(","))
)
os.environ["JAX_ENABLE_X64"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

import jax
import jax.numpy as jnp
import numpy as np
from gaps import largest_gap
from hlo import collectives
from toys import Corridor

from runnel.algorithms.dqn import DQN
from runnel.algorithms.mappo import MAPPO
from runnel.algorithms.ppo import PPO
from runnel.distributions.fused import Fused
from runnel.graph.flow import trace
from runnel.graph.nodes import tree_bytes
from runnel.planning.machine import Machine
from runnel.planning.plan import build_plan
from runnel.runtime.programs.loop import Loop
from runnel.runtime.single_process.compiled import CompiledProgram

SMALL = dict(unroll=4, epochs=1, minibatches=2, hidden=(4,))
REPLAY = dict(unroll=2, hidden=(4,), batch=32, min_size=64, capacity=3840, samples_per_insert=0.5, target_period=2)
ALGORITHMS = {
    "PPO": PPO(**SMALL, normalise_observations=True),
    "PPO GRU": PPO(**SMALL, memory="gru", memory_size=3),
    "PPO, single steps": PPO(**{**SMALL, "minibatches": 16}),
    "MAPPO": MAPPO(**SMALL),
    "DQN": DQN(**REPLAY),
    "DQN prioritised": DQN(**REPLAY, prioritised=True),
}
UPDATES = 5


def parameters(program: CompiledProgram) -> list[np.ndarray]:
    while max(int(count) for count in program.carry.updates.values()) < UPDATES:
        program.run(1, 60, np.inf, lambda: False)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(program.carry.states)]


def crossing(program: CompiledProgram) -> list[tuple[str, int]]:
    """Compiles it: every collective that it has, with its bytes."""
    program.many = program.many.lower(program.carry, jnp.int32(1), jnp.float32(1)).compile()
    return collectives(program.many.as_text())


def measured(name: str, envs: int, counts: list[int]) -> dict[str, object]:
    graph = trace(ALGORITHMS[name], Corridor.spec, envs)
    loop = Loop(graph, Corridor())
    distances, moved, crossed, held, reference = {}, [], [], [], None
    for count in counts:
        build_plan(Fused(), graph, Corridor(), Machine(2, tuple(f"cpu:{i}" for i in range(count))))
        program = CompiledProgram(loop, jax.devices()[:count], 7)
        first = [np.asarray(leaf) for leaf in jax.tree.leaves(program.carry.states)]
        crossed = crossing(program)
        found = parameters(program)
        replays = [leaf for r in program.carry.replays.values() for leaf in jax.tree.leaves(r.items.experience)]
        held.append(sum(leaf.addressable_shards[0].data.nbytes for leaf in replays))
        moved.append(largest_gap(found, first))
        reference = reference or found
        distances[count] = largest_gap(found, reference)
    return {
        "distances": distances, "moved": moved, "crossing": crossed, "held": held,
        "parameters": tree_bytes(graph.states["agent"].params),
        "memory": tree_bytes(graph.nodes["rollout"].output.memory),
        "of_steps": 4 * graph.steps_per_iteration,  # the bytes of a number for each step
        "batches": max([tree_bytes(node.output) for node in graph.of_kind("replay")], default=0),
        "inserted": max([tree_bytes(node.inputs[0].type) for node in graph.of_kind("replay")], default=0),
    }  # fmt: skip


if __name__ == "__main__":
    cases = zip(sys.argv[1::3], sys.argv[2::3], sys.argv[3::3], strict=True)
    print(json.dumps({n: measured(n, int(envs), [*map(int, counts.split(","))]) for n, envs, counts in cases}))
