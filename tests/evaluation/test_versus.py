"""Two policies against each other: seats, openings, and results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policies import fresh

import runnel
from runnel import envs
from runnel.algorithms.ppo import PPO
from runnel.algorithms.scripted import Scripted
from runnel.environment import TimeStep
from runnel.errors import UserError
from runnel.evaluation.match import score_interval
from runnel.evaluation.openings import draw_openings
from runnel.observations import parted, view
from runnel.policy import Policies, Policy
from runnel.types import AgentSpec, Box, Discrete, EnvSpec

RPS = "matrix:rock_paper_scissors"
ROCK, PAPER, SCISSORS = range(3)
KUHN = "openspiel:kuhn_poker"
SMALL = PPO(unroll=4, epochs=1, minibatches=1, hidden=(8,))


def always(action: int, env: Any = RPS, group: str = "player", **settings: Any) -> Policy:
    return fresh(Scripted(lambda observation, key: jnp.int32(action)), env, **settings)[2][group]


def legal_at_random(observation: Any, key: Any) -> Any:
    mask = view(observation).action_mask
    return jnp.where(mask, jax.random.uniform(key, mask.shape), -1.0).argmax().astype(jnp.int32)


def first_legal(observation: Any, key: Any) -> Any:
    return view(observation).action_mask.argmax().astype(jnp.int32)


def last_legal(observation: Any, key: Any) -> Any:
    mask = view(observation).action_mask
    return (mask.shape[0] - 1 - mask[::-1].argmax()).astype(jnp.int32)


def playing(function: Any, env: Any = "pgx:tic_tac_toe", **settings: Any) -> Policy:
    return fresh(Scripted(function), env, **settings)[2]["player"]


# Who wins


def test_rock_loses_every_game_against_paper() -> None:
    found = runnel.versus(always(ROCK), always(PAPER), episodes=100)
    assert (found["score"], found["wins"], found["draws"]) == (0.0, 0, 0)
    assert [each["score"] for each in found["seats"]] == [0.0, 0.0]
    assert (found["mean_return"], found["opponent_return"]) == (-1.0, 1.0)
    assert runnel.versus(always(SCISSORS), always(PAPER))["score"] == 1.0
    assert runnel.versus(always(PAPER), always(PAPER))["score"] == 0.5


def test_random_play_scores_a_half_against_itself() -> None:
    player = playing(legal_at_random)
    found = runnel.versus(player, player, episodes=600, seed=3)
    low, high = found["interval"]
    assert low < 0.5 < high
    assert high - low < 0.1
    assert found["games"] == found["wins"] + found["draws"] + found["losses"] == 600
    first, second = found["seats"]
    assert (first["seat"], second["seat"]) == ("first", "second")
    assert (first["games"], second["games"]) == (300, 300)
    assert first["interval"][0] > 0.5 > second["interval"][1]  # who moves first wins more


def test_a_higher_return_wins_where_a_game_is_not_zero_sum() -> None:
    cooperate, defect = (always(action, "matrix:prisoners_dilemma") for action in (0, 1))
    found = runnel.versus(cooperate, defect)
    assert (found["score"], found["mean_return"], found["opponent_return"]) == (0.0, 0.0, 5.0)
    assert runnel.versus(defect, defect)["score"] == 0.5  # though all returns are positive


def test_the_same_seed_plays_the_same_games() -> None:
    a, b = (fresh(SMALL, "pgx:tic_tac_toe", seed, 0.3)[2]["player"] for seed in (0, 1))
    one, again, other = (runnel.versus(a, b, episodes=60, explore=True, seed=seed) for seed in (5, 5, 6))
    assert one == again
    assert one["seats"] != other["seats"]
    there, back = (runnel.versus(*sides, episodes=20, openings=10, seed=5) for sides in ((a, b), (b, a)))
    assert (back["wins"], back["losses"]) == (there["losses"], there["wins"])  # of greedy players, from both sides


# Deterministic players


@pytest.mark.parametrize("episodes", [4, 1000])
def test_deterministic_players_are_played_once_per_seat(episodes: int) -> None:
    found = runnel.versus(playing(first_legal), playing(last_legal), episodes=episodes)
    assert found["deterministic"]
    assert (found["games"], found["interval"]) == (2, None)
    assert [each["games"] for each in found["seats"]] == [1, 1]


def test_deterministic_players_are_played_once_from_each_opening() -> None:
    found = runnel.versus(playing(first_legal), playing(last_legal), episodes=200, openings=25)
    assert (found["deterministic"], found["openings"], found["games"]) == (True, 25, 50)
    low, high = found["interval"]
    assert low < found["score"] < high  # of all openings that could be drawn


def test_games_with_chance_are_not_the_same() -> None:
    found = runnel.versus(playing(first_legal, "pgx:kuhn_poker"), playing(last_legal, "pgx:kuhn_poker"), episodes=50)
    assert not found["deterministic"]
    assert found["games"] == 50


# Openings


@pytest.mark.parametrize("name", ["pgx:tic_tac_toe", "openspiel:tic_tac_toe"])
def test_openings_are_different_and_legal(name: str) -> None:
    notes: list[str] = []
    player = playing(first_legal, name)
    drawn = draw_openings(envs.make(name), 40, 3, 7, symmetric=True)
    moves = drawn.moves["player"]
    assert moves.shape == (40, 3, 2)
    assert len(set(drawn.deal.tolist())) == 40
    again = draw_openings(envs.make(name), 40, 3, 7, symmetric=True)
    np.testing.assert_array_equal(again.moves["player"], moves)
    # An illegal move would end its game before the third.
    found = runnel.versus(player, player, episodes=1, openings=100, opening_moves=1, note=notes.append)
    assert (found["openings"], found["games"]) == (9, 18)
    assert notes == ["found 9 different openings of 1 move, not 100; these are played"]


def test_an_opening_that_ends_the_game_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"opening_moves=2: every game of .* ended within 2 random moves; expected fewer"
    ):
        runnel.versus(always(ROCK), always(PAPER), openings=3)


def test_openings_of_simultaneous_moves_are_moves_of_all() -> None:
    a, b = (always(action, RPS, rounds=3) for action in (ROCK, PAPER))
    found = runnel.versus(a, b, RPS, env_settings={"rounds": 3}, openings=9, opening_moves=1, episodes=18)
    assert (found["openings"], found["games"]) == (9, 18)
    # Of the first round, nine pairs of moves: A loses the other two rounds of each.
    assert (found["wins"], found["draws"], found["losses"]) == (0, 0, 18)


# Seats


FLAG, FLAGS = Box((), np.dtype(bool), 0, 1), Box((10,), np.dtype(bool), 0, 1)


@dataclass(frozen=True)
class Counted:
    """A game of three in turns, where the player who moves first is drawn: each receives its action, from 0 to 9."""

    spec = EnvSpec("counted", {"player": AgentSpec(parted(Box((1,)), FLAGS, FLAG), Discrete(10), 3)})

    def reset(self, key: Any) -> Any:
        state = (jnp.int32(0), jax.random.randint(key, (), 0, 3))
        return state, self._observe(state)

    def step(self, state: Any, action: Any, key: Any) -> Any:
        turn, first = state
        mover = (turn + first) % 3
        reward = jnp.zeros(3).at[mover].set(action[mover] * (turn + 1.0))
        after = (turn + 1, first)
        return after, TimeStep(self._observe(after), reward, turn == 2, jnp.zeros((), jnp.bool))

    def _observe(self, state: Any) -> Any:
        turn, first = state
        active = jnp.arange(3) == (turn + first) % 3
        seen = jnp.broadcast_to(turn.astype(jnp.float32), (3, 1))
        return parted(seen, jnp.ones((3, 10), jnp.bool), active)


def test_of_three_players_b_has_all_other_seats() -> None:
    one, two = (always(action, Counted()) for action in (1, 2))
    found = runnel.versus(two, one, Counted(), episodes=90, explore=True)
    assert [each["seat"] for each in found["seats"]] == ["first", "second", "third"]
    assert [each["games"] for each in found["seats"]] == [30, 30, 30]
    # Who moves at turn t receives t times its action; B's return is the mean of its two players.
    assert [each["mean_return"] for each in found["seats"]] == [2.0, 4.0, 6.0]
    assert [each["opponent_return"] for each in found["seats"]] == [2.5, 2.0, 1.5]
    assert [each["score"] for each in found["seats"]] == [0.0, 1.0, 1.0]


def test_in_a_game_of_roles_both_have_each_role() -> None:
    pennies = "matrix:matching_pennies"
    heads, tails = (
        Policies(fresh(Scripted(lambda seen, key, action=action: jnp.int32(action)), pennies)[2]) for action in (0, 1)
    )
    found = runnel.versus(heads, tails, pennies)
    assert [(each["seat"], each["score"]) for each in found["seats"]] == [("row", 0.0), ("column", 1.0)]
    assert found["score"] == 0.5
    notes: list[str] = []
    half = Policies({"row": heads["row"], "spare": heads["row"]})
    found = runnel.versus(half, heads, pennies, note=notes.append)
    assert [(each["seat"], each["score"]) for each in found["seats"]] == [("row", 1.0)]
    assert notes == ["A does not play column: A has no policy of 'column'"]
    with pytest.raises(UserError, match="cannot be played: A does not play row: B has no policy of 'column'"):
        runnel.versus(half, half, pennies)


def test_recurrent_policies_play_from_openings() -> None:
    remembering = PPO(unroll=4, epochs=1, minibatches=1, hidden=(8,), memory="gru", memory_size=4)
    player = fresh(remembering, RPS, 0, 0.5, rounds=6)[2]["player"]
    found = runnel.versus(player, player, RPS, env_settings={"rounds": 6}, openings=4, episodes=8)
    assert (found["games"], found["score"]) == (8, 0.5)
    assert found["seats"][0]["mean_return"] == -found["seats"][1]["mean_return"]


# Host environments


def test_a_game_on_the_host_is_played_with_its_cards() -> None:
    bets, passes = (always(action, KUHN) for action in (1, 0))
    found = runnel.versus(bets, passes, episodes=120, seed=1)
    # Who passes after a bet has lost its ante, whatever the cards; nobody ever calls.
    assert (found["deterministic"], found["games"], found["score"], found["mean_return"]) == (False, 120, 1.0, 1.0)
    found = runnel.versus(bets, bets, episodes=120, seed=1)
    assert (found["deterministic"], found["games"], found["draws"]) == (False, 120, 0)
    # With the same cards in both seats, a policy wins exactly half of its games against itself.
    assert found["score"] == 0.5


def test_the_host_and_jax_agree_on_the_same_game() -> None:
    scores = [
        runnel.versus(playing(first_legal, name), playing(last_legal, name))["seats"]
        for name in ("pgx:tic_tac_toe", "openspiel:tic_tac_toe")
    ]
    assert scores[0] == scores[1]


# What the games come to


def test_an_interval_is_wilsons_for_wins_and_losses() -> None:
    low, high = score_interval(np.repeat([1.0, 0.0], [30, 70]))
    assert (low, high) == pytest.approx((0.2189, 0.3958), abs=1e-3)
    low, high = score_interval(np.ones(50))
    assert high == 1.0
    assert 0.9 < low < 0.95
    low, high = score_interval(np.full(100, 0.5))
    assert high - low < 0.05  # draws alone


# Bad input


def test_a_policy_of_another_game_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"B \(.*\) is a policy of matrix:rock_paper_scissors: found observations .* expected"
    ):
        runnel.versus(playing(first_legal), always(ROCK), "pgx:tic_tac_toe")
    with pytest.raises(UserError, match="has 1 player, expected a game of two or more"):
        runnel.versus(always(ROCK), always(ROCK), "pgx:2048")


@pytest.mark.parametrize(("name", "value"), [("episodes", 0), ("openings", -1), ("opening_moves", 0)])
def test_a_number_out_of_range_is_refused(name: str, value: int) -> None:
    with pytest.raises(UserError, match=f"{name}={value}: found {value}, expected a whole number from"):
        runnel.versus(always(ROCK), always(ROCK), **{name: value})


def test_there_must_be_a_policy(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no directory"):
        runnel.versus(tmp_path / "nothing", always(ROCK))
