"""The conformance suite: every algorithm under every distribution, and more plans of both."""

import sys
from typing import Any, NamedTuple

from aging import Ages, OneGroupWaits, SlowPrioritised, SlowRunners, TeamAges
from custom_distributions import Chain, Maps, Split, Stages, Store
from paths import EXAMPLES
from toys import Drift, Relay

from runnel import distributions
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
from runnel.cli import catalog
from runnel.distributions.asynchronous import Async
from runnel.distributions.central import Central
from runnel.distributions.decoupled import Decoupled
from runnel.distributions.environments import Environments
from runnel.distributions.replicated import Replicated
from runnel.planning.plan import Plan
from runnel.types import Box

sys.path.append(str(EXAMPLES))
from mixed_synchronisation import InStepInference, OneGroupFree  # pyright: ignore[reportMissingImports]

HOST = "CartPole-v1"

REPLAYED = dict(unroll=4, batch=16, min_size=32, capacity=512, samples_per_insert=1.0, hidden=(8,))
ALGORITHMS = {
    "ppo": PPO(unroll=8, epochs=1, minibatches=2, hidden=(8,)),
    "dqn": DQN(**REPLAYED),
    "c51": C51(**REPLAYED),
    "a2c": A2C(unroll=4, hidden=(8,)),
    "impala": IMPALA(unroll=4, hidden=(8,)),
    "reinforce": Reinforce(unroll=4, hidden=(8,)),
    "ddpg": DDPG(**REPLAYED),
    "td3": TD3(**REPLAYED),
    "sac": SAC(**REPLAYED),
    "mappo": MAPPO(unroll=8, epochs=1, minibatches=2, hidden=(8,)),
    "vdn": VDN(**REPLAYED),
    "qmix": QMIX(mixing_embed=4, mixing_hidden=4, **REPLAYED),
}
RANKED = DQN(**{**ALGORITHMS["dqn"].__dict__, "prioritised": True})


def distribution_of(name):
    return distributions.load(name)()


def host_environment_of(algorithm):
    """One that it can act in."""
    return "Pendulum-v1" if algorithm.actions == (Box,) else HOST


def environment_of(name, algorithm):
    """One that the distribution can run and the algorithm can act in."""
    return ("gymnax:" if name == "fused" else "") + host_environment_of(ALGORITHMS[algorithm])


def jax_environment_of(algorithm):
    return "gymnax:Pendulum-v1" if ALGORITHMS[algorithm].actions == (Box,) else "toys:Corridor"


RUNS_UNDER = {entry.name: entry.distributions for entry in catalog.algorithms()}
PRODUCT = [(algorithm, name) for algorithm in ALGORITHMS for name in distributions.names()]
TRAINS = [(algorithm, name) for algorithm, name in PRODUCT if name in RUNS_UNDER[algorithm]]

SCALED = {
    "async, two learners": (ALGORITHMS["impala"], Async(actors=4, learners=2)),
    "decoupled, many of each": (ALGORITHMS["impala"], Decoupled(actors=4, inference=2, learners=2)),
    "async, two learners, with replay": (ALGORITHMS["sac"], Async(actors=4, learners=2)),
    "decoupled, one split, with replay": (RANKED, Decoupled(actors=3, inference=2, env_splits=1)),
    "central with replay": (RANKED, Central(actors=4)),
    "central, one worker": (ALGORITHMS["a2c"], Central(actors=1)),
    "async without staleness": (ALGORITHMS["ppo"], Async(actors=2)),
    "async with V-trace": (PPO(unroll=8, minibatches=2, hidden=(8,), advantages="vtrace"), Async(actors=2)),
    "async with PopArt, two learners": (IMPALA(unroll=4, hidden=(8,), popart=True), Async(actors=2, learners=2)),
    "central with PopArt": (A2C(unroll=4, hidden=(8,), popart=True), Central(actors=4)),
    "async with memory": (IMPALA(unroll=4, hidden=(8,), memory="gru", memory_size=4), Async(actors=2)),
    "decoupled with memory": (IMPALA(unroll=4, hidden=(8,), memory="lstm", memory_size=4), Decoupled(actors=2)),
    "replicated, four": (ALGORITHMS["dqn"], Replicated(4)),
    "environments, 3 splits": (ALGORITHMS["impala"], Environments(actors=2, env_splits=3)),
}

OWN = {
    "store on JAX": (ALGORITHMS["dqn"], "toys:Corridor", Store()),
    "store, ranked, on JAX": (RANKED, "toys:Corridor", Store()),
    "store, in step": (ALGORITHMS["dqn"], HOST, Store(sync=True)),
    "maps, free": (ALGORITHMS["dqn"], HOST, Maps(sync=False)),
    "maps, free, on JAX": (RANKED, "toys:Corridor", Maps(sync=False)),
    "chain, in step": (ALGORITHMS["dqn"], HOST, Chain(sync=True)),
    "chain on JAX": (RANKED, "toys:Corridor", Chain()),
    "stages on JAX": (Relay(), "toys:Corridor", Stages()),
    "split": (Drift(), "toys:Tag", Split()),
    "split on a host": (Drift(), "custom_distributions:host_tag", Split(sync=False)),
}

MIXED = {
    "inference in step": (Ages(), "toys:Corridor", InStepInference()),
    "inference in step on a host": (ALGORITHMS["impala"], HOST, InStepInference(actors=5)),
    "one group free": (TeamAges(), "toys:Tag", OneGroupFree()),
    "one group free on a host": (TeamAges(), "custom_distributions:host_tag", OneGroupFree(actors=5)),
    "one group waits": (SlowRunners(), "aging:Trio", OneGroupWaits()),
    "one group waits, two learners": (SlowRunners(), "toys:Tag", OneGroupWaits(learners=2)),
    "one group waits, with stages": (SlowPrioritised(), "toys:Tag", OneGroupWaits(staleness=8, stages=True)),
}
"""Their cut edges synchronise differently."""


class PlanCase(NamedTuple):
    """An algorithm, an environment and a distribution; with how many environments."""

    algorithm: Any
    environment: Any
    distribution: Any
    envs: int


PLANS = {
    **{
        f"{algorithm}, {name}": PlanCase(
            ALGORITHMS[algorithm], environment_of(name, algorithm), distribution_of(name), 8
        )
        for algorithm, name in TRAINS
    },
    **{case: PlanCase(a, host_environment_of(a), distribution, 24) for case, (a, distribution) in SCALED.items()},
    **{case: PlanCase(*wanted, envs=10) for case, wanted in {**OWN, **MIXED}.items()},
}
"""By name: every plan of the suite."""


def shown(plan: Plan) -> set[tuple[str, str, str, str]]:
    """By plan: what goes between fragments, as (channel, source, target, whose)."""
    return {
        (cut.channel, cut.source, cut.target, cut.node if cut.channel == "value" else cut.group)
        for cut in plan.cuts
        if cut.channel != "collective"
    }
