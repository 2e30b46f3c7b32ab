"""Bradley-Terry ratings, against a brute-force optimiser and by their invariances."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import optimize

from runnel import UserError
from runnel.ops.ratings import PRIOR_GAMES, SCALE, bradley_terry, ratings
from runnel.payoffs import GameResult, PayoffTable

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # other work may hold the cores

wins_of_players = st.integers(2, 6).flatmap(
    lambda n: hnp.arrays(np.float64, (n, n), elements=st.integers(0, 40).map(lambda half: half / 2))
)


def log_likelihood(wins: np.ndarray, strengths: np.ndarray) -> float:
    """Written out, with the prior; the anchor is player 0."""
    total = 0.0
    for i in range(len(wins)):
        for j in range(len(wins)):
            if i != j:
                prior = 0.5 * PRIOR_GAMES if 0 in (i, j) else 0.0
                total -= (wins[i, j] + prior) * math.log1p(math.exp(strengths[j] - strengths[i]))
    return total


def joined(wins: np.ndarray) -> bool:
    """Whether games join all players."""
    played = (wins + wins.T > 0) | np.eye(len(wins), dtype=bool)
    return bool(np.linalg.matrix_power(played.astype(float), len(wins)).all())


def curvature(cost: Callable[[np.ndarray], float], at: np.ndarray, step: float = 1e-3) -> np.ndarray:
    """Second derivatives by differences."""
    shifts = step * np.eye(len(at))
    found = [
        [cost(at + a + b) - cost(at + a - b) - cost(at - a + b) + cost(at - a - b) for b in shifts] for a in shifts
    ]
    return np.asarray(found) / (4 * step**2)


@settings(unhurried, max_examples=30)
@given(wins_of_players.filter(joined))
def test_strengths_are_those_of_a_brute_force_optimiser(wins: np.ndarray) -> None:
    found = bradley_terry(wins, anchor=0)

    def cost(x: np.ndarray) -> float:
        return -log_likelihood(wins, np.concatenate([[0.0], x]))

    best = optimize.minimize(cost, np.zeros(len(wins) - 1), method="BFGS", options={"gtol": 1e-8})
    np.testing.assert_allclose(found.strengths[1:], best.x, atol=1e-4)
    assert -cost(found.strengths[1:]) >= -best.fun - 1e-9
    information = curvature(cost, found.strengths[1:])
    np.testing.assert_allclose(found.deviations[1:], np.sqrt(np.diagonal(np.linalg.inv(information))), rtol=1e-2)


@unhurried
@given(wins_of_players, st.randoms(use_true_random=False))
def test_the_order_of_players_does_not_matter(wins: np.ndarray, random) -> None:
    order = list(range(len(wins)))
    random.shuffle(order)
    one, other = bradley_terry(wins, 0), bradley_terry(wins[np.ix_(order, order)], order.index(0))
    np.testing.assert_allclose(other.strengths, one.strengths[order], atol=1e-5)
    np.testing.assert_allclose(other.deviations, one.deviations[order], rtol=1e-4)


@unhurried
@given(wins_of_players)
def test_exchanging_wins_and_losses_reverses_the_order(wins: np.ndarray) -> None:
    np.testing.assert_allclose(bradley_terry(wins.T, 0).strengths, -bradley_terry(wins, 0).strengths, atol=1e-5)


@unhurried
@given(wins_of_players.filter(joined))
def test_more_games_of_the_same_results_narrow_the_intervals(wins: np.ndarray) -> None:
    few, many = bradley_terry(wins + wins.T, 0), bradley_terry(4 * (wins + wins.T), 0)
    np.testing.assert_allclose(few.strengths, 0.0, atol=1e-6)  # all games are even
    assert (many.deviations[1:] < few.deviations[1:]).all()


@unhurried
@given(wins_of_players)
def test_games_against_oneself_say_nothing(wins: np.ndarray) -> None:
    without = wins * (1 - np.eye(len(wins)))
    np.testing.assert_array_equal(bradley_terry(wins, 0).strengths, bradley_terry(without, 0).strengths)


def test_ten_to_one_is_400_points() -> None:
    table = PayoffTable().add(GameResult("strong", "weak", wins=1e6, losses=1e5))
    found = ratings(table, "weak", anchor_rating=1000.0)
    assert found["strong"].rating == pytest.approx(1400, abs=0.1)
    assert found["strong"].low < 1400 < found["strong"].high
    assert found["weak"] == (1000.0, 1000.0, 1000.0, 1.1e6)


@pytest.mark.parametrize("anchor_rating", [0.0, 1500.0])
def test_the_ratings_are_relative_to_the_anchor(anchor_rating: float) -> None:
    table = PayoffTable().add(GameResult("a", "b", wins=7, losses=2), GameResult("b", "c", wins=3, draws=4))
    zero, other = ratings(table, "c"), ratings(table, "c", anchor_rating=anchor_rating)
    assert list(other) == ["a", "b", "c"]
    for key in zero:
        assert other[key].rating == pytest.approx(zero[key].rating + anchor_rating)
        assert other[key].high - other[key].low == pytest.approx(zero[key].high - zero[key].low)


def test_a_draw_is_half_a_win_for_each() -> None:
    drawn = ratings(PayoffTable().add(GameResult("a", "b", wins=5, draws=4)), "b")
    halves = ratings(PayoffTable().add(GameResult("a", "b", wins=7, losses=2)), "b")
    assert drawn == halves


def test_a_player_who_only_won_has_a_finite_rating_that_grows_with_its_games() -> None:
    found = [ratings(PayoffTable().add(GameResult("a", "b", wins=n)), "b")["a"] for n in (1, 10, 100)]
    assert 0 < found[0].rating < found[1].rating < found[2].rating < math.inf
    assert all(math.isfinite(each.low) and math.isfinite(each.high) for each in found)
    # 100 wins and a prior of a quarter of a win and of a loss
    assert found[2].rating == pytest.approx(SCALE * math.log(100.25 / 0.25))


def test_players_whom_no_games_join_to_the_anchor_have_no_rating() -> None:
    table = PayoffTable().add(GameResult("a", "b", wins=1), GameResult("c", "d", wins=9))
    found = ratings(table, "a")
    assert math.isfinite(found["b"].rating)
    assert math.isnan(found["c"].rating)
    assert (found["c"].low, found["c"].high, found["c"].games) == (-math.inf, math.inf, 9)
    assert found["b"] == ratings(PayoffTable().add(GameResult("a", "b", wins=1)), "a")["b"]


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    strengths = np.array([0.0, 0.8, -0.5, 1.5])
    chances = 1 / (1 + np.exp(strengths[None] - strengths[:, None]))
    covered = []
    for _ in range(300):
        upper = np.triu(rng.binomial(30, chances), 1)
        wins = upper + np.tril(30 - upper.T, -1)
        found = bradley_terry(wins, 0)
        covered.append(np.abs(found.strengths - strengths)[1:] < 1.96 * found.deviations[1:])
    assert 0.92 < np.mean(covered) < 0.98


def test_each_role_has_its_own_rating() -> None:
    # Who moves first has the advantage; a and b are equally good when they do, and b is better when it does not.
    table = PayoffTable().add(
        GameResult("a", "random", wins=190, losses=10, role="first"),
        GameResult("b", "random", wins=190, losses=10, role="first"),
        GameResult("a", "random", wins=100, losses=100, role="second"),
        GameResult("b", "random", wins=160, losses=40, role="second"),
    )
    first = ratings(table, "a", "first")
    assert list(first) == ["a", "b"], "those who had the role"
    assert first["b"].rating == pytest.approx(0, abs=5)
    assert ratings(table, "a", "second")["b"].rating == pytest.approx(400 * math.log10(4), rel=0.01)
    assert ratings(table, "random", "first")["a"].rating > 400, "an anchor that was an opponent only"
    assert set(ratings(table, "a")) == {"a", "b", "random"}, "without a role, all games together"


def test_an_anchor_without_games_is_refused() -> None:
    table = PayoffTable().add(GameResult("player:1", "random", wins=1, role="first"))
    with pytest.raises(UserError, match="anchor='player:11': found no games of it, expected a player of the table"):
        ratings(table, "player:11")
    with pytest.raises(UserError, match="in role 'second'"):
        ratings(table, "random", "second")
    with pytest.raises(UserError, match="anchor_rating=inf"):
        ratings(table, "random", anchor_rating=math.inf)


def test_wins_that_are_no_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="expected a square"):
        bradley_terry(np.zeros((2, 3)), 0)
    with pytest.raises(ValueError, match="negative or not finite"):
        bradley_terry(np.array([[0, np.nan], [0, 0]]), 0)


def test_one_sided_chains_of_very_many_games_are_rated() -> None:
    wins = np.diag(np.full(5, 1e9), 1)  # 0 beats 1 beats 2 and so on
    found = bradley_terry(wins, 0)
    assert (np.diff(found.strengths) < -15).all()
    assert np.isfinite(found.deviations).all()
    np.testing.assert_allclose(bradley_terry(wins, 5).strengths[::-1], -found.strengths, rtol=1e-5)
