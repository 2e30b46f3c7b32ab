"""The picture of payoffs and ratings, and what it is drawn from."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from commands import run_command

from runnel.errors import UserError
from runnel.payoffs import GameResult
from runnel.recording.match_log import MatchLog, MatchRound
from runnel.reporting.payoff_plot import plot_payoffs
from runnel.reporting.payoff_report import evenly_spaced, read_payoffs


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_a_run_is_drawn(played_run: Path, tmp_path: Path, ending: str) -> None:
    out = plot_payoffs(played_run, tmp_path / f"payoffs.{ending}")
    assert out.read_bytes()[:4] in (b"\x89PNG", b"<?xm", b"%PDF")
    if ending == "svg":
        assert "player:0 has 0" in out.read_text()


def test_the_command_draws_one_run_alone(played_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, out = partial(run_command, capsys), tmp_path / "payoffs.png"
    ended = command("plot", played_run, "--payoffs", "--out", out)
    assert (ended.status, ended.out) == (0, f"{out}\n")
    for words in ([played_run, played_run], [played_run, "--metric", "loss"]):
        ended = command("plot", *words, "--payoffs", "--out", out)
        assert ended.status == 2
        assert "expected one run alone" in ended.err
    assert command("plot", played_run, "--payoffs", "--out", tmp_path / "a.gif").status == 2


def test_each_role_is_reported_and_drawn_alone(tmp_path: Path) -> None:
    log = MatchLog(tmp_path)
    named = GameResult("other/run@best", "learners", 3, 1, 6, -3.0, "prey")
    own = (GameResult("predator:0", "predator:9", 1, 0, 3), GameResult("$x$", "predator:9", 4))
    log.add(MatchRound("prey", 1, 100, ("other/run@best",), ("other/run@best",), (1.0,), (named,)))
    log.add(MatchRound("opponent", 0, 0, ("predator:0",), ("predator:0",), (1.0,)))
    log.add(MatchRound("opponent", 1, 90, ("predator:0", "predator:9"), ("predator:0",), (1.0,), own))
    symmetric, prey = read_payoffs(tmp_path)
    assert symmetric.players == ("predator:0", "predator:9", "$x$")  # by age, then those of other runs
    assert symmetric.env_steps == {"predator:0": 0, "predator:9": 90}
    np.testing.assert_allclose(symmetric.scores(["predator:9"], ["predator:0", "$x$"]), [[0.75, 0.0]])
    assert symmetric.ratings["$x$"].rating > symmetric.ratings["predator:9"].rating > 0
    assert (prey.role, prey.players, prey.opponents) == ("prey", ("other/run@best",), ("learners",))
    assert plot_payoffs(tmp_path, tmp_path / "roles.png").stat().st_size > 0


def test_a_run_without_games_is_refused(tmp_path: Path) -> None:
    MatchLog(tmp_path).add(MatchRound("opponent", 0, 0, ("player:0",), ("player:0",), (1.0,)))
    with pytest.raises(UserError, match="no game has been counted yet"):
        read_payoffs(tmp_path)


def test_players_are_evenly_spaced() -> None:
    assert evenly_spaced("abc", 12) == ("a", "b", "c")
    assert evenly_spaced([str(k) for k in range(101)], 5) == ("0", "25", "50", "75", "100")
