"""Trains members over several devices and prints, as JSON, how far each ends from a run of its seed alone.

A script, because the number of host devices must be set before JAX starts.
"""

import json
import math
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
os.environ["JAX_ENABLE_X64"] = "1"
sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import jax
import numpy as np
from gaps import largest_gap

import runnel
from runnel.algorithms.ppo import PPO
from runnel.execution.building import build
from runnel.recording.checkpoint import Checkpoints
from runnel.runtime.programs.loop import Loop
from runnel.runtime.programs.snapshots import NO_SNAPSHOTS
from runnel.runtime.single_process.cohort import CohortProgram
from runnel.runtime.single_process.compiled import CompiledProgram
from runnel.runtime.single_process.shared_program import SharedProgram

SMALL, TASK = PPO(unroll=8, minibatches=2, epochs=1, hidden=(8,)), "gymnax:CartPole-v1"
MEMBERS, ITERATIONS = 7, 4


def main(directory: Path) -> None:
    built = build(SMALL, TASK, "fused", 4)
    loop = Loop(built.graph, built.environment)
    program = CohortProgram(lambda _: Loop(built.graph, built.environment), jax.devices())
    shared = SharedProgram(program, built.graph.steps_per_iteration, range(MEMBERS), {}, NO_SNAPSHOTS)

    def train(member: int) -> list[np.ndarray]:
        view, done = shared.views[member], 0
        while done < ITERATIONS:
            done += view.run(ITERATIONS - done, 0.1, math.inf, lambda: False).iterations
        found = [np.asarray(leaf) for leaf in jax.tree.leaves(view.learnt()[0])]
        view.close()
        return found

    with ThreadPoolExecutor(MEMBERS) as threads:
        found = list(threads.map(train, range(MEMBERS)))
    (cohort,) = shared.cohorts
    used = len(jax.tree.leaves(cohort.carry.states)[0].sharding.device_set)
    single, gaps = CompiledProgram(loop, jax.devices()[:1], 0), []
    for seed, own in enumerate(found):
        single.seed = jax.numpy.uint32(seed)
        single.carry, done = single.fresh(), 0
        while done < ITERATIONS:
            done += single.run(ITERATIONS - done, 0.1, math.inf, lambda: False).iterations
        alone = jax.tree.leaves(single.carry.states)
        gaps.append(largest_gap(own, alone))
    print(json.dumps({"devices": used, "rows": len(cohort.members), "gaps": gaps, **whole_command(directory, found)}))


def whole_command(directory: Path, expected: list[list[np.ndarray]]) -> dict[str, object]:
    """The same by `train_members`, in sessions and in a stack."""
    import runnel.execution.members.training as members

    found: dict[str, object] = {}
    for name, above in (("sessions", 64), ("stack", 2)):
        members.STACKED_ABOVE = above
        trained = runnel.train_members(
            SMALL, TASK, seeds=MEMBERS, envs=4, steps=ITERATIONS * 8 * 4, run_dir=directory / name, quiet=True
        )
        paths = trained.members if name == "sessions" else [directory / name / "stack-0"]
        stored = [
            {n: a for n, a in Checkpoints(p).read(Checkpoints(p).newest()).items() if ".states" in n} for p in paths
        ]
        norm = sum(float(np.abs(array).sum()) for each in stored for array in each.values() if array.dtype.kind == "f")
        found[name] = [trained.result["status"], norm]
    total = sum(float(np.abs(leaf).sum()) for own in expected for leaf in own if leaf.dtype.kind == "f")
    return {**found, "expected": total}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
