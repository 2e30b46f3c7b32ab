"""`env.learning_seats`: some seats of a symmetric game learn, and who sits where changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runnel import envs
from runnel.environment import Episode, HostStep
from runnel.errors import UserError
from runnel.types import zeros

SEEDS = range(24)


def test_a_game_becomes_two_groups_of_the_same_spaces():
    spec = envs.make("pgx:tic_tac_toe", learning_seats=1).spec
    assert {group: agents.agents for group, agents in spec.groups.items()} == {"player": 1, "opponent": 1}
    assert spec.groups["player"].action == spec.groups["opponent"].action


def test_everybody_sits_everywhere_and_actions_reach_their_player():
    game = envs.make("matrix:rock_paper_scissors")
    seated = envs.make("matrix:rock_paper_scissors", learning_seats=1)
    orders = set()
    for seed in SEEDS:
        key = jax.random.key(seed)
        state, _ = seated.reset(key)
        orders.add(tuple(np.asarray(state.order).tolist()))
        _, step = seated.step(state, {"player": jnp.int32(1), "opponent": jnp.int32(2)}, key)
        actions = jnp.zeros(2, jnp.int32).at[state.order].set(jnp.asarray([1, 2]))
        _, plain = game.step(game.reset(key)[0], actions, key)
        assert float(step.reward["player"]) == float(plain.reward[state.order[0]])
        assert float(step.reward["opponent"]) == float(plain.reward[state.order[1]])
        np.testing.assert_array_equal(step.observation["player"], plain.observation[state.order[0]])
    assert orders == {(0, 1), (1, 0)}


def test_the_environment_draws_its_own_numbers_as_without_seats():
    plain, seated = envs.make("pgx:kuhn_poker"), envs.make("pgx:kuhn_poker", learning_seats=1)
    for seed in SEEDS:
        inner = seated.reset(jax.random.key(seed))[0].inner
        alone = plain.reset(jax.random.key(seed))[0]
        assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), inner, alone))


def opened(seats, indices=(0, 1, 5)):
    environment = envs.make("openspiel:kuhn_poker", **({"learning_seats": seats} if seats else {}))
    vector = environment.open(indices, seed=3)
    observation = {g: zeros(a.observation, len(indices) * a.agents) for g, a in environment.spec.groups.items()}
    step = HostStep(
        observation,
        {g: np.zeros(len(indices) * a.agents, np.float32) for g, a in environment.spec.groups.items()},
        np.zeros(len(indices), bool), np.zeros(len(indices), bool),
        {g: zeros(a.observation, len(indices) * a.agents) for g, a in environment.spec.groups.items()},
    )  # fmt: skip
    vector.reset(observation)
    return vector, step


def legal(observation, rng):
    return np.asarray([rng.choice(np.flatnonzero(mask)) for mask in observation["action_mask"]], np.int32)


def test_host_games_are_the_same_with_and_without_seats():
    """The same players, moved to the seats of their groups: rewards, observations and ends agree."""
    (seated, mine), (plain, theirs) = opened(1), opened(0)
    rng, seats = np.random.default_rng(0), set()
    for _ in range(60):
        numbers = seated.episode_numbers()
        assert numbers.tolist() == plain.episode_numbers().tolist()
        learner = (numbers + np.asarray([0, 1, 5])) % 2
        seats |= set(learner.tolist())
        rows = np.arange(3) * 2 + learner
        others = np.arange(3) * 2 + (1 - learner)
        np.testing.assert_array_equal(
            mine.observation["player"]["observation"], theirs.observation["player"]["observation"][rows]
        )
        np.testing.assert_array_equal(
            mine.observation["opponent"]["active"], theirs.observation["player"]["active"][others]
        )
        actions = legal(theirs.observation["player"], rng)
        plain.step({"player": actions}, theirs)
        seated.step({"player": actions[rows], "opponent": actions[others]}, mine)
        np.testing.assert_array_equal(mine.reward["player"], theirs.reward["player"][rows])
        np.testing.assert_array_equal(mine.terminated, theirs.terminated)
        ended = mine.terminated
        np.testing.assert_array_equal(
            mine.last_observation["player"]["observation"][ended],
            theirs.last_observation["player"]["observation"][rows][ended],
        )
    assert seats == {0, 1}


def test_a_restored_game_stands_where_it_stood():
    vector, step = opened(1)
    rng = np.random.default_rng(1)
    history: list[dict[str, list]] = [{"player": [], "opponent": []} for _ in range(3)]
    numbers = vector.episode_numbers().tolist()
    for _ in range(9):
        actions = {group: legal(step.observation[group], rng) for group in ("player", "opponent")}
        vector.step(actions, step)
        for row in range(3):
            for group in actions:
                history[row][group].append(actions[group][row])
            if step.terminated[row]:
                history[row] = {"player": [], "opponent": []}
        numbers = vector.episode_numbers().tolist()
    again, shown = opened(1)
    episodes = [
        Episode(n, {g: np.asarray(a, np.int32) for g, a in h.items()}) for n, h in zip(numbers, history, strict=True)
    ]
    cut = again.restore(episodes, shown.observation)
    assert not cut.any()
    for group in ("player", "opponent"):
        for part in step.observation[group]:
            np.testing.assert_array_equal(shown.observation[group][part], step.observation[group][part])


@pytest.mark.parametrize(
    ("name", "seats", "expected"),
    [
        ("pgx:tic_tac_toe", 2, "has 2 players, expected more than seats that learn"),
        ("pgx:2048", 1, "has 1 player, expected more"),
        ("jaxmarl:MPE_simple_tag_v3", 1, "has the groups adversary, agent, expected one group"),
        ("pgx:tic_tac_toe", 0, "expected a whole number, 1 or more"),
        ("pgx:tic_tac_toe", "one", "found text 'one'"),
    ],
)
def test_seats_that_a_game_does_not_have_are_refused(name, seats, expected):
    with pytest.raises(UserError, match=expected):
        envs.make(name, learning_seats=seats)
