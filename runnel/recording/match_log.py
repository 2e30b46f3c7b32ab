"""`matches.jsonl`: the policies in the places of an opponent pool, and their results.

A line is a decision: the results since the one before it, and the policies that play from then on. The next decision
depends on these lines alone, so a run that resumes from a checkpoint reads them up to there.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from runnel.errors import UserError
from runnel.payoffs import GameResult, PayoffTable
from runnel.recording import run_directory
from runnel.recording.files import AppendOnlyFile, as_user_error, clean, write_atomically

FILE: Final = "matches.jsonl"
MOST_BYTES: Final = 1 << 30
MOST_STEPS: Final = 1 << 62


@dataclass(frozen=True)
class MatchRound:
    """One decision for one group."""

    group: str  # that is played by the pool
    round: int  # from 0 on
    env_steps: int  # after which it was made
    pool: tuple[str, ...]  # keys of the candidates before it, the learner's newest last
    places: tuple[str, ...]  # keys of those that play from then on
    probabilities: tuple[float, ...]
    results: tuple[GameResult, ...] = ()  # of the learner, since the decision before
    began: bool = False  # whether the learner began again with its first parameters

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "results": [list(result) for result in self.results]}

    @classmethod
    def from_json(cls, data: Any) -> MatchRound | None:
        """Parses a line; None if no run can have written it."""
        try:
            found = cls(
                data["group"], data["round"], data["env_steps"], tuple(data["pool"]), tuple(data["places"]),
                tuple(data["probabilities"]), tuple(GameResult(*result) for result in data["results"]),
                data.get("began") is True,
            )  # fmt: skip
            PayoffTable(found.results)
        except (KeyError, TypeError, UserError):
            return None
        keys = (found.group, *found.pool, *found.places)
        whole = type(found.round) is int and type(found.env_steps) is int and 0 <= found.env_steps < MOST_STEPS
        proper = whole and all(isinstance(key, str) and len(key) <= 4096 for key in keys) and found.round >= 0
        likely = all(type(p) in (int, float) and 0 <= p <= 1 and math.isfinite(p) for p in found.probabilities)
        return found if proper and likely and len(found.places) == len(found.probabilities) else None


class MatchLog:
    """Appends decisions, and drops those that a run repeats."""

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir

    def add(self, made: MatchRound) -> None:
        with as_user_error(self.run_dir / FILE):
            file = AppendOnlyFile(self.run_dir / FILE)
            try:
                file.write((json.dumps(clean(made.to_json()), allow_nan=False) + "\n").encode())
            finally:
                file.close()

    def rewind(self, env_steps: int) -> None:
        """Drops decisions that were made later."""
        kept = [made for made in read_matches(self.run_dir) if made.env_steps <= env_steps]
        if run_directory.exists(self.run_dir, FILE):
            lines = "".join(json.dumps(made.to_json(), allow_nan=False) + "\n" for made in kept)
            write_atomically(self.run_dir / FILE, lines.encode())


def read_matches(run_dir: Path | str) -> list[MatchRound]:
    """The decisions of a run in order. Lines that no run writes are left out."""
    if not run_directory.exists(run_dir, FILE):
        return []
    found = []
    with as_user_error(Path(run_dir) / FILE, "read"):
        for line in run_directory.lines(run_dir, FILE, MOST_BYTES):
            try:
                made = MatchRound.from_json(json.loads(line))
            except (ValueError, RecursionError):
                continue
            if made is not None:
                found.append(made)
    return found


def payoffs_of(rounds: list[MatchRound]) -> PayoffTable:
    """All results in these decisions."""
    return PayoffTable().add(*(result for made in rounds for result in made.results))
