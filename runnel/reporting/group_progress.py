"""How far the members of a directory are: from what each has recorded, as long as there is no result of all."""

from __future__ import annotations

import contextlib
import time
from calendar import timegm
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from runnel.recording import population_file, run_directory, stack_logs, stacks, sweep_file, usage_file
from runnel.recording.files import read_json
from runnel.recording.members_file import Member
from runnel.reporting import plan_file
from runnel.reporting.curves import RETURN
from runnel.reporting.run_facts import UNREADABLE, about, result, status, text
from runnel.reporting.series import newest, number

TAIL_BYTES: Final = 1 << 20
"""More than a line has that a stack of thousands of members writes."""

EACH: Final = "steps of each member"

MOST_LOOKED_AT: Final = 64
"""Members among which one with a plan is looked for."""

MOST_SEEDS: Final = 12
"""Seeds that are named one by one."""


class MemberProgress(NamedTuple):
    """How far a member is."""

    status: str  # as of a run; `waiting` or `not begun` where it does not train yet
    env_steps: float | None
    value: float | None  # its return
    reason: str | None
    record: Mapping[str, Any]  # its newest metrics


def standings(directory: Path, listed: Sequence[Member], running: bool, ended: bool = False) -> list[MemberProgress]:
    """Of each member. `running`: the directory of all is in use. `ended`: no lock says that a member trains."""
    stacked = _stacked(directory, listed)
    found = []
    for place, member in enumerate(listed):
        path, own, record = directory / member.directory, {}, stacked.get(place)
        with contextlib.suppress(*UNREADABLE):
            own = result(path)
        if record is None:
            record = {}
            with contextlib.suppress(*UNREADABLE):
                record = newest(path)
        found.append(_standing(status(path, own, ended), own, record, running, place in stacked))
    return found


def _standing(
    state: str, own: Mapping[str, Any], record: Mapping[str, Any], running: bool, stacked: bool
) -> MemberProgress:
    if state == "gone" and not record:
        state = "not begun"
    elif state == "gone" and running:
        state = "running" if stacked else "waiting"
    newer = record if state in ("running", "waiting", "gone") else {}
    evaluated = own.get("evaluation")
    value = (
        newer.get(RETURN)
        if newer
        else (evaluated if isinstance(evaluated, dict) else own).get("mean_return", own.get(RETURN))
    )
    steps = newer.get("env_steps") if newer else own.get("env_steps", record.get("env_steps"))
    reason = own.get("reason") if state == "failed" and isinstance(own.get("reason"), str) else None
    return MemberProgress(state, number(steps), number(value), reason, record)


def of_one(path: Path, ended: bool = False) -> dict[str, Any]:
    """Of one member: its result, status and newest metrics, as a view has them."""
    own: dict[str, Any] = {}
    with contextlib.suppress(*UNREADABLE):
        own = result(path)
    return {"result": own, "status": status(path, own, ended), "now": newest(path)}


def now(found: Sequence[MemberProgress], members: int, seconds: float | None) -> dict[str, Any]:
    """What all members have reached together, as `result.json` names it where it says the same."""
    returns = [each.value for each in found if each.value is not None]
    training = [each.record for each in found if each.status == "running"]
    known: dict[str, Any] = {
        "members": members,
        "finished": sum(each.status == "finished" for each in found),
        "env_steps": _sum(each.env_steps for each in found),
        "steps_per_second": _sum(number(record.get("steps_per_second")) for record in training),
        "updates": _sum(number(each.record.get("updates")) for each in found),
        "episodes": _sum(number(each.record.get("episodes")) for each in found),
        "restarts": _sum(number(each.record.get("restarts")) for each in found),
        "median_return": float(np.median(returns)) if returns else None,
        "wall_seconds": seconds,
    }
    return {name: value for name, value in known.items() if value is not None}


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def seconds(found: Sequence[MemberProgress], view: Mapping[str, Any]) -> float | None:
    """How long the members have trained: what the result of an earlier start says, and the time since the last one."""
    starts = [at for each in view["starts"] if (at := began(each)) is not None]
    if view["status"] == "running" and starts:
        before = number(view["result"].get("wall_seconds")) or 0.0
        return max(0.0, before + time.time() - starts[-1])
    known = [value for each in found if (value := number(each.record.get("wall_seconds"))) is not None]
    return max(known, default=None)


def began(start: Mapping[str, Any]) -> float | None:
    """When a start was, in seconds since 1970."""
    try:
        return float(timegm(time.strptime(str(start.get("time"))[:40], "%Y-%m-%dT%H:%M:%SZ")))
    except (ValueError, OverflowError):
        return None


def about_all(directory: Path, listed: Sequence[Member], kind: str) -> dict[str, Any]:
    """What all members are of: what the first is, without the settings in which they differ."""
    found = about(directory / listed[0].directory)
    varying = {text(key) for member in listed for key in member.settings}
    steps: float | None = (found["steps"] or 0) * len(listed) or None
    asked = {EACH if name == "steps" else name: value for name, value in found["asked"].items()}
    asked = {**asked, "members": str(len(listed)), "seeds": seeds(member.seed for member in listed)}
    if kind == "population":
        stored = read_json(directory, population_file.FILE)
        chosen = stored.get("settings")
        varying |= {text(str(key)) for each in (chosen if isinstance(chosen, list) else ())[:1] for key in each}
        each_steps = number(stored.get("steps"))
        steps = None if each_steps is None else each_steps * len(listed)
        asked |= {} if each_steps is None else {EACH: f"{each_steps:.0f}"}
    elif kind == "sweep":
        spec = sweep_file.read_raw(directory)
        rungs, count = spec["rungs"], len(spec["seeds"])
        steps = spec["trials"] * count * rungs[0] if len(rungs) == 1 else None  # else it depends on who is stopped
        asked |= {"trials": str(spec["trials"]), "sampler": spec["sampler"], EACH: ", ".join(map(str, rungs))}
        asked |= {"seeds": seeds(spec["seeds"]), "members": str(spec["trials"] * count)}
    settings = {name: value for name, value in found["settings"].items() if name not in varying}
    return {**found, "seed": "", "steps": steps, "asked": asked, "settings": settings}


def seeds(values: Iterable[int]) -> str:
    """`0 to 7`, or `1, 2, 5`."""
    found = sorted(set(values))
    if len(found) > 2 and found[-1] - found[0] == len(found) - 1:
        return f"{found[0]} to {found[-1]}"
    more = f" and {len(found) - MOST_SEEDS} more" if len(found) > MOST_SEEDS else ""
    return ", ".join(map(str, found[:MOST_SEEDS])) + more


def shown(directory: Path, listed: Sequence[Member], found: Sequence[MemberProgress]) -> int | None:
    """The member whose plan and workers stand for all: the first of those that train, else of all, that has any."""
    training = [k for k, each in enumerate(found) if each.status == "running"]
    for place in [*training, *range(len(listed))][:MOST_LOOKED_AT]:
        member = directory / listed[place].directory
        if any(run_directory.exists(member, name) for name in (plan_file.FILE, usage_file.FILE)):
            return place
    return None


def _stacked(directory: Path, listed: Sequence[Member]) -> dict[int, dict[str, Any]]:
    """By number: the newest record of each member that is recorded in a stack."""
    found: dict[int, dict[str, Any]] = {}
    with contextlib.suppress(*UNREADABLE):
        for place, numbers in enumerate(stacks.read(directory, len(listed))):
            name = stacks.name_of(place)
            line = newest(directory, f"{name}/{stack_logs.RETURNS}", TAIL_BYTES)
            of_all = newest(directory, f"{name}/metrics.jsonl") if line else {}
            speed = number(of_all.get("steps_per_second"))
            members, returns = line.get("members"), line.get("returns")
            if not isinstance(members, list) or not isinstance(returns, list) or not members:
                continue
            shared = {
                "env_steps": line.get("env_steps"), "wall_seconds": of_all.get("wall_seconds"),
                "steps_per_second": None if speed is None else speed / len(members),
            }  # fmt: skip
            for member, value in zip(members, returns, strict=False):
                if member in numbers:
                    found[member] = {**shared, RETURN: value}
    return found
