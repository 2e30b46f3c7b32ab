"""`plan.json`: the plan that a run follows, so that it can be drawn without the code that made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from runnel.errors import printable
from runnel.planning.placed import CutEdge, PlacedFragment
from runnel.recording.files import read_json, write_json_atomically

if TYPE_CHECKING:
    from runnel.planning.plan import Plan

FILE: Final = "plan.json"
MOST_BYTES: Final = 1 << 22
MOST_PARTS: Final = 64
"""Fragments, or cut edges, of a plan that is drawn."""

MOST_WORKERS: Final = 100_000
LONGEST: Final = 160
"""Letters of a text."""


@dataclass(frozen=True)
class RecordedPlan:
    """A plan as it was written, with all that a picture shows."""

    algorithm: str
    environment: str
    distribution: str
    envs: int
    steps_per_iteration: int
    fragments: tuple[PlacedFragment, ...]
    cuts: tuple[CutEdge, ...]
    notes: tuple[str, ...]
    hosts: Mapping[str, str]
    across: None = None

    @property
    def workers(self) -> int:
        return sum(fragment.replicas for fragment in self.fragments)

    def host(self, worker: str) -> str:
        return self.hosts.get(worker, "")


def write(run_dir: Path, plan: Plan) -> None:
    write_json_atomically(run_dir / FILE, {
        "algorithm": plan.algorithm, "environment": plan.environment, "distribution": plan.distribution,
        "envs": plan.envs, "steps_per_iteration": plan.steps_per_iteration, "notes": plan.notes, "hosts": plan.hosts,
        "fragments": [asdict(fragment) for fragment in plan.fragments], "cuts": [asdict(cut) for cut in plan.cuts],
    })  # fmt: skip


def read(run_dir: Path | str) -> RecordedPlan | None:
    """The plan of a run; None where there is none, or where it is not as runs write it."""
    try:
        found = read_json(run_dir, FILE, MOST_BYTES)
        fragments = tuple(map(_fragment, _listed(found["fragments"], MOST_PARTS)))
        cuts = tuple(map(_cut, _listed(found["cuts"], MOST_PARTS)))
        names = [fragment.name for fragment in fragments]
        ends = {end for cut in cuts for end in (cut.source, cut.target)}
        proper = names and len({*names}) == len(names) and ends <= {*names}
        if not proper or sum(fragment.replicas for fragment in fragments) > MOST_WORKERS:
            return None
        return RecordedPlan(
            _text(found["algorithm"]), _text(found["environment"]), _text(found["distribution"]),
            _count(found["envs"]), _count(found["steps_per_iteration"]),
            fragments, cuts, tuple(map(_text, _listed(found["notes"], MOST_PARTS))),
            {_text(name): _text(host) for name, host in dict(found["hosts"]).items()},
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _fragment(found: Any) -> PlacedFragment:
    return PlacedFragment(
        _text(found["name"]), tuple(map(_text, _listed(found["nodes"], MOST_PARTS))), max(1, _count(found["replicas"])),
        tuple(tuple(map(_text, _listed(placed, MOST_PARTS))) for placed in _listed(found["devices"], MOST_WORKERS)),
        found["compiled"] is True,
        tuple((_count(first), _count(end)) for first, end in _listed(found["environments"], MOST_WORKERS)),
        _count(found["env_splits"]),
    )  # fmt: skip


def _cut(found: Any) -> CutEdge:
    return CutEdge(
        _text(found["source"]), _text(found["target"]), tuple(map(_text, _listed(found["what"], MOST_PARTS))),
        _text(found["pattern"]), _text(found["synchronisation"]),  # type: ignore[arg-type]
        _count(found["bytes_per_iteration"]), _text(found["channel"]), _text(found["group"]), _text(found["node"]),  # type: ignore[arg-type]
    )  # fmt: skip


def _listed(value: Any, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"found {str(value)[:40]}, expected a list of at most {most}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"found {str(value)[:40]}, expected a text")
    return printable(value)[:LONGEST]


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**62:
        raise ValueError(f"found {str(value)[:40]}, expected a whole number")
    return value
