"""Matrix games: payoffs, groups, repeated rounds, and what is said of mistakes."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import runnel
from runnel.algorithms.ppo import PPO
from runnel.environment import is_traceable
from runnel.envs import make
from runnel.envs.matrix_games import GAMES, MatrixGame
from runnel.errors import UserError
from runnel.types import Discrete

KEY = jax.random.key(0)


def moves(environment, row, column):
    groups = list(environment.spec.groups)
    return jnp.array([row, column]) if groups == ["player"] else dict(zip(groups, (row, column), strict=True))


def rewards(timestep):
    given = timestep.reward
    return [float(reward) for reward in (given.values() if isinstance(given, dict) else given)]


@pytest.mark.parametrize("name", GAMES)
def test_a_game_is_one_step_and_pays_by_its_matrices(name):
    environment = make(f"matrix:{name}")
    assert is_traceable(environment)
    row, column = GAMES[name]
    column = -np.array(row) if column is None else np.array(column)
    for i, j in itertools.product(range(len(row)), range(len(row[0]))):
        state, first = environment.reset(KEY)
        _, timestep = environment.step(state, moves(environment, i, j), KEY)
        assert rewards(timestep) == pytest.approx([row[i][j], column[i][j]])
        assert (bool(timestep.terminated), bool(timestep.truncated)) == (True, False)
        assert all((leaf == 1).all() for leaf in jax.tree.leaves(first))


def test_payoffs_are_those_of_openspiel():
    pyspiel = pytest.importorskip("pyspiel")
    for ours, theirs, scale in (
        ("rock_paper_scissors", "matrix_rps", 1),
        ("biased_rock_paper_scissors", "matrix_brps", 50),
        ("matching_pennies", "matrix_mp", 1),
    ):
        game = pyspiel.load_matrix_game(theirs)
        np.testing.assert_allclose(np.array(GAMES[ours].row) * scale, game.row_utilities())


def test_the_equilibrium_of_the_biased_game_is_what_its_page_says():
    strategy = np.array([1, 10, 5]) / 16
    np.testing.assert_allclose(strategy @ np.array(GAMES["biased_rock_paper_scissors"].row), 0, atol=1e-12)


def test_players_of_a_symmetric_game_are_one_group():
    group = make("matrix:prisoners_dilemma").spec.groups["player"]
    assert (group.agents, group.names, group.action) == (2, ("player_0", "player_1"), Discrete(2))
    assert list(make("matrix:prisoners_dilemma", groups="each").spec.groups) == ["player_0", "player_1"]


def test_players_of_other_games_are_two_groups():
    assert list(make("matrix:matching_pennies").spec.groups) == ["row", "column"]
    unequal = MatrixGame([[1, 2, 3], [4, 5, 6]]).spec.groups
    assert {name: group.action.n for name, group in unequal.items()} == {"row": 2, "column": 3}


def test_repeated_rounds_show_what_both_did():
    environment = MatrixGame([[1, 2, 3], [4, 5, 6]], rounds=2)
    state, first = environment.reset(KEY)
    assert first["row"].tolist() == [1, 0, 0, 0, 0, 0]
    state, second = environment.step(state, {"row": 1, "column": 2}, KEY)
    assert second.observation["row"].tolist() == [0.5, 0, 1, 0, 0, 1]  # its own move first
    assert second.observation["column"].tolist() == [0.5, 0, 0, 1, 0, 1]
    assert not second.terminated
    assert environment.step(state, {"row": 0, "column": 0}, KEY)[1].terminated


def test_shared_rounds_show_each_player_its_own_move_first():
    environment = make("matrix:rock_paper_scissors", rounds=3)
    state, _ = environment.reset(KEY)
    _, timestep = environment.step(state, jnp.array([0, 2]), KEY)
    assert timestep.observation[:, 1:].tolist() == [[1, 0, 0, 0, 0, 1], [0, 0, 1, 1, 0, 0]]


def test_types_are_stable():
    for x64 in (False, True):
        with jax.enable_x64(x64):
            environment = make("matrix:prisoners_dilemma", rounds=2)
            state, observation = jax.eval_shape(environment.reset, KEY)
            stepped, timestep = jax.eval_shape(environment.step, state, jnp.zeros(2, jnp.int32), KEY)
            assert [(leaf.dtype, leaf.weak_type) for leaf in jax.tree.leaves((state, observation))] == [
                (leaf.dtype, leaf.weak_type) for leaf in jax.tree.leaves((stepped, timestep.observation))
            ]
            assert timestep.reward.dtype == jnp.result_type(float)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            lambda: make("matrix:rock_paper"),
            "no matrix game is called 'rock_paper'; did you mean 'rock_paper_scissors'",
        ),
        (lambda: make("matrix:prisoners_dilemma", round=2), "has no setting 'round'; did you mean 'rounds'"),
        (lambda: make("matrix:prisoners_dilemma", rounds=0), "rounds is 0; expected a whole number of 1 or more"),
        (lambda: make("matrix:prisoners_dilemma", groups="one"), "groups is 'one'; expected kind or each"),
        (lambda: MatrixGame([1, 2]), "payoff_row is 2; expected a matrix of finite numbers"),
        (lambda: MatrixGame([[1, 2], [3]]), "payoff_row is no matrix of numbers; expected rows of equal length"),
        (lambda: MatrixGame([[1, np.nan]]), "payoff_row is 1 x 2; expected a matrix of finite numbers"),
        (lambda: MatrixGame([[1, 2]], [[1], [2]]), "payoff_row is 1 x 2, payoff_column 2 x 1; expected both as"),
    ],
)
def test_mistakes_are_reported(build, words):
    with pytest.raises(UserError, match=words):
        build()


@pytest.mark.parametrize("environment", ["matrix:matching_pennies", MatrixGame([[1.0, 0.0], [0.0, 2.0]])])
def test_ppo_trains(environment, tmp_path):
    algorithm = PPO(unroll=16, epochs=1, minibatches=1)
    run = runnel.train(algorithm, environment, "fused", envs=4, steps=128, run_dir=tmp_path, quiet=True)
    assert run.result["status"] == "finished"
