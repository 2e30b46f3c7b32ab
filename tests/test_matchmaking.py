"""Matchmakers as pure functions."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runnel import UserError
from runnel.config import serialization
from runnel.matchmaking import (
    PFSP,
    Candidate,
    Fixed,
    Latest,
    Matches,
    Matchmaker,
    Psro,
    UniformPast,
    evenly_spaced,
    keep_places,
    opponents,
    share_out,
)
from runnel.payoffs import GameResult, PayoffTable
from runnel.population import random_numbers

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # other work may hold the cores


def pool_of(count: int, group: str = "player") -> tuple[Candidate, ...]:
    return tuple(Candidate(f"{group}:{n}", n, 1000 * n, group) for n in range(count))


def filled(
    matchmaker: Matchmaker,
    pool: Sequence[Candidate],
    payoffs: PayoffTable | None = None,
    seed: int = 3,
    round: int = 1,
) -> Matches:
    matches = matchmaker.fill(random_numbers(seed, round), round, payoffs or PayoffTable(), pool)
    matchmaker.check(matches, pool)
    return matches


def chances(matches: Matches) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for key, probability in zip(*matches, strict=True):
        found[key] += probability
    return dict(found)


def results(count: int) -> st.SearchStrategy[PayoffTable]:
    players = st.integers(0, count - 1).map("player:{}".format)
    counts = st.integers(0, 9).map(float)
    result = st.builds(GameResult, players, players, counts, counts, counts, counts, st.sampled_from(["", "first"]))
    return st.lists(result, max_size=20).map(lambda found: PayoffTable(tuple(found)))


shares = st.sampled_from([0.0, 0.3, 1.0])
matchmakers = st.one_of(
    st.builds(Latest, places=st.integers(1, 8)),
    st.builds(UniformPast, places=st.integers(1, 8), latest_share=shares),
    st.builds(PFSP, weighting=st.sampled_from(["hard", "even"]), places=st.integers(1, 8), latest_share=shares),
    st.builds(Fixed, keys=st.just(("player:0",)), places=st.integers(1, 8), latest_share=shares),
    st.builds(Psro, solver=st.sampled_from(["nash", "uniform"]), places=st.integers(1, 8), latest_share=shares),
)
seeds = st.integers(0, 2**32 - 1)


@unhurried
@given(matchmakers, st.integers(1, 12), results(12), seeds, st.integers(0, 1000))
def test_every_matchmaker_fills_its_places_from_the_pool(
    matchmaker: Matchmaker, count: int, payoffs: PayoffTable, seed: int, round: int
) -> None:
    pool = pool_of(count)
    matches = filled(matchmaker, pool, payoffs, seed, round)
    assert len(matches.places) == matchmaker.places
    assert set(matches.places) <= {candidate.key for candidate in pool}
    assert math.fsum(matches.probabilities) == pytest.approx(1)
    assert all(probability > 0 for probability in matches.probabilities)
    assert matches == filled(matchmaker, pool, payoffs, seed, round), "the same seed and round"
    share = getattr(matchmaker, "latest_share", 0.0)
    if matchmaker.places > 1 and share > 0:
        assert chances(matches)[pool[-1].key] >= share - 1e-9


@unhurried
@given(matchmakers, results(6), seeds)
def test_opponents_of_another_group_are_chosen_where_there_is_one(
    matchmaker: Matchmaker, payoffs: PayoffTable, seed: int
) -> None:
    pool = (*pool_of(5), *pool_of(4, "predator"))
    if isinstance(matchmaker, Fixed):
        with pytest.raises(UserError, match="found no policy 'prey:0' in the pool"):
            filled(Fixed(keys=("prey:0",)), pool)
    matches = filled(matchmaker, pool, payoffs, seed)  # the learner is predator:3
    assert all(key.startswith("player:") for key in matches.places)


def test_other_rounds_draw_other_opponents() -> None:
    drawn = {filled(UniformPast(places=4), pool_of(40), round=round).places for round in range(8)}
    assert len(drawn) == 8


def test_latest_is_naive_self_play() -> None:
    assert filled(Latest(places=2), pool_of(5)) == Matches(("player:4", "player:4"), (0.5, 0.5))


def test_uniform_past_plays_all_alike_and_a_share_against_the_newest() -> None:
    found = chances(filled(UniformPast(places=8, latest_share=0.4), pool_of(4)))
    assert found == pytest.approx({"player:0": 0.2, "player:1": 0.2, "player:2": 0.2, "player:3": 0.4})
    assert chances(filled(UniformPast(latest_share=0.1), pool_of(1))) == {"player:0": pytest.approx(1)}
    assert "player:3" not in chances(filled(UniformPast(places=8, latest_share=0.0), pool_of(4)))


@pytest.mark.parametrize(("weighting", "expected"), [("hard", [0.01, 0.25, 0.81]), ("even", [0.09, 0.25, 0.09])])
def test_pfsp_weighs_by_the_score_against_each(weighting: str, expected: list[float]) -> None:
    table = PayoffTable().add(
        GameResult("player:3", "player:0", wins=9, losses=1),
        GameResult("player:3", "player:1", draws=10),
        GameResult("player:2", "player:3", wins=9, losses=1),  # as the opponent saw it
    )
    found = chances(filled(PFSP(weighting=weighting, places=3, latest_share=0.0), pool_of(4), table))
    shares = np.array(expected) / sum(expected)
    assert found == pytest.approx({f"player:{n}": share for n, share in enumerate(shares)})


def test_pfsp_takes_the_newest_version_that_has_played() -> None:
    table = PayoffTable().add(
        GameResult("player:2", "player:0", wins=1, losses=1),  # player:3 has not played it
        GameResult("player:1", "player:0", wins=9),
        GameResult("player:1", "player:2", losses=9),  # player:2 beats player:1
    )
    found = chances(filled(PFSP(places=3, latest_share=0.0), pool_of(4), table))
    assert found == pytest.approx({"player:0": 0.5, "player:2": 0.5})


def test_pfsp_plays_all_alike_where_it_beats_all() -> None:
    table = PayoffTable().add(*(GameResult("player:3", f"player:{n}", wins=5) for n in range(3)))
    found = chances(filled(PFSP(places=3, latest_share=0.0), pool_of(4), table))
    assert found == pytest.approx({f"player:{n}": 1 / 3 for n in range(3)})


def test_pfsp_scores_the_learner_against_another_group() -> None:
    pool = (*pool_of(3, "prey"), *pool_of(2, "predator"))
    table = PayoffTable().add(
        GameResult("predator:1", "prey:0", wins=10, role="predator"),
        GameResult("predator:0", "prey:1", losses=10, role="predator"),
    )
    found = chances(filled(PFSP(places=2, latest_share=0.0), pool, table))
    assert found == {"prey:1": pytest.approx(1)}, "prey:0 is beaten, prey:2 is the newest"


def test_fixed_plays_the_named_ones() -> None:
    pool = (Candidate("random", group="player", pinned=True), *pool_of(3))
    found = chances(filled(Fixed(("random", "player:1"), places=4, latest_share=0.5), pool))
    assert found == pytest.approx({"random": 0.25, "player:1": 0.25, "player:2": 0.5})
    assert Fixed("random").keys == ("random",)  # type: ignore[arg-type]
    assert Fixed(["random"]).keys == ("random",)  # type: ignore[arg-type]


@pytest.mark.parametrize("solver", ["nash", "prd", "alpharank", "uniform"])
def test_psro_mixes_rock_paper_scissors_evenly(solver: str) -> None:
    table = PayoffTable().add(
        GameResult("player:0", "player:2", wins=1),
        GameResult("player:1", "player:0", wins=1),
        GameResult("player:2", "player:1", wins=1),
    )
    found = chances(filled(Psro(solver, places=3), pool_of(3), table))
    assert found == pytest.approx({f"player:{n}": 1 / 3 for n in range(3)}, abs=0.01)


def test_psro_of_two_groups_plays_the_mixture_of_the_other_one() -> None:
    # Matching pennies with a payoff of 2 for both heads, as scores: the column player's equilibrium is 0.4 and 0.6.
    scores = {("row:0", "column:0"): 1.0, ("row:0", "column:1"): 0.25, ("row:1", "column:0"): 0.25}
    scores["row:1", "column:1"] = 0.75
    table = PayoffTable(
        tuple(GameResult(row, column, score, losses=1 - score, role="row") for (row, column), score in scores.items())
    )
    pool = (*pool_of(2, "column"), *pool_of(2, "row"))
    assert chances(filled(Psro(places=2), pool, table)) == pytest.approx({"column:0": 0.4, "column:1": 0.6})


def test_psro_by_returns_knows_by_how_much_a_game_is_won() -> None:
    # Rock beats scissors by 1, paper rock by 0.5, scissors paper by 0.1, each recorded from either side.
    table = PayoffTable().add(
        GameResult("player:0", "player:2", wins=4, returns=4.0),
        GameResult("player:0", "player:1", losses=2, returns=-1.0),
        GameResult("player:2", "player:1", wins=10, returns=1.0),
    )
    found = chances(filled(Psro(places=3, payoff="return"), pool_of(3), table))
    assert found == pytest.approx({"player:0": 1 / 16, "player:1": 10 / 16, "player:2": 5 / 16})
    assert chances(filled(Psro(places=3), pool_of(3), table)) == pytest.approx({f"player:{n}": 1 / 3 for n in range(3)})


def test_psro_leaves_out_what_is_dominated() -> None:
    table = PayoffTable().add(
        GameResult("player:1", "player:0", wins=1), GameResult("player:2", "player:1", wins=1),
        GameResult("player:2", "player:0", wins=1),
    )  # fmt: skip
    assert chances(filled(Psro(places=4), pool_of(3), table)) == {"player:2": pytest.approx(1)}


# Sharing out


def test_more_candidates_than_places_are_drawn_by_weight() -> None:
    weights = {"a": 8.0, "b": 1.0, "c": 1.0}
    drawn = Counter(share_out(random_numbers(0, round), 1, weights).places[0] for round in range(2000))
    assert drawn["a"] / 2000 == pytest.approx(0.8, abs=0.04)
    matches = share_out(random_numbers(0, 1), 2, weights)
    assert len(set(matches.places)) == 2, "without replacement"
    ratio = {key: chance / weights[key] for key, chance in chances(matches).items()}
    assert len({round(each, 9) for each in ratio.values()}) == 1, "renormalised over the places"


def test_the_newest_keeps_its_share_among_many() -> None:
    weights = {str(n): 1.0 for n in range(50)}
    for round in range(20):
        assert chances(share_out(random_numbers(0, round), 3, weights, "new", 0.2))["new"] == pytest.approx(0.2)
    drawn = Counter(share_out(random_numbers(0, round), 1, weights, "new", 0.2).places[0] for round in range(1000))
    assert drawn["new"] / 1000 == pytest.approx(0.2, abs=0.05), "with one place, it is drawn as often"


@unhurried
@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1e6), max_size=10), st.integers(1, 8), shares, seeds)
def test_places_repeat_and_divide_the_share(weights: dict, places: int, share: float, seed: int) -> None:
    matches = share_out(random_numbers(seed, 0), places, weights, "newest", share)
    counts = Counter(matches.places)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert math.fsum(matches.probabilities) == pytest.approx(1)
    assert all(weights.get(key, 0) > 0 or key == "newest" for key in matches.places)
    for key in counts:
        assert len({p for k, p in zip(*matches, strict=True) if k == key}) == 1


@pytest.mark.parametrize("weights", [{}, {"a": 0.0}, {"a": -1.0, "b": 2.0}, {"a": math.nan}, {"a": math.inf}])
def test_weights_that_cannot_be_drawn_from_are_refused(weights: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected some that are positive"):
        share_out(random_numbers(0, 0), 2, weights)


@unhurried
@given(matchmakers, results(8), seeds)
def test_policies_keep_their_places(matchmaker: Matchmaker, payoffs: PayoffTable, seed: int) -> None:
    before = filled(matchmaker, pool_of(6), PayoffTable(), seed)
    after = filled(matchmaker, pool_of(8), payoffs, seed, 2)
    kept = keep_places(before, after)
    assert chances(kept) == pytest.approx(chances(after))
    assert Counter(zip(*kept, strict=True)) == Counter(zip(*after, strict=True))
    stayed = sum((Counter(before.places) & Counter(after.places)).values())
    assert sum(one == other for one, other in zip(before.places, kept.places, strict=True)) >= stayed
    assert keep_places(None, after) == after


@pytest.mark.parametrize("games", [-1, 1.5, True, 100_001])
def test_a_number_of_games_that_cannot_be_played_is_refused(games: Any) -> None:
    with pytest.raises(UserError, match=f"games={games}: found {games}, expected a whole number from 0 to 100000"):
        Latest(games=games)


# Pools


@unhurried
@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 120))
def test_a_pool_stays_evenly_spaced_as_it_grows(size: int, pool_every: int, rounds: int) -> None:
    matchmaker = Latest(pool_size=size, pool_every=pool_every)
    pool: tuple[Candidate, ...] = ()
    for round in range(rounds):
        pool = matchmaker.grow(pool, Candidate(f"player:{round}", round, 1000 * round), round)
        assert len(pool) <= size
    steps = [candidate.env_steps for candidate in pool]
    entered = range(0, rounds, pool_every)
    assert steps == sorted(steps)
    assert len(pool) == min(size, len(entered))
    assert steps[-1] == 1000 * entered[-1], "the newest that entered"
    assert size == 1 or steps[0] == 0, "the oldest"
    gaps = np.diff(steps)
    ideal = 1000 * entered[-1] / max(1, len(pool) - 1)
    assert len(gaps) == 0 or gaps.max() <= 2 * ideal + 1000 * pool_every


def test_pinned_candidates_stay_in_the_pool() -> None:
    pool = (Candidate("random", pinned=True), *pool_of(6))
    assert [each.key for each in evenly_spaced(pool, 2)] == ["random", "player:0", "player:5"]
    assert [each.key for each in evenly_spaced(pool, 1)] == ["random", "player:5"]


def test_a_snapshot_enters_once() -> None:
    pool = pool_of(3)
    assert Latest().grow(pool, pool[-1], 4) == pool
    assert Latest(pool_every=3).grow(pool[:1], pool[1], 4) == pool[:1]
    assert Latest(pool_every=3).grow(pool[:1], pool[1], 6) == pool[:2]


# Mistakes


@dataclass(frozen=True)
class Scripted(Matchmaker):
    """A user's own, which returns what it is given."""

    found: Any = None

    def fill(self, rng: np.random.Generator, round: int, payoffs: PayoffTable, pool: Sequence[Candidate]) -> Matches:
        return self.found


POOL = pool_of(3)


def test_a_matchmaker_of_ones_own_is_a_dataclass() -> None:
    good = Matches(("player:0", "player:2"), (0.25, 0.75))
    matchmaker = Scripted(good, places=2)
    assert filled(matchmaker, POOL) == good
    with pytest.raises(FrozenInstanceError):
        matchmaker.places = 3  # type: ignore[misc]
    with pytest.raises(UserError, match="places=0"):
        Scripted(good, places=0)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (None, r"Scripted.fill: found a NoneType, expected Matches\(places, probabilities\)"),
        (Matches((), ()), "found no snapshot, expected 2 keys of the pool"),
        (Matches(None, (0.5, 0.5)), "found places as a NoneType, expected a tuple of 2 keys"),  # type: ignore[arg-type]
        (Matches("player:0", (1.0,)), "found places as a str"),  # type: ignore[arg-type]
        (Matches(("player:0",), (1.0,)), "found 1 places, expected 2; repeat a key for more"),
        (
            Matches(("player:0", "playr:1"), (0.5, 0.5)),
            "found 'playr:1', expected a key of an opponent in the pool; did you mean",
        ),
        (Matches(("player:0", 7), (0.5, 0.5)), "found '7'"),  # type: ignore[arg-type]
        (Matches(("player:0", "player:1"), (1.0,)), "found 1 probabilities, expected 2"),
        (Matches(("player:0", "player:1"), None), "found probabilities as a NoneType"),  # type: ignore[arg-type]
        (Matches(("player:0", "player:1"), (1.5, -0.5)), r"found probability 1\.5, expected a number from 0 to 1"),
        (Matches(("player:0", "player:1"), (math.nan, 1.0)), "found probability nan"),
        (Matches(("player:0", "player:1"), (0.5, 0.4)), r"add up to 0\.9, expected 1; divide them by their sum"),
    ],
)
def test_matches_that_a_run_cannot_follow_are_refused(found: Any, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        filled(Scripted(found, places=2), POOL)


def test_the_learners_own_group_is_no_opponent_of_itself_where_there_is_another() -> None:
    pool = (*pool_of(2, "prey"), *pool_of(2, "predator"))
    assert [each.key for each in opponents(pool)] == ["prey:0", "prey:1"]
    with pytest.raises(UserError, match="found 'predator:0', expected a key of an opponent"):
        filled(Scripted(Matches(("predator:0",), (1.0,)), places=1), pool)


@pytest.mark.parametrize("matchmaker", [Latest(), UniformPast(), PFSP(), Fixed(("a",)), Psro()])
def test_an_empty_pool_is_refused(matchmaker: Matchmaker) -> None:
    with pytest.raises(UserError, match="found an empty pool, expected at least the learner's newest policy"):
        filled(matchmaker, ())


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Latest(every=0), "every=0: found 0, expected a whole number of at least 1"),
        (lambda: Latest(places=5000), "places=5000: found 5000, expected a whole number from 1 to 1024"),
        (lambda: Latest(pool_size=0), "pool_size=0"),
        (lambda: Latest(pool_every=1.5), r"pool_every=1\.5"),  # type: ignore[arg-type]
        (lambda: Latest(places=True), "places=True"),
        (lambda: UniformPast(latest_share=1.2), r"latest_share=1\.2: found 1\.2, expected a number from 0 to 1"),
        (lambda: PFSP(latest_share=math.nan), "latest_share=nan"),
        (lambda: PFSP(weighting="easy"), "weighting='easy': found 'easy', expected 'hard' or 'even'"),
        (lambda: Fixed(), "found no key, expected at least one"),
        (lambda: Fixed(keys=("a", "a")), "found a key twice"),
        (lambda: filled(Fixed(keys=("player:9",)), POOL), "found no policy 'player:9' in the pool; did you mean"),
        (lambda: Psro(payoff="win"), "payoff='win': found 'win', expected 'score' or 'return'"),
        (lambda: Psro(solver="nahs"), "solver='nahs': found no such solver; did you mean 'nash'"),
    ],
)
def test_a_mistake_in_a_matchmaker_is_said(make: Any, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        make()


def test_psro_without_open_spiel_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "open_spiel" else find_spec(name))
    with pytest.raises(UserError, match="'alpharank' needs 'open_spiel', which is not installed"):
        Psro(solver="alpharank")


@pytest.mark.parametrize("matchmaker", [Latest(places=2), PFSP(every=5), Fixed(("random",), pool_size=3), Psro("prd")])
def test_a_matchmaker_is_stored_as_its_class_and_fields(matchmaker: Matchmaker) -> None:
    assert serialization.from_json(serialization.to_json(matchmaker), Matchmaker) == matchmaker


def test_in_games_without_winners_pfsp_prefers_opponents_with_high_returns():
    agents, adversaries = pool_of(4, "agent"), pool_of(2, "adversary")
    returns = {"agent:0": -30.0, "agent:1": -10.0, "agent:2": -20.0}
    games = [
        GameResult(key, "adversary:1", losses=10, returns=10 * value, role="agent") for key, value in returns.items()
    ]
    pool = (*agents, *adversaries)
    found = chances(filled(PFSP(payoff="return", places=8, latest_share=0.0), pool, PayoffTable(tuple(games))))
    assert found == {"agent:1": pytest.approx(0.8), "agent:2": pytest.approx(0.2)}
    nothing = chances(filled(PFSP(payoff="return", places=8, latest_share=0.0), pool))
    assert list(nothing.values()) == [pytest.approx(1 / 3)] * 3


def test_payoffs_are_scores_or_returns():
    with pytest.raises(UserError, match="payoff='wins': found 'wins', expected 'score' or 'return'"):
        PFSP(payoff="wins")
