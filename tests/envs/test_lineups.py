"""`env.lineups`: several groups share each role of a game, and the environment's index says which of them play."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runnel import envs
from runnel.environment import Episode, HostStep
from runnel.errors import UserError
from runnel.graph.played_columns import columns_played
from runnel.types import AgentSpec, Box, Discrete, Trajectory, zeros

PENNIES = [["row", "column"], ["row", "column-past"], ["row", "column"], ["row-past", "column"]]
TAG = [["adversary", "agent"], ["adversary", "agent-past"], ["adversary-past", "agent"]]


def test_every_group_plays_one_role_in_some_environments():
    spec = envs.make("matrix:matching_pennies", lineups=PENNIES).spec
    plays = {group: agents.plays for group, agents in spec.groups.items()}
    assert plays == {
        "row": (True, True, True, False), "column": (True, False, True, True),
        "column-past": (False, True, False, False), "row-past": (False, False, False, True),
    }  # fmt: skip
    assert [spec.groups["row"].plays_in(index) for index in range(6)] == [True, True, True, False, True, True]


def test_only_the_groups_of_an_environments_lineup_act_there():
    plain, shared = envs.make("matrix:matching_pennies"), envs.make("matrix:matching_pennies", lineups=PENNIES)
    key = jax.random.key(0)
    action = {group: jnp.int32(k % 2) for k, group in enumerate(shared.spec.groups)}
    for index in range(8):
        state, _ = shared.reset_at(key, jnp.int32(index))
        _, step = shared.step(state, action, key)
        row, column = PENNIES[index % 4]
        _, wanted = plain.step(plain.reset(key)[0], {"row": action[row], "column": action[column]}, key)
        for group in shared.spec.groups:
            assert float(step.reward[group]) == float(wanted.reward[group.removesuffix("-past")])


def opened(settings, indices):
    environment = envs.make("pettingzoo:mpe2.simple_tag_v3", max_cycles=5, **settings)
    vector = environment.open(indices, seed=3)
    groups = environment.spec.groups.items()
    step = HostStep(
        {g: zeros(a.observation, len(indices) * a.agents) for g, a in groups},
        {g: np.zeros(len(indices) * a.agents, np.float32) for g, a in groups},
        np.zeros(len(indices), bool), np.zeros(len(indices), bool),
        {g: zeros(a.observation, len(indices) * a.agents) for g, a in groups},
    )  # fmt: skip
    vector.reset(step.observation)
    return environment.spec, vector, step


def test_host_environments_are_shared_and_restored_in_the_same_way():
    indices = (0, 1, 2, 4)
    spec, shared, mine = opened({"lineups": TAG}, indices)
    _, plain, theirs = opened({}, indices)
    rng = np.random.default_rng(0)
    history = [{group: [] for group in spec.groups} for _ in indices]
    for _ in range(8):
        actions = {g: rng.integers(0, 5, 4 * a.agents, np.int32) for g, a in spec.groups.items()}
        merged = {role: np.array(actions[role]) for role in ("adversary", "agent")}
        for row, index in enumerate(indices):
            for role in merged:
                count = spec.groups[role].agents
                rows = slice(row * count, (row + 1) * count)
                (group,) = (g for g in TAG[index % 3] if g.removesuffix("-past") == role)
                merged[role][rows] = actions[group][rows]
        shared.step(actions, mine)
        plain.step(merged, theirs)
        for group in spec.groups:
            role = group.removesuffix("-past")
            np.testing.assert_array_equal(mine.observation[group], theirs.observation[role])
            np.testing.assert_array_equal(mine.reward[group], theirs.reward[role])
            np.testing.assert_array_equal(mine.last_observation[group], theirs.last_observation[role])
        np.testing.assert_array_equal(mine.truncated, theirs.truncated)
        for row in range(len(indices)):
            for group, agents in spec.groups.items():
                own = actions[group].reshape(4, agents.agents)[row]
                history[row][group].append(own if agents.agents > 1 else own[0])
            if theirs.truncated[row]:
                history[row] = {group: [] for group in spec.groups}
    _, again, shown = opened({"lineups": TAG}, indices)
    episodes = [
        Episode(int(n), {g: np.asarray(a, np.int32) for g, a in h.items()})
        for n, h in zip(shared.episode_numbers(), history, strict=True)
    ]
    assert not again.restore(episodes, shown.observation).any()
    for group in spec.groups:
        np.testing.assert_array_equal(shown.observation[group], mine.observation[group])


def test_trajectories_have_the_columns_of_environments_in_which_the_group_plays():
    steps, envs_, agents = 3, 6, 2
    columns = np.arange(envs_ * agents)
    each = np.tile(columns, (steps, 1))
    whole = Trajectory(
        observation={"x": each[..., None]}, action=each, reward=each, terminated=each, truncated=each,
        last_observation={"x": each[..., None]}, first=each, memory={"h": columns}, extras=(), discounted_sum=columns,
        version=columns, index=columns,
    )  # fmt: skip
    spec = AgentSpec(Box((1,)), Discrete(2), agents, plays=(True, False, True))
    found = columns_played(spec, whole)
    wanted = [0, 1, 4, 5, 6, 7, 10, 11]
    assert found.index.tolist() == wanted
    assert found.memory["h"].tolist() == wanted
    assert found.reward.tolist() == [wanted] * steps
    assert found.observation["x"][..., 0].tolist() == [wanted] * steps


@pytest.mark.parametrize(
    ("name", "lineups", "expected"),
    [
        ("matrix:rock_paper_scissors", [["a", "b"]], "has the group player, expected two or more roles"),
        ("matrix:matching_pennies", [["row"]], "expected a list of line-ups, each with a group for row, column"),
        ("matrix:matching_pennies", "row", "found row, expected a list of line-ups"),
        ("matrix:matching_pennies", [], "expected a list of line-ups"),
        ("matrix:matching_pennies", [["a", "b"], ["b", "a"]], "found 'b' as column and as row, expected one role"),
    ],
)
def test_lineups_that_a_game_does_not_have_are_refused(name, lineups, expected):
    with pytest.raises(UserError, match=expected):
        envs.make(name, lineups=lineups)
