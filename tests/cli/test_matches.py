"""`runnel versus` and `runnel policies --payoffs`, as people and scripts read them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from commands import Ended, run_command

from runnel.recording.policy_store import PolicyStore


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    return partial(run_command, capsys)


def of(ended: Ended) -> list[str]:
    assert ended.status == 0, ended.err
    return ended.out.splitlines()


# versus


def test_games_are_printed_by_seat(played_run: Path, command: Callable[..., Ended]) -> None:
    lines = of(command("versus", played_run, f"{played_run}@0", "--explore", "--episodes", "101"))
    assert lines[0] == "A against B on matrix:rock_paper_scissors, seed 0"
    assert lines[1].startswith(f"  A  {played_run}  (ppo, version 16, 1,024 steps)")
    assert lines[2].startswith(f"  B  {played_run}@0  (ppo, version 0, 0 steps)")
    assert lines[3] == "  acting as in training, each deal from every seat"
    assert [line.split()[:2] for line in lines[5:]] == [["player_0", "51"], ["player_1", "51"], ["all", "102"]]
    assert " to " in lines[-1]


def test_it_says_that_deterministic_players_are_played_once(played_run: Path, command: Callable[..., Ended]) -> None:
    lines = of(command("versus", played_run, f"{played_run}@0"))
    assert lines[3] == (
        "  players and game are deterministic: played once per seat; --openings N plays different games"
    )
    assert [line.split()[:2] for line in lines[5:]] == [["player_0", "1"], ["player_1", "1"], ["all", "2"]]
    assert lines[-1].split()[6] == "-"  # no interval


def test_json_has_all_of_it(played_run: Path, command: Callable[..., Ended]) -> None:
    words = ("versus", f"{played_run}@latest", f"{played_run}@4", "--set", "env.rounds=1", "--seed", "3", "--json")
    found, again = (json.loads("\n".join(of(command(*words, "--explore", "--episodes", "50")))) for _ in range(2))
    assert found == again
    assert (found["seed"], found["games"], found["deterministic"]) == (3, 50, False)
    assert found["games"] == found["wins"] + found["draws"] + found["losses"]
    assert [each["seat"] for each in found["seats"]] == ["player_0", "player_1"]
    assert found["seats"][0].keys() == {
        "seat", "games", "wins", "draws", "losses", "score", "interval", "mean_return", "opponent_return",
    }  # fmt: skip


def test_a_mistake_is_said_in_a_line(played_run: Path, command: Callable[..., Ended]) -> None:
    for words, wanted in (
        ([f"{played_run}@lates", played_run], "has no policy 'lates'; did you mean 'latest'?"),
        ([played_run, played_run, "--env", "pgx:2048"], "pgx:2048 has 1 player, expected a game of two or more"),
        ([played_run, played_run, "--env", "pgx:tic_tac_toe"], "expected observations bool[3, 3, 2] and 9 actions"),
        ([played_run, played_run, "--env", "matrix:rock_paper_scisors"], "did you mean 'rock_paper_scissors' or"),
        ([played_run, played_run, "--openings", "4"], "--opening-moves 2: every game"),
        ([played_run, played_run, "--set", "rounds=2"], "expected env.key=value"),
        ([played_run, "nowhere"], "there is no directory nowhere"),
        ([played_run, played_run, "--episodes", "0"], "expected a whole number of 1 or more"),
    ):
        ended = command("versus", *words)
        assert (ended.status, ended.out) == (2, ""), words
        assert wanted in ended.err
        assert len(ended.err.strip().splitlines()) <= 2


# policies --payoffs


def test_scores_and_ratings_of_a_run_are_printed(played_run: Path, command: Callable[..., Ended]) -> None:
    lines = of(command("policies", played_run, "--payoffs"))
    assert lines[0] == "scores of rows against columns (wins and half the draws; - without games)"
    assert lines[1] == "shown: 12 of 17 players, 12 of 17 opponents, evenly spaced"
    names = lines[2].split()
    assert (len(names), names[0], names[-1]) == (12, "player:0", "player:16")
    rows = [line.split() for line in lines[3:15]]
    assert [row[0] for row in rows] == names
    scores = [[None if cell == "-" else float(cell) for cell in row[1:]] for row in rows]
    assert any(cell is not None for row in scores for cell in row)
    for i, row in enumerate(scores):
        for j, cell in enumerate(row):
            if i != j and cell is not None:
                assert cell + (scores[j][i] or 0.0) == pytest.approx(1.0, abs=0.011)  # two digits of each
    assert lines[16] == "ratings (400 more is ten times the odds; player:0 has 0)"
    assert lines[18].split()[:3] == ["player:0", "0", "0"]
    assert lines[-2].split()[:2] == ["player:16", "1,024"]


def test_payoffs_as_json_have_all_players(played_run: Path, command: Callable[..., Ended]) -> None:
    (found,) = json.loads("\n".join(of(command("policies", played_run, "--payoffs", "--json"))))["roles"]
    assert found["players"] == found["opponents"] == [f"player:{version}" for version in range(17)]
    assert found["role"] == ""
    assert {(len(found[name]), len(found[name][0])) for name in ("scores", "games")} == {(17, 17)}
    assert sum(map(sum, found["games"])) >= 2 * 960  # each game from both sides
    first, *_, last = found["ratings"]
    assert (first["player"], first["rating"], found["anchor"]) == ("player:0", 0.0, "player:0")
    assert last["env_steps"] == 1024
    assert last["low"] < last["rating"] < last["high"]


def test_a_run_without_results_says_so(played_run: Path, tmp_path: Path, command: Callable[..., Ended]) -> None:
    run_dir = Path(shutil.copytree(played_run, tmp_path / "run", symlinks=True))
    (run_dir / "matches.jsonl").unlink()
    for words in (["policies", run_dir], ["plot", run_dir, "--out", tmp_path / "a.png"]):
        ended = command(*words, "--payoffs")
        assert (ended.status, ended.out) == (2, "")
        assert "has no results between policies: there is no matches.jsonl in it" in ended.err
        assert len(ended.said) == 1
    ended = command("policies", played_run, "--payoffs", "--with-tag", "latest")
    assert (ended.status, "found --with-tag beside --payoffs" in ended.err) == (2, True)
    assert len(PolicyStore(run_dir)) > 1  # those are still listed
