"""The function that a loop acts with, of one group of which alone the spaces are known."""

from dataclasses import dataclass

import pytest
from toys import Corridor, Reinforce, Tag

from runnel import algorithms
from runnel.errors import UserError
from runnel.graph.rollout_act import rollout_act
from runnel.replay import PrioritisedReplay

SPEC = Corridor.spec.groups["agent"]


@pytest.mark.parametrize("name", algorithms.names())
def test_shipped_algorithms_act_with_act(name):
    algorithm = algorithms.load(name)()
    assert rollout_act(algorithm, "agent", SPEC) == algorithm.act


@dataclass(frozen=True)
class Parted(Reinforce):
    """Each group acts in its own way, the runners after the hunter has learnt from replay."""

    def hunt(self, params, observation, memory, key, explore):
        return self.act(params, observation, memory, key, explore)

    def run(self, params, observation, memory, key, explore):
        return self.act(params, observation, memory, key, explore)

    def loop(self, flow):
        hunter, runners = flow.agents("hunter"), flow.agents("runners")
        assert hunter.spec.observation.shape  # of a group that is not known, that of the other stands in
        replay = hunter.replay(PrioritisedReplay(100))
        replay.insert(hunter.map(self.learn, hunter.rollout(self.hunt, 5).reward))
        batch = replay.sample(8)
        out = hunter.learn(self.learn, batch.items, batch["probability"])
        replay.update(out.priorities)
        runners.learn(self.learn, runners.rollout(self.run, 5))


@pytest.mark.parametrize(("group", "method"), [("hunter", "hunt"), ("runners", "run")])
def test_each_group_acts_with_its_own(group, method):
    algorithm = Parted()
    assert rollout_act(algorithm, group, Tag.spec.groups[group]) == getattr(algorithm, method)


@dataclass(frozen=True)
class Choosy(Reinforce):
    def loop(self, flow):
        raise UserError("not this environment")


def test_where_the_loop_says_nothing_it_is_act():
    algorithm = Choosy()
    assert rollout_act(algorithm, "agent", SPEC) == algorithm.act
