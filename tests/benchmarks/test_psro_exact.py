"""PSRO with exact best responses finds equilibria of poker."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import psro_exact
from runnel.ops.exploitability import information_states, nash_conv, of_table


def test_psro_solves_kuhn_poker() -> None:
    curve = psro_exact.until("kuhn_poker", 0.01, iterations=30)
    assert curve[0] == pytest.approx(11 / 12), "it begins with the uniform policy"
    assert curve[-1] < 0.01


def test_psro_by_replicator_dynamics_comes_close() -> None:
    curve = psro_exact.until("kuhn_poker", 0.05, solver="prd", iterations=30, steps=20_000, step_size=5e-3)
    assert curve[-1] < 0.05


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_psro_solves_leduc_poker() -> None:
    assert psro_exact.until("leduc_poker", 0.01, iterations=600)[-1] < 0.01


def test_a_policy_and_its_vector_say_the_same() -> None:
    rng = np.random.default_rng(0)
    game = psro_exact.sequence_form("kuhn_poker")
    table = {state.key: rng.dirichlet(np.ones(2)) for state in information_states("kuhn_poker")}
    again = {}
    for player in (0, 1):
        again |= game.table(player, game.plan(player, table))
    for key in table:
        np.testing.assert_allclose(again[key], table[key])
    assert nash_conv("kuhn_poker", of_table(again)) == pytest.approx(nash_conv("kuhn_poker", of_table(table)))


def test_payoffs_of_vectors_are_expected_returns() -> None:
    import pyspiel
    from open_spiel.python import policy as policies
    from open_spiel.python.algorithms.expected_game_score import policy_value

    rng = np.random.default_rng(1)
    form, game = psro_exact.sequence_form("leduc_poker"), pyspiel.load_game("leduc_poker")
    states = information_states("leduc_poker")
    table = {state.key: rng.dirichlet(np.ones(3)) * state.legal for state in states}
    table = {key: probabilities / probabilities.sum() for key, probabilities in table.items()}
    expected = policies.TabularPolicy(game)
    for key, probabilities in table.items():
        expected.policy_for_key(key)[:] = probabilities
    value = form.plan(0, table) @ form.payoffs @ form.plan(1, table)
    assert value == pytest.approx(policy_value(game.new_initial_state(), [expected, expected])[0])
