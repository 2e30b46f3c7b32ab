"""Metrics of the environment, as each family of environments gives them."""

import numpy as np
import pytest
from playing import empty, random_actions
from reporters import Darts, Match, TracedDarts

from runnel.environment import MOST_METRICS, ended_episodes, is_traceable
from runnel.envs import infos, make
from runnel.envs.gymnasium import GymnasiumEnvironment
from runnel.envs.stepped import Stepped


def played(environment, steps, envs=2):
    """The reported metrics of the episodes that end within `steps` steps, and the steps in which they end."""
    if is_traceable(environment):
        environment = Stepped(environment)
    vector, out = environment.open(range(envs), 3), empty(environment.spec, envs)
    vector.reset(out.observation)
    rng, ends = np.random.default_rng(0), []
    for step in range(steps):
        vector.step(random_actions(environment.spec, envs, rng), out)
        ends += [(row, step) for row in np.flatnonzero(out.terminated | out.truncated).tolist()]
    found = ended_episodes(vector)
    assert not ended_episodes(vector)  # they are given once
    vector.close()
    return found, ends


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        (GymnasiumEnvironment(Darts), {"is_success", "throws", "total", "mark"}),
        (TracedDarts(), {"is_success", "throws", "total"}),
    ],
    ids=["Gymnasium", "JAX"],
)
def test_every_ended_episode_is_reported_once_with_its_last_values(environment, names):
    found, ends = played(environment, 30)
    assert [each.row for each in found] == [row for row, _ in ends]
    for row in range(2):
        own = [each for each in found if each.row == row]
        assert [each.episode for each in own] == list(range(len(own)))
        last = [step for ended, step in ends if ended == row]
        lengths = np.diff([-1, *last])
        assert [each.values["throws"] for each in own] == lengths.tolist()
    for each in found:
        assert each.values.keys() - {"sometimes"} == names
        assert all(type(value) is float for value in each.values.values())
        assert each.values["is_success"] == (each.values["total"] >= 2)
    assert {"sometimes" in each.values for each in found} <= {False, True}


def test_an_environment_that_fails_reports_nothing_of_that_episode():
    class Falling(Darts):
        def step(self, action):
            if self.thrown == 2 and self.throws == 4:
                raise ValueError("it slipped")
            return super().step(action)

    found, ends = played(GymnasiumEnvironment(Falling), 60)
    assert 0 < len(found) < len(ends)
    assert all(each.values["throws"] != 4 for each in found)


def test_metrics_of_groups_have_the_group_in_their_names():
    found, _ = played(Match(), 3, envs=1)
    (episode,) = found
    assert episode.values == {
        "solo/clock": 3, "solo/return": 30, "pair/clock": 3, "pair/return": 60, "pair/even": 0,
    }  # fmt: skip


def test_infos_of_agents_are_averaged_over_those_of_a_group_that_are_there():
    # Walker 0 has died by then, and walker 2 has arrived.
    found, _ = played(make("pettingzoo:own_zoo", tells=True), 5, envs=1)
    (episode,) = found
    assert episode.values == {"place": (1 + 2) / 2, "last": 2}
    found, _ = played(make("pettingzoo:own_zoo", tells=True, groups="each"), 5, envs=1)
    (episode,) = found
    assert episode.values == {"walker_1/place": 1, "walker_2/place": 2, "walker_2/last": 2}


def test_infos_of_envpool_are_read_by_row():
    pytest.importorskip("envpool")
    environment = make("envpool:HalfCheetah-v4", max_episode_steps=4)
    found, _ = played(environment, 9, envs=3)
    assert [(each.row, each.episode) for each in found] == [(row, episode) for episode in range(2) for row in range(3)]
    assert found[0].values.keys() == {"reward_run", "reward_ctrl", "x_position", "x_velocity"}
    assert len({each.values["x_position"] for each in found}) == 6


@pytest.mark.parametrize("info", [None, 3, [("a", 1.0)], {"a": [1.0]}, {1: 2.0}, {"b": "c"}])
def test_what_is_no_dict_of_numbers_is_ignored(info):
    assert infos.numbers(info) == {}


def test_of_very_many_numbers_the_first_are_taken():
    assert list(infos.numbers({f"n{i}": i for i in range(1000)})) == [f"n{i}" for i in range(MOST_METRICS)]


def test_numbers_of_python_and_numpy_are_floats():
    given = {
        "flag": True,
        "whole": -3,
        "real": 0.5,
        "np.flag": np.bool_(True),
        "np-real": np.float16(2),
        "0d": np.ones(()),
    }
    assert infos.numbers(given) == {"flag": 1, "whole": -3, "real": 0.5, "np.flag": 1, "np-real": 2}
