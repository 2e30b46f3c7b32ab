"""Meta-strategies: games with known equilibria, random games, and OpenSpiel as the reference."""

import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from runnel import UserError
from runnel.ops.exploitability import matrix_nash_conv
from runnel.ops.meta_games import MOST_PROFILES, SOLVERS, alpha_rank, nash, replicator_dynamics, solve, uniform

ROCK_PAPER_SCISSORS = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])
BIASED = np.array([[0.0, -1.0, 2.0], [1.0, 0.0, -1.0], [-2.0, 1.0, 0.0]])  # rock beats scissors twice over
MATCHING_PENNIES = np.array([[1.0, -1.0], [-1.0, 1.0]])
UNEVEN_PENNIES = np.array([[2.0, -1.0], [-1.0, 1.0]])
DOMINATED = np.array([[1.0, 2.0, 3.0], [0.0, 1.0, 2.0]])  # the first row and the first column dominate

EQUILIBRIA = {
    "rock-paper-scissors": (ROCK_PAPER_SCISSORS, [1 / 3] * 3, [1 / 3] * 3),
    "biased rock-paper-scissors": (BIASED, [0.25, 0.5, 0.25], [0.25, 0.5, 0.25]),
    "matching pennies": (MATCHING_PENNIES, [0.5, 0.5], [0.5, 0.5]),
    "uneven pennies": (UNEVEN_PENNIES, [0.4, 0.6], [0.4, 0.6]),
    "a dominated row and two dominated columns": (DOMINATED, [1, 0], [1, 0, 0]),
}


unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # other work may hold the cores


def payoff_matrices(most: int) -> st.SearchStrategy[np.ndarray]:
    shapes = st.tuples(st.integers(1, most), st.integers(1, most))
    return hnp.arrays(np.float64, shapes, elements=st.floats(-1, 1, width=32))


@pytest.mark.parametrize("game", EQUILIBRIA)
def test_nash_and_replicator_dynamics_find_the_equilibrium(game: str) -> None:
    payoffs, row, column = EQUILIBRIA[game]
    found = nash(payoffs)
    np.testing.assert_allclose(found.row, row, atol=1e-9)
    np.testing.assert_allclose(found.column, column, atol=1e-9)
    close = replicator_dynamics(payoffs, steps=50_000)
    np.testing.assert_allclose(close.row, row, atol=0.05)
    np.testing.assert_allclose(close.column, column, atol=0.05)


@unhurried
@given(payoff_matrices(8), st.sampled_from([1e-3, 1.0, 1e4]), st.sampled_from([-7.0, 0.0, 0.5]))
def test_no_deviation_gains_against_nash(payoffs: np.ndarray, scale: float, shift: float) -> None:
    payoffs = scale * payoffs + shift
    found = nash(payoffs)
    value = found.row @ payoffs @ found.column
    assert (payoffs @ found.column).max() - value <= 1e-6 * scale
    assert value - (found.row @ payoffs).min() <= 1e-6 * scale
    assert found.row.sum() == pytest.approx(1)
    assert found.column.sum() == pytest.approx(1)
    assert min(found.row.min(), found.column.min()) >= 0


@settings(unhurried, max_examples=15)
@given(payoff_matrices(4))
def test_replicator_dynamics_come_close_in_zero_sum_games(payoffs: np.ndarray) -> None:
    found = replicator_dynamics(payoffs, steps=16_000, step_size=5e-3)
    assert matrix_nash_conv(payoffs, found.row, found.column) < 0.05


@settings(unhurried, max_examples=30)
@given(payoff_matrices(6))
def test_a_symmetric_zero_sum_game_has_the_value_zero(payoffs: np.ndarray) -> None:
    square = payoffs[: min(payoffs.shape), : min(payoffs.shape)]
    antisymmetric = square - square.T
    found = nash(antisymmetric)
    assert found.row @ antisymmetric @ found.column == pytest.approx(0, abs=1e-6)


def test_replicator_dynamics_stay_probabilities() -> None:
    payoffs = np.array([[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]])  # without a step that normalises, rounding grows to overflow
    found = replicator_dynamics(payoffs)
    assert found.row.sum() == pytest.approx(1)
    assert found.column.sum() == pytest.approx(1)
    assert matrix_nash_conv(payoffs, found.row, found.column) < 0.05


def test_general_sum_games_are_for_other_solvers() -> None:
    prisoners = np.array([[3.0, 0.0], [5.0, 1.0]])
    with pytest.raises(UserError, match="add up to 2 to 6, expected a constant sum; use the solver 'prd'"):
        nash(prisoners, prisoners.T)
    found = replicator_dynamics(prisoners, prisoners.T, steps=50_000)
    assert min(found.row[1], found.column[1]) > 0.9, "both defect"
    constant = nash(ROCK_PAPER_SCISSORS + 1, 2 - (ROCK_PAPER_SCISSORS + 1))
    np.testing.assert_allclose(constant.row, 1 / 3)


def test_the_least_probability_is_kept() -> None:
    found = replicator_dynamics(DOMINATED, steps=20_000, step_size=1e-2, least=0.1)
    assert found.row.min() >= 0.1 - 1e-9
    assert found.column.min() >= 0.1 - 1e-9
    with pytest.raises(UserError, match=r"least=0\.4"):
        replicator_dynamics(DOMINATED, least=0.4)


def test_uniform_mixes_all_alike() -> None:
    found = uniform(DOMINATED)
    np.testing.assert_allclose(found.row, 1 / 2)
    np.testing.assert_allclose(found.column, 1 / 3)


@pytest.mark.parametrize("solver", sorted(SOLVERS))
def test_a_single_policy_has_probability_one(solver: str) -> None:
    found = solve(solver, np.array([[0.3]]))
    assert (found.row.tolist(), found.column.tolist()) == ([1.0], [1.0])


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: solve("nahs", MATCHING_PENNIES), "solver='nahs': found no such solver; did you mean 'nash'"),
        (lambda: nash(np.zeros(3)), r"found payoffs of shapes \(3,\) and \(3,\), expected two matrices"),
        (lambda: nash(np.zeros((2, 0))), "expected two matrices"),
        (lambda: nash(np.array([[0.0, np.nan]])), "found payoffs that are not finite"),
        (lambda: replicator_dynamics(np.zeros((2, 2)), np.zeros((2, 3))), "expected two matrices of one shape"),
    ],
)
def test_a_mistake_is_said(call, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        call()


# OpenSpiel


def test_replicator_dynamics_are_those_of_open_spiel() -> None:
    from open_spiel.python.algorithms.projected_replicator_dynamics import projected_replicator_dynamics

    rng = np.random.default_rng(3)
    rows, columns = rng.normal(size=(3, 4)), rng.normal(size=(3, 4))
    for least in (1e-6, 0.1):
        found = replicator_dynamics(rows, columns, steps=3000, step_size=1e-2, least=least)
        expected = projected_replicator_dynamics([rows, columns], prd_iterations=3000, prd_dt=1e-2, prd_gamma=least)
        np.testing.assert_allclose(found.row, expected[0], atol=1e-9)
        np.testing.assert_allclose(found.column, expected[1], atol=1e-9)


def test_alpha_rank_is_uniform_in_a_cycle_and_prefers_what_dominates() -> None:
    np.testing.assert_allclose(alpha_rank(ROCK_PAPER_SCISSORS).row, 1 / 3, atol=1e-6)
    np.testing.assert_allclose(alpha_rank(BIASED).row, 1 / 3, atol=1e-6)
    found = alpha_rank(DOMINATED)
    np.testing.assert_allclose(found.row, [1, 0], atol=1e-3)
    np.testing.assert_allclose(found.column, [1, 0, 0], atol=1e-3)
    shifted = alpha_rank(ROCK_PAPER_SCISSORS + 1, (ROCK_PAPER_SCISSORS + 1).T)
    np.testing.assert_allclose(shifted.row, 1 / 3, atol=1e-6)


def test_alpha_rank_refuses_games_that_it_cannot_solve_in_time() -> None:
    with pytest.raises(UserError, match=f"found 40x41 policies, expected at most {MOST_PROFILES} pairs"):
        alpha_rank(np.zeros((40, 41)))


def test_without_open_spiel_alpha_rank_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "open_spiel.python.egt", None)
    with pytest.raises(UserError, match=r"which is not installed; run: pip install 'runnel\[openspiel\]'"):
        alpha_rank(MATCHING_PENNIES)
