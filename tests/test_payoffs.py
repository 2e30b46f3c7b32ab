"""Payoff tables as data."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runnel import UserError
from runnel.payoffs import MOST_CHARACTERS, MOST_GAMES, MOST_RESULTS, GameResult, PayoffTable

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # other work may hold the cores

counts = st.integers(0, 8).map(float) | st.sampled_from([0.5, 1.5])  # sums of these are exact in any order
results = st.builds(
    GameResult,
    player=st.sampled_from("abc"),
    opponent=st.sampled_from("abc"),
    wins=counts,
    draws=counts,
    losses=counts,
    returns=st.integers(-50, 50).map(float),
    role=st.sampled_from(["", "first", "second"]),
)
tables = st.lists(results, max_size=12).map(lambda found: PayoffTable().add(*found))


def test_a_score_is_wins_and_half_the_draws() -> None:
    table = PayoffTable().add(GameResult("player:12", "player:4", wins=3, draws=1, returns=2.5))
    assert table.score("player:12", "player:4") == 0.875
    assert table.score("player:4", "player:12") == 0.125
    assert table.games("player:4", "player:12") == 4
    assert table.mean_return("player:12", "player:4") == 0.625
    assert math.isnan(table.mean_return("player:4", "player:12")), "recorded from the other side"


def test_there_is_no_score_without_games() -> None:
    assert math.isnan(PayoffTable().score("a", "b"))
    assert PayoffTable().games("a", "b") == 0
    assert math.isnan(PayoffTable().add(GameResult("a", "b")).score("a", "b"))


def test_a_named_role_has_its_own_results_and_no_mirror() -> None:
    table = PayoffTable().add(
        GameResult("prey:1", "predator:2", wins=4, role="prey"),
        GameResult("predator:2", "prey:1", wins=1, losses=1, role="predator"),
    )
    assert table.score("prey:1", "predator:2", "prey") == 1.0
    assert table.score("predator:2", "prey:1", "predator") == 0.5
    assert table.games("predator:2", "prey:1", "prey") == 0
    assert table.games("prey:1", "predator:2") == 6, "all roles together"
    assert table.roles() == ("predator", "prey")
    assert table.players("prey") == ("prey:1",)
    assert table.opponents("prey") == ("predator:2",)
    assert table.players() == table.opponents() == ("predator:2", "prey:1")


def test_a_matrix_has_the_scores_of_all_pairs() -> None:
    table = PayoffTable().add(GameResult("a", "b", wins=1), GameResult("c", "a", draws=2))
    expected = [[np.nan, 1.0, 0.5], [0.0, np.nan, np.nan], [0.5, np.nan, np.nan]]
    np.testing.assert_array_equal(table.matrix("abc"), expected)
    np.testing.assert_array_equal(table.matrix("a", opponents="bc"), [[1.0, 0.5]])
    assert table.matrix([]).shape == (0, 0)
    assert table.matrix("ab", opponents=[]).shape == (2, 0)


@unhurried
@given(tables, st.sampled_from([None, "", "first"]), st.text("abcd", max_size=4), st.text("abcd", max_size=4))
def test_a_matrix_says_the_same_as_a_score(table: PayoffTable, role: str | None, players: str, others: str) -> None:
    expected = [[table.score(player, other, role) for other in others] for player in players]
    found = table.matrix(players, role, others)
    np.testing.assert_allclose(found, np.reshape(np.asarray(expected, float), (len(players), len(others))))


def test_a_table_is_not_changed() -> None:
    table = PayoffTable()
    assert table.add(GameResult("a", "b", wins=1)).games("a", "b") == 1
    assert table == PayoffTable()
    with pytest.raises(AttributeError):
        table.results = ()  # type: ignore[misc]


@unhurried
@given(tables, tables, tables)
def test_merging_takes_any_order(one: PayoffTable, two: PayoffTable, three: PayoffTable) -> None:
    assert one.merge(two) == two.merge(one)
    assert hash(one.merge(two)) == hash(two.merge(one))
    assert one.merge(two).merge(three) == one.merge(two.merge(three))
    assert one.merge(PayoffTable()) == one


@unhurried
@given(st.lists(results, max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_results_is_not_seen(found: list[GameResult], random: Any) -> None:
    shuffled = found.copy()
    random.shuffle(shuffled)
    one, other = PayoffTable(tuple(found)), PayoffTable().add(*shuffled)
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())


@unhurried
@given(tables)
def test_scores_of_both_sides_add_up_to_one(table: PayoffTable) -> None:
    for role in (None, ""):
        scores = table.matrix("abc", role)
        np.testing.assert_allclose(scores + scores.T, np.where(np.isnan(scores), np.nan, 1.0))
        assert all(table.games(a, b, role) == table.games(b, a, role) for a in "abc" for b in "abc")


@unhurried
@given(tables)
def test_json_gives_the_same_table_back(table: PayoffTable) -> None:
    text = json.dumps(table.to_json(), allow_nan=False)
    assert PayoffTable.from_json(json.loads(text)) == table


def test_numbers_of_numpy_are_kept_as_floats() -> None:
    table = PayoffTable().add(GameResult("a", "b", np.float32(1), np.int64(2), 0, np.float64(3)))  # type: ignore
    assert json.loads(json.dumps(table.to_json()))["results"] == [["a", "b", 1.0, 2.0, 0.0, 3.0, ""]]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (GameResult("", "b"), f"found player '', expected 1 to {MOST_CHARACTERS} printable characters"),
        (GameResult("a", "b\x1b[31m"), "found opponent"),
        (GameResult("a", "b", role="x" * (MOST_CHARACTERS + 1)), "found role"),
        (GameResult("a", "b", wins=-1), "found wins=-1, expected a number from 0"),
        (GameResult("a", "b", draws=math.nan), "found draws=nan"),
        (GameResult("a", "b", returns=-math.inf), "found returns=-inf"),
        (GameResult("a", "b", losses=2 * MOST_GAMES), "found losses"),
        (GameResult("a", "b", wins=True), "found wins=True"),
    ],
)
def test_a_result_that_cannot_be_is_refused(result: GameResult, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        PayoffTable().add(result)
    with pytest.raises(UserError, match=f"result 2: {expected}"):
        PayoffTable.from_json({**PayoffTable().to_json(), "results": [["a", "c", 1, 0, 0, 0, ""], list(result)]})


GOOD = PayoffTable().add(GameResult("a", "b", wins=1)).to_json()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (None, "found a NoneType, expected a payoff table of format 1; was the file edited"),
        ([], "found a list"),
        ({}, "found format 'None'"),
        ({**GOOD, "format": 2}, "found format '2'"),
        ({**GOOD, "fields": ["player"]}, "found fields"),
        ({**GOOD, "results": {}}, "found a dict, expected a list of at most"),
        ({**GOOD, "results": [3]}, "result 1: found an int, expected a list of 7 values"),
        ({**GOOD, "results": [["a", "b"]]}, "result 1: found 2 values"),
        ({**GOOD, "results": [["a", "b", "1", 0, 0, 0, ""]]}, "result 1: found wins=1, expected a number"),
        ({**GOOD, "results": [["a", ["b"], 1, 0, 0, 0, ""]]}, "result 1: found opponent"),
        ({**GOOD, "results": [["a", "b", None, 0, 0, 0, ""]]}, "result 1: found wins=None"),
        ({**GOOD, "results": 2 * GOOD["results"]}, "several results of one player, opponent and role"),
        ({**GOOD, "results": [None] * (MOST_RESULTS + 1)}, f"found {MOST_RESULTS + 1} results"),
    ],
)
def test_a_file_that_was_edited_is_refused(data: Any, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        PayoffTable.from_json(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@unhurried
@given(st.lists(json_values | st.lists(json_values, min_size=7, max_size=7), max_size=3))
def test_any_json_is_read_or_refused(rows: Any) -> None:
    try:
        table = PayoffTable.from_json({**GOOD, "results": rows})
    except UserError:
        return
    assert PayoffTable.from_json(table.to_json()) == table
