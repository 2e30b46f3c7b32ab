"""A league as a pure function: whom its learners play against, and when they begin again."""

from collections import defaultdict

import pytest

from runnel import League, UserError
from runnel.config import serialization
from runnel.matchmaking import Candidate, Matches, Matchmaker
from runnel.payoffs import GameResult, PayoffTable
from runnel.population import random_numbers

LEAGUE = League(places=16)


def pool_of(learner: str, versions: int = 3, league: Matchmaker = LEAGUE) -> tuple[Candidate, ...]:
    """All learners' policies, those of one learner last."""
    groups = [*(group for group in league.groups if group != learner), learner]
    return tuple(Candidate(f"{group}:{n}", n, 1000 * n, group) for group in groups for n in range(versions))


def chances(learner: str, payoffs: PayoffTable, league: Matchmaker = LEAGUE, versions: int = 3) -> dict[str, float]:
    pool = pool_of(learner, versions, league)
    matches: Matches = league.fill(random_numbers(3, 1), 1, payoffs, pool)
    league.check(matches, pool)
    found: dict[str, float] = defaultdict(float)
    for key, probability in zip(*matches, strict=True):
        found[key] += probability
    return dict(found)


def games(player: str, opponent: str, score: float, count: int = 100) -> GameResult:
    return GameResult(player, opponent, wins=score * count, losses=(1 - score) * count)


def test_the_learners_of_a_league_have_names():
    assert LEAGUE.groups == ("main", "main-exploiter", "league-exploiter-1", "league-exploiter-2")
    assert League(main_agents=2, main_exploiters=0, league_exploiters=0).groups == ("main-1", "main-2")


def test_all_play_the_newest_main_agent_before_there_are_snapshots():
    for learner in LEAGUE.groups:
        assert set(chances(learner, PayoffTable(), versions=1)) == {"main:0"}


def test_a_main_agent_plays_itself_the_past_and_those_it_has_forgotten():
    assert chances("main", PayoffTable())["main:2"] == pytest.approx(0.5)  # nobody beats it: the rest is self-play
    lost = PayoffTable((games("main:2", "main-exploiter:0", 0.0), games("main:2", "league-exploiter-1:0", 0.0)))
    found = chances("main", lost)
    assert found["main:2"] == pytest.approx(0.35)
    others = {key: chance for key, chance in found.items() if key not in ("main:2", "main-exploiter:0")}
    assert found["main-exploiter:0"] > max(others.values()) + 0.149  # 15% beside what it has as one of the past
    assert {candidate.partition(":")[0] for candidate in found} == set(LEAGUE.groups)


def test_a_main_exploiter_plays_the_newest_main_agent_or_its_past():
    even = PayoffTable((games("main-exploiter:2", "main:1", 0.5),))
    assert set(chances("main-exploiter", even)) == {"main:2"}
    losing = PayoffTable((games("main-exploiter:2", "main:1", 0.1), games("main-exploiter:2", "main:0", 0.5)))
    found = chances("main-exploiter", losing)
    assert set(found) == {"main:0", "main:1"}
    assert found["main:0"] > found["main:1"]  # it learns more from those that it is about as good as


def test_a_league_exploiter_plays_the_past_of_all():
    found = chances("league-exploiter-1", PayoffTable())
    assert {key.partition(":")[0] for key in found} == set(LEAGUE.groups)
    assert not any(key.endswith(":2") for key in found)


@pytest.mark.parametrize(
    ("learner", "score", "count", "rounds", "expected"),
    [
        ("main", 1.0, 100, 1000, False),
        ("main-exploiter", 0.8, 100, 1, True),
        ("main-exploiter", 0.6, 100, 1, False),
        ("main-exploiter", 0.6, 100, 20, True),
        ("main-exploiter", 1.0, 3, 1, False),  # too few games to say so
        ("league-exploiter-1", 0.8, 100, 1, True),
    ],
)
def test_exploiters_begin_again(learner, score, count, rounds, expected):
    payoffs = PayoffTable((games(f"{learner}:2", "main:1", score, count), games("main:2", "main:0", 1.0)))
    assert LEAGUE.starts_over(rounds, payoffs, pool_of(learner)) is expected


def test_an_exploiter_has_to_beat_all_whom_it_plays():
    payoffs = PayoffTable((games("main-exploiter:2", "main:1", 1.0), games("main-exploiter:2", "main:0", 0.2)))
    assert not LEAGUE.starts_over(1, payoffs, pool_of("main-exploiter"))


def test_a_league_is_written_and_read():
    league = League(main_agents=2, patience=5)
    assert serialization.from_json(serialization.to_json(league), Matchmaker) == league


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"main_agents": 0}, "main_agents=0: found 0, expected a whole number from 1 to 16"),
        ({"league_exploiters": 17}, "expected a whole number from 0 to 16"),
        ({"patience": 0}, "expected a whole number of at least 1"),
        ({"beaten": 2}, "beaten=2: found 2, expected a number from 0 to 1"),
        ({"self_play": 0.6}, "self_play \\+ against_past: found 1.1, expected at most 1"),
        ({"places": 0}, "places=0"),
    ],
)
def test_settings_that_make_no_league_are_refused(settings, expected):
    with pytest.raises(UserError, match=expected):
        League(**settings)
