"""Plans that cannot work are refused before launch, with what was found, what was expected and how to fix it."""

import json
from dataclasses import dataclass

import pytest
from aging import Ages
from planned import MACHINE, nodes, plan
from toys import Corridor, GradientReinforce, Reinforce, Tag

from runnel import distributions
from runnel.algorithm import Algorithm
from runnel.algorithms.a2c import A2C
from runnel.algorithms.dqn import DQN
from runnel.algorithms.ppo import PPO
from runnel.errors import UserError
from runnel.graph.flow import trace
from runnel.planning.plan import (
    REST,
    Barrier,
    BoundedStaleness,
    Distribution,
    Fragment,
    Layout,
    Machine,
    build_plan,
)
from runnel.replay import UniformReplay


def test_central_needs_gradient_and_apply():
    built = plan(distributions.load("central")(actors=2), GradientReinforce())
    assert nodes(built)["server"] == (1, ("apply",))
    with pytest.raises(UserError, match=r"central needs `gradient` and `apply`, which Reinforce does not have"):
        plan(distributions.load("central")())


@pytest.mark.parametrize(
    ("algorithm", "envs", "counts"),
    [
        (PPO(), 256, (1, 2, 4, 8, 16, 32, 64)),  # 4 minibatches of whole columns
        (PPO(), 8, (1, 2, 4, 8)),  # of single steps
        (PPO(minibatches=2), 60, (1, 2, 3, 5, 6, 10, 15, 30)),
        (PPO(memory="gru"), 8, (1, 2)),  # of whole columns, however few
        (PPO(memory="gru"), 64, (1, 2, 4, 8, 16)),
        (Reinforce(), 10, (1, 2, 5, 10)),  # no minibatches
        (DQN(capacity=60_000), 15, (1, 3, 5, 15)),  # a replay's batches have no columns
    ],
)
def test_as_many_devices_and_learners_as_blocks_divide_by_share_a_program(algorithm, envs, counts):
    graph = trace(algorithm, Corridor.spec, envs)

    def devices(count):
        machine = Machine(cpus=8, devices=tuple(f"cuda:{i}" for i in range(count)))
        return build_plan(distributions.load("fused")(), graph, Corridor(), machine)

    def learners(count):
        return build_plan(distributions.load("replicated")(learners=count), graph, Corridor(), MACHINE)

    words = f"{', '.join(map(str, counts[:-1]))} or {counts[-1]}"
    assert f" on cuda:0..{counts[-1] - 1}\n" in devices(counts[-1]).text() or counts[-1] <= 4
    built = devices(1)
    assert built.learners == {"program": counts}
    assert f"devices that could share it: {words}" in built.text()
    assert json.loads(json.dumps(built.json()))["learners"] == {"program": list(counts)}
    for count in range(1, max(counts) + 2):
        for made, those in ((devices, "devices"), (learners, "replicas")):
            if count in counts:
                made(count)
                continue
            with pytest.raises(UserError) as caught:
                made(count)
            if envs % count == 0:  # else the environments themselves do not divide
                assert f"; use {words} {those}, or envs= a multiple of " in str(caught.value)


def test_actors_that_feed_learners_limit_their_number():
    built = plan(distributions.load("coarse")(actors=4), PPO(), envs=256)
    assert built.learners == {"learner": (1, 2, 4)}
    assert "learners that could share it: 1, 2 or 4" in built.text()


def test_learners_of_what_others_make_are_not_shared():
    """Of a replay elsewhere, several learners could not take parts."""
    assert plan(distributions.load("central")(actors=2), GradientReinforce()).learners == {}


def test_a_replay_that_has_no_equal_parts_is_refused_with_the_memory_it_would_need():
    three = Machine(cpus=8, devices=("cuda:0", "cuda:1", "cuda:2"))
    for distribution, machine in ((distributions.load("fused")(), three), (distributions.load("replicated")(3), three)):
        with pytest.raises(UserError) as caught:
            plan(distribution, DQN(capacity=50_000), envs=12, machine=machine)
        assert "'replay' has capacity=50000" in str(caught.value)
        assert "each would need 1.3 MiB for the whole; use capacity=49998 or 50001" in str(caught.value)


class Apart(Distribution):
    """Actors with the nodes `beside`, and the rest elsewhere."""

    def __init__(self, beside, actors, synchronisation):
        self.beside, self.actors, self.synchronisation = beside, actors, synchronisation

    def layout(self, graph):
        acting = Fragment("actor", ("environment", "act", "rollout", *self.beside), replicas=self.actors)
        return Layout((acting, Fragment("rest", (REST,))), self.synchronisation)


@pytest.mark.parametrize(
    ("beside", "actors", "synchronisation", "message"),
    [
        (
            ("map",),
            2,
            Barrier(),
            "puts 'map' into fragment 'actor', whose 2 workers .* and 'replay' into 'rest'; only tr",
        ),
        (
            ("map",),
            2,
            BoundedStaleness(1),
            "put 'map' into 'rest' or into a fragment of its own, or use 1 actor worker",
        ),
        (
            ("map", "replay"),
            2,
            Barrier(),
            "the learner samples from one replay: use BoundedStaleness, put 'replay' els",
        ),
        (("map",), 1, Barrier(), None),
        (("map", "replay"), 1, Barrier(), None),
        (("map", "replay"), 2, BoundedStaleness(1_000), None),
        (("map", "replay", "gradient"), 2, Barrier(), None),
    ],
)
def test_only_trajectories_are_joined_from_parts(beside, actors, synchronisation, message):
    """What becomes of an array by a user's function, nobody knows, nor where its environments are."""
    distribution = Apart(beside, actors, synchronisation)
    if message is None:
        assert plan(distribution, DQN()).fragments[0].replicas == actors
    else:
        with pytest.raises(UserError, match=message):
            plan(distribution, DQN())


@dataclass(frozen=True)
class Given(Distribution):
    fragments: tuple[Fragment, ...]

    def layout(self, graph):
        return Layout(self.fragments, BoundedStaleness(16))


@dataclass(frozen=True)
class Late(GradientReinforce):
    max_staleness: int = 16


class TwoReplays(Algorithm):
    """Learns from batches of two replays at a time."""

    def init(self, key, spec):
        return Reinforce().init(key, spec)

    def act(self, params, observation, memory, key, explore):
        return Reinforce().act(params, observation, memory, key, explore)

    def loop(self, flow):
        trajectory = flow.rollout(self.act, steps=2)
        batches = []
        for _ in range(2):
            replay = flow.replay(UniformReplay(32))
            replay.insert(flow.map(lambda trajectory: trajectory.reward.reshape(-1), trajectory))
            batches.append(replay.sample(4))
        flow.learn(lambda state, first, second, key: (state, {"mean": (first + second).mean()}), *batches)


ACTOR = Fragment("actor", ("environment", "act", "rollout"), replicas=2)
ENVIRONMENT = Fragment("environment", ("environment",), replicas=3)
LEARNER = Fragment("learner", (REST,))


@pytest.mark.parametrize(
    ("fragments", "algorithm", "environment", "message"),
    [
        (
            (ENVIRONMENT, Fragment("inference", ("act",)), Fragment("learner", ("rollout", "learn"))),
            Reinforce(),
            Corridor(),
            "puts 'rollout' into fragment 'learner'; a rollout is assembled with the environment or with `act`: put it "
            "into 'environment' or 'inference'",
        ),
        (
            (Fragment("actor", ("environment", "act")), Fragment("learner", ("rollout", "learn"))),
            Reinforce(),
            Corridor(),
            "with the environment or with `act`: put it into 'actor'",
        ),
        (
            (Fragment("environment", ("environment", "rollout")), Fragment("inference", ("act",), 2), LEARNER),
            Reinforce(),
            Corridor(),
            "2 inference workers serve 1 environment workers; use at most 1 of them",
        ),
        (
            (ENVIRONMENT, Fragment("inference", ("act", "rollout"), replicas=2), LEARNER),
            Reinforce(),
            Corridor(),
            "3 environment workers do not divide over 2 inference workers; use a multiple of 2",
        ),
        (
            (ACTOR, Fragment("learner", (REST,), replicas=3)),
            Reinforce(),
            Corridor(),
            "2 actor workers do not divide over 3 learners; use a multiple of 3",
        ),
        (
            (ACTOR, Fragment("store", ("map", "replay")), Fragment("learner", (REST,), replicas=2)),
            DQN(capacity=60_000),
            Corridor(),
            "has 2 learners and map and replay elsewhere; several learners take trajectories only: put the node with",
        ),
        (
            (ACTOR, Fragment("gradients", ("gradient",)), Fragment("server", ("apply",))),
            A2C(),
            Tag(),
            "'server' applies gradients of hunter and runners that are computed elsewhere, expected those of one group",
        ),
        (
            (Fragment("worker", (REST,), replicas=6), Fragment("server", ("apply",))),
            Late(max_staleness=4),
            Corridor(),
            "6 workers compute gradients side by side: while one is made, 5 updates may pass; Late tolerates 4: use at "
            "most 5 workers, or an algorithm with a higher max_staleness",
        ),
        (
            (ACTOR, Fragment("store", ("replay2",)), LEARNER),
            TwoReplays(),
            Corridor(),
            "spreads the replays that feed 'learn' over several fragments; put them into one",
        ),
        (
            (ACTOR, Fragment("one", ("learn2",)), Fragment("two", (REST,))),
            Ages(learns=2),
            Corridor(),
            "spreads the nodes that learn for group 'agent' over fragments two and one; they change one state: put",
        ),
    ],
)
def test_what_cannot_learn_together_is_refused(fragments, algorithm, environment, message):
    with pytest.raises(UserError) as caught:
        plan(Given(fragments), algorithm, environment, envs=12)
    assert str(caught.value).startswith(("distribution given", *"0123456789"))
    assert message in str(caught.value)


def test_each_learner_of_a_group_of_its_own_may_apply_what_others_compute():
    groups = ("hunter", "runners")
    servers = tuple(Fragment(f"{group}-server", (f"{group}/apply",)) for group in groups)
    workers = tuple(Fragment(f"{group}-worker", (f"{group}/gradient",)) for group in groups)
    built = plan(Given((ACTOR, *workers, *servers)), A2C(), Tag())
    assert {*nodes(built)} == {"actor", *(f"{group}-{which}" for group in groups for which in ("worker", "server"))}


@pytest.mark.parametrize(
    ("fragments", "found"),
    [
        ((Fragment("worker", (REST,), replicas=2, devices="all", compiled=True),), "'worker' has 2 replicas"),
        ((Fragment("actor", ("environment", "act"), compiled=True), LEARNER), "'actor' is 1 of 2 workers"),
        ((ACTOR, Fragment("learner", (REST,), compiled=True)), "'learner' is 1 of 3 workers"),
    ],
)
def test_a_compiled_fragment_is_the_whole_plan_in_one_worker(fragments, found):
    with pytest.raises(UserError) as caught:
        plan(Given(fragments), Reinforce(), Corridor(), envs=12)
    assert f"distribution given: fragment {found}, found compiled=True, expected one worker" in str(caught.value)
    alone = plan(Given((Fragment("worker", (REST,), devices="all", compiled=True),)), Reinforce(), Corridor(), envs=12)
    assert "[environment, act, rollout, learn]  one XLA program" in alone.text()
