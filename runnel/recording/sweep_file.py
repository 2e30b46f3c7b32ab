"""`sweep.json`: the specification of a sweep. It is written once, before the first trial, and never changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from runnel import __version__
from runnel.config import run_config, search_space
from runnel.config.run_config import FORMAT, MOST_MEMBERS, check_format
from runnel.config.search_space import Space
from runnel.errors import UserError
from runnel.recording import run_directory
from runnel.recording.files import read_wanted, write_json_atomically

FILE: Final = "sweep.json"
BASE: Final = "base.json"
"""The configuration that all trials share, as `runnel train --config` accepts it."""
BEST: Final = "best.json"
JOURNAL: Final = "trials.jsonl"
WINNER: Final = "winner"

SAMPLERS: Final = ("tpe", "random", "grid")
MOST_RUNGS: Final = 16


@dataclass(frozen=True)
class SweepSpec:
    """The specification of a sweep, except for the settings that all its trials share."""

    space: Space
    sampler: str  # one of SAMPLERS
    trials: int
    batch: int  # trials that are trained together
    seed: int  # of the sampler
    seeds: tuple[int, ...]  # of each trial
    winner_seeds: tuple[int, ...]  # on which the best trial's settings are trained again
    eta: int  # the best of this many batches are trained further
    rungs: tuple[int, ...]  # environment steps of each rung; a single one stops no trial

    def members_of(self, trial: int) -> range:
        """The numbers of a trial's members."""
        return range(trial * len(self.seeds), (trial + 1) * len(self.seeds))


def holds_sweep(directory: Path | str) -> bool:
    return Path(directory).is_dir() and run_directory.exists(Path(directory), FILE)


def write(directory: Path, spec: SweepSpec) -> None:
    found = asdict(spec) | {"space": search_space.to_json(spec.space)}
    write_json_atomically(directory / FILE, {"runnel_version": __version__, "format": FORMAT, **found})


def read_raw(directory: Path | str) -> dict[str, Any]:
    """The content of the file, with its space unchecked: that needs the algorithm's class, which may be untrusted."""
    path = Path(directory) / FILE
    found = read_wanted(directory, FILE, f"{directory} holds no sweep: there is no {FILE} in it")
    check_format(path, found)
    fields = [*SweepSpec.__dataclass_fields__]
    if not isinstance(found, dict) or not set(fields) <= found.keys() or not _well_formed(found):
        raise UserError(f"{path} does not describe a sweep as `runnel sweep` writes it; was the file edited?")
    return {name: found[name] for name in fields}


def of_raw(directory: Path | str, found: Mapping[str, Any], algorithm: type) -> SweepSpec:
    """The specification, with its space checked against the settings of an algorithm."""
    try:
        space = search_space.from_json(algorithm, found["space"])
    except UserError as error:
        raise UserError(f"{Path(directory) / FILE}: {error}; was the file edited?") from None
    lists = {name: tuple(found[name]) for name in ("seeds", "winner_seeds", "rungs")}
    return SweepSpec(**{**found, **lists, "space": space})


def _well_formed(found: Mapping[str, Any]) -> bool:
    whole = ("trials", "batch", "seed", "eta")
    lists = ("seeds", "winner_seeds", "rungs")
    if not all(type(found[name]) is int for name in whole):
        return False
    if not all(isinstance(found[name], list) and all(type(x) is int for x in found[name]) for name in lists):
        return False
    seeds, rungs = [*found["seeds"], *found["winner_seeds"], found["seed"]], found["rungs"]
    return bool(
        found["sampler"] in SAMPLERS
        and isinstance(found["space"], dict)
        and 1 <= found["batch"] <= found["trials"] <= MOST_MEMBERS
        and found["seeds"]
        and found["trials"] * len(found["seeds"]) <= MOST_MEMBERS
        and len(found["winner_seeds"]) <= MOST_MEMBERS
        and not any(run_config.out_of_range("seed", seed) for seed in seeds)
        and len(set(found["seeds"])) == len(found["seeds"])
        and len({*found["seeds"], *found["winner_seeds"]}) == len(found["seeds"]) + len(found["winner_seeds"])
        and 2 <= found["eta"] <= MOST_MEMBERS
        and 1 <= len(rungs) <= MOST_RUNGS
        and rungs == sorted(set(rungs))
        and not any(run_config.out_of_range("steps", steps) for steps in rungs)
    )
