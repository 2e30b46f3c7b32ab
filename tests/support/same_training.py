"""Trains the same thing in several ways and prints, as JSON, how far apart the parameters end.

A script, because the number of host devices and the default precision must be set before JAX starts:

    python tests/support/same_training.py                             in one process, stepped and compiled
    JAX_ENABLE_X64=1 python tests/support/same_training.py train PPO inline "coarse 2"      each way in its processes
    JAX_ENABLE_X64=1 python tests/support/same_training.py resume PPO inline "fine 2"  begun under `coarse`, ended so
    python tests/support/same_training.py train-late ...        float64 as a user's script asks for it, after an import
"""

import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path

if len(sys.argv) == 1:
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    os.environ["JAX_ENABLE_X64"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

import jax
import numpy as np
from custom_distributions import Maps, Split, Store
from gaps import largest_gap
from teams import Meeting
from toys import Corridor, Drift, Joined, Reinforce, Tag
from traced import another, fixed_settings, float_settings, traced_settings

import runnel
from runnel.algorithms.a2c import A2C
from runnel.algorithms.c51 import C51
from runnel.algorithms.ddpg import DDPG
from runnel.algorithms.dqn import DQN
from runnel.algorithms.impala import IMPALA
from runnel.algorithms.mappo import MAPPO
from runnel.algorithms.ppo import PPO
from runnel.algorithms.qmix import QMIX
from runnel.algorithms.reinforce import Reinforce as BuiltInReinforce
from runnel.algorithms.sac import SAC
from runnel.algorithms.td3 import TD3
from runnel.algorithms.vdn import VDN
from runnel.distributions.coarse import Coarse
from runnel.distributions.environments import Environments
from runnel.distributions.fine import Fine
from runnel.distributions.fused import Fused
from runnel.distributions.inline import Inline
from runnel.distributions.replicated import Replicated
from runnel.envs.gymnax import GymnaxEnvironment
from runnel.envs.stepped import Stepped
from runnel.graph.flow import trace
from runnel.runtime.programs.loop import Loop
from runnel.runtime.programs.traced_settings import separate, values_of, with_settings
from runnel.runtime.single_process.cohort import CohortProgram, try_members
from runnel.runtime.single_process.compiled import CompiledProgram
from runnel.runtime.single_process.stepped import SteppedProgram

UPDATES = 5

# In one process

CASES = {
    "PPO": (
        PPO(unroll=16, normalise_observations=True, normalise_returns=True),
        GymnaxEnvironment("CartPole-v1"),
    ),
    "PPO continuous": (
        PPO(unroll=16, value_clip=0.2, dual_clip=3.0, anneal_steps=10_000),
        GymnaxEnvironment("Pendulum-v1"),
    ),
    "PPO GRU": (PPO(unroll=16, memory="gru", minibatches=2), GymnaxEnvironment("CartPole-v1")),
    "DQN": (DQN(unroll=4, batch=32, min_size=64, capacity=512), GymnaxEnvironment("CartPole-v1")),
    **{
        kind.__name__: (
            kind(batch=32, min_size=256, capacity=512, samples_per_insert=0.5, hidden=(8,)),
            GymnaxEnvironment("Pendulum-v1"),
        )
        for kind in (DDPG, TD3)
    },
    "SAC": (
        SAC(batch=32, min_size=256, capacity=512, samples_per_insert=0.5, hidden=(8,), target_entropy=-2.0),
        GymnaxEnvironment("Pendulum-v1"),
    ),
    "A2C": (A2C(unroll=8, hidden=(8,)), GymnaxEnvironment("CartPole-v1")),
    "IMPALA": (IMPALA(unroll=8, hidden=(8,)), GymnaxEnvironment("CartPole-v1")),
    "REINFORCE": (BuiltInReinforce(unroll=16, hidden=(8,)), GymnaxEnvironment("CartPole-v1")),
    "C51": (C51(unroll=4, batch=32, min_size=64, capacity=512, hidden=(8,)), GymnaxEnvironment("CartPole-v1")),
    "DQN prioritised": (
        DQN(unroll=4, batch=32, min_size=64, capacity=512, hidden=(8,), prioritised=True),
        GymnaxEnvironment("CartPole-v1"),
    ),
    "own algorithm": (Reinforce(), Corridor()),
    "groups": (Drift(), Tag()),
    "joined groups": (Joined(), Tag()),
    "MAPPO": (MAPPO(unroll=8, epochs=2, minibatches=2, hidden=(8,)), Meeting()),
    "VDN": (VDN(batch=32, min_size=64, capacity=512, samples_per_insert=0.5, hidden=(8,), n_step=2), Meeting()),
    "QMIX": (QMIX(batch=32, min_size=64, capacity=512, samples_per_insert=0.5, hidden=(8,)), Meeting()),
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


def members(algorithm, environment, envs=32):
    """The parameters of two members of one program and, beside each, those of a run of its settings and seed alone.

    All settings that can be are arguments of the program, and differ. Only the second member can show one that was
    taken for a constant: the program is made from the settings of the first.
    """

    def loop_of(algorithm):
        return Loop(trace(algorithm, environment.spec, envs), environment)

    settings = {name: another(algorithm, name) for name in float_settings(algorithm)}
    others = [dataclasses.replace(algorithm, **{name: value}) for name, value in settings.items()]
    separation = separate([algorithm, *others], lambda make, names: try_members(lambda v: loop_of(make(v)), names))
    traced = separation.traced
    assert set(traced) == set(traced_settings(algorithm)), separation
    assert set(separation.fixed) == fixed_settings(algorithm), separation
    other = dataclasses.replace(algorithm, **{name: settings[name] for name in traced})
    program = CohortProgram(lambda values: loop_of(with_settings(algorithm, values)), jax.devices()[:1], traced)
    values, targets = values_of([algorithm, other], traced), np.full(2, np.inf)
    carry = program.fresh([7, 8], values)
    while max(int(count) for count in carry.updates.values()) < UPDATES:
        carry, _ = program.run(carry, values, 1, targets)
    for k, (own, seed) in enumerate([(algorithm, 7), (other, 8)]):
        stacked = [np.asarray(leaf)[k] for leaf in jax.tree.leaves(carry.states)]
        yield stacked, parameters(CompiledProgram(loop_of(own), jax.devices()[:1], seed))


def in_one_process() -> dict[str, float]:
    distances = {}
    chosen = os.environ.get("CASES", ",".join(CASES)).split(",")
    for name in chosen:
        algorithm, environment = CASES[name]
        for k, (found, alone) in enumerate(members(algorithm, environment)):
            distances[f"{name}: member {k} of two, settings traced"] = largest_gap(found, alone)
        if os.environ.get("ONLY_MEMBERS"):
            continue
        reference = None
        for way, program in ways(algorithm, environment):
            first = [np.asarray(leaf) for leaf in jax.tree.leaves(program.carry.states)]
            found = parameters(program)
            reference = found if reference is None else reference
            distances[f"{name}: {way}"] = largest_gap(found, reference)
            moved = largest_gap(found, first)
            assert np.isfinite(moved)
            assert moved > 1e-4, f"{name}: {way} learnt nothing"
    return distances


# In many

SMALL_PPO = PPO(unroll=8, epochs=2, minibatches=2, hidden=(8,), normalise_observations=True, normalise_returns=True)
GRU_PPO = PPO(unroll=8, epochs=1, minibatches=2, hidden=(8,), memory="gru", memory_size=4)
# 40 environments of 4 steps and batches of 16: one update an iteration
SMALL_DQN = DQN(unroll=4, batch=16, min_size=64, capacity=1024, samples_per_insert=0.1, hidden=(8,), target_period=2)
# and first two iterations that give no batch at all
RANKED_DQN = DQN(**{**SMALL_DQN.__dict__, "prioritised": True, "min_size": 300})

# 40 environments of 4 steps: random actions for an iteration, then one update in each
CONTINUOUS = dict(batch=16, min_size=160, capacity=1024, samples_per_insert=0.1, hidden=(8,))
SMALL_DDPG, SMALL_TD3, SMALL_SAC = DDPG(**CONTINUOUS), TD3(**CONTINUOUS), SAC(n_step=2, prioritised=True, **CONTINUOUS)

# Two groups of agents, with states, masks and turns
SMALL_MAPPO = MAPPO(unroll=8, epochs=2, minibatches=2, hidden=(8,), normalise_observations=True)
GRU_MAPPO = MAPPO(unroll=8, epochs=1, minibatches=2, hidden=(8,), memory="gru", memory_size=4)
SMALL_VDN = VDN(unroll=4, batch=16, min_size=64, capacity=1024, samples_per_insert=0.1, hidden=(8,), n_step=2)
SMALL_QMIX = QMIX(unroll=4, batch=16, min_size=64, capacity=1024, samples_per_insert=0.1, hidden=(8,), mixing_embed=4)

TRAININGS = {
    "PPO, host": (SMALL_PPO, "CartPole-v1"),
    "PPO GRU, host": (GRU_PPO, "CartPole-v1"),
    "DQN, host": (SMALL_DQN, "CartPole-v1"),
    "DQN prioritised, host": (RANKED_DQN, "CartPole-v1"),
    "DDPG, host": (SMALL_DDPG, "Pendulum-v1"),
    "TD3, host": (SMALL_TD3, "Pendulum-v1"),
    "SAC, host": (SMALL_SAC, "Pendulum-v1"),
    "groups, host": (Drift(), "custom_distributions:host_tag"),
    "PPO, JAX": (SMALL_PPO, "gymnax:CartPole-v1"),
    "PPO GRU, JAX": (GRU_PPO, "gymnax:CartPole-v1"),
    "DQN, JAX": (SMALL_DQN, "gymnax:CartPole-v1"),
    "SAC, JAX": (SMALL_SAC, "gymnax:Pendulum-v1"),
    "groups, JAX": (Drift(), "toys:Tag"),
    "joined groups, host": (Joined(), "custom_distributions:host_tag"),
    "joined groups, JAX": (Joined(), "toys:Tag"),
    "MAPPO, groups": (SMALL_MAPPO, "teams:Meeting"),
    "MAPPO GRU, groups": (GRU_MAPPO, "toys:Tag"),
    "VDN, groups": (SMALL_VDN, "teams:Meeting"),
    "QMIX, groups": (SMALL_QMIX, "teams:Meeting"),
    "PPO 8 blocks, JAX": (dataclasses.replace(SMALL_PPO, minibatches=5), "gymnax:CartPole-v1"),
    "PPO GRU 8 blocks, JAX": (dataclasses.replace(GRU_PPO, minibatches=5), "gymnax:CartPole-v1"),
    "PPO frames, host": (SMALL_PPO, "CartPole-v1", {"frame_stack": 3}),
    "PPO frames, JAX": (SMALL_PPO, "gymnax:CartPole-v1", {"frame_stack": 3}),
}

DISTRIBUTIONS = {
    "inline": Inline(),
    "fused": Fused(),
    **{f"coarse {n}": Coarse(n) for n in (1, 2, 4)},
    **{f"fine {n}": Fine(n) for n in (1, 2, 4)},
    **{f"fine {n}, 2 splits": Fine(n, env_splits=2) for n in (1, 2)},
    **{f"replicated {n}": Replicated(n) for n in (1, 2, 4, 5, 8)},
    **{f"environments {n}": Environments(n) for n in (1, 2, 4)},
    "environments 2, 2 splits": Environments(2, env_splits=2),
    "store": Store(sync=True),
    "maps": Maps(),
    "split": Split(),
}

ENVS = 40  # divides over 2, 4, 5 and 8 workers


def learnt(run) -> list[np.ndarray]:
    assert run.result["status"] == "finished"
    assert run.result["updates"] >= UPDATES
    return [np.asarray(leaf) for leaf in jax.tree.leaves(run.states)]


def in_many(what: str, training: str, names: list[str]) -> dict[str, float]:
    """How far each way ends from `inline`."""
    algorithm, environment, *settings = TRAININGS[training]
    steps = (UPDATES + 3) * algorithm.unroll * ENVS
    with tempfile.TemporaryDirectory() as directory:

        def train(name: str, steps: int, place: str):
            return runnel.train(
                algorithm, environment, DISTRIBUTIONS[name], envs=ENVS, steps=steps, seed=7,
                run_dir=Path(directory, place), quiet=True, env_settings=settings[0] if settings else None,
            )  # fmt: skip

        distances, reference = {}, learnt(train("inline", steps, "inline"))
        assert all(np.isfinite(leaf).all() for leaf in reference)
        for k, name in enumerate(names):
            if what == "resume":
                train("coarse 2", steps // 2, str(k))
                run = runnel.resume(Path(directory, str(k)), steps=steps, distribution=DISTRIBUTIONS[name], quiet=True)
            else:
                run = train(name, steps, str(k))
            distances[name] = largest_gap(learnt(run), reference)
    return distances


def main() -> None:
    if len(sys.argv) == 1:
        print(json.dumps(in_one_process()))
        return
    what, training, *names = sys.argv[1:]
    if what.endswith("-late"):
        jax.config.update("jax_enable_x64", True)
    print(json.dumps(in_many(what, training, names)))


if __name__ == "__main__":
    main()
