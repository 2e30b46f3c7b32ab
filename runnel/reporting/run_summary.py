"""What is printed when a run, or several, have ended: how it went, where it is, how to go on."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runnel.errors import printable
from runnel.ops.episode_window import WINDOW
from runnel.planning.placed import plural
from runnel.reporting import report
from runnel.reporting.bottleneck import label
from runnel.reporting.number_words import duration, rate, short, times_each
from runnel.reporting.status_lines import environment_metrics
from runnel.runtime.usage import fragment_of


def summary(result: Mapping[str, Any], run_dir: Path | str | None = None) -> str:
    """What is printed when a run ends: how it went, where it is, how to go on."""
    run_dir = run_dir or result.get("run_dir")
    head = (
        f"{result.get('status')}: {result.get('algorithm')} on {result.get('environment')}, "
        f"{result.get('distribution')}, seed {result.get('seed')}"
    )
    parts = (_returns(result, run_dir), _pace(result), _workers(result), _failures(result), _to_go_on(result, run_dir))
    return printable("\n".join([head, *(line for lines in parts for line in lines)]))


def _returns(result: Mapping[str, Any], run_dir: Path | str | None) -> Iterator[str]:
    """What was reached in training, and by the best evaluation."""
    mean_return = result.get("mean_return")
    if mean_return is None:
        yield "  return      no episode ended"
    else:
        episodes = min(WINDOW, result.get("episodes") or WINDOW)
        over = "the last episode" if episodes == 1 else f"the last {episodes} episodes"
        yield f"  return      {short(mean_return)}, mean of {over}"
        yield from (f"    {group:<10}{short(value)}" for group, value in result.get("group_returns", {}).items())
        reported = environment_metrics(result.get("env") or {})
        if reported:
            yield "  reported    " + ", ".join(reported)
    best = result.get("best")
    if isinstance(best, Mapping) and run_dir is not None:
        yield from _best_line(best, run_dir)


def _pace(result: Mapping[str, Any]) -> Iterator[str]:
    """Steps, speed and staleness."""
    yield (
        f"  steps       {result.get('env_steps') or 0:,} in {duration(result.get('wall_seconds') or 0)}, "
        f"{plural(result.get('updates') or 0, 'update')}"
    )
    if result.get("steps_per_second"):
        started = result.get("startup_seconds")
        after = "" if started is None else f" after {duration(started)} to the first update"
        yield f"  speed       {rate(result['steps_per_second'])} steps/s{after}"
    if result.get("staleness_max"):
        yield f"  staleness   {short(result['staleness_mean'])}, highest {result['staleness_max']}"


def _workers(result: Mapping[str, Any]) -> Iterator[str]:
    """How busy they were, and on which machines."""
    workers = result.get("workers") or []
    busy = _busy(workers)
    if len(workers) > 1 and busy:
        yield f"  busy        {busy}"
    machines: dict[str, Counter[str]] = {}
    for worker in workers:
        if worker.get("host"):
            machines.setdefault(worker["host"], Counter())[fragment_of(worker)] += 1
    if machines:
        placed = (f"{name}: {times_each(fragments)}" for name, fragments in machines.items())
        yield "  machines    " + "; ".join(placed)


def _failures(result: Mapping[str, Any]) -> Iterator[str]:
    """What went wrong, whether or not the run survived it."""
    if result.get("cut_episodes"):
        yield f"  cut         {plural(result['cut_episodes'], 'episode')} cut short"
    if result.get("restarts"):
        reasons = result.get("restart_reasons") or {}
        often = sorted(reasons, key=lambda reason: -reasons[reason])
        why = "; ".join(f"{reason} x{reasons[reason]}" if reasons[reason] > 1 else reason for reason in often[:3])
        more = f"; and {len(often) - 3} more" if len(often) > 3 else ""
        yield f"  restarts    {result['restarts']}" + (f": {why}{more}" if why else "")
    if result.get("environment_failures"):
        failures = plural(result["environment_failures"], "environment failure")
        yield f"  failures    {failures}; see events.jsonl"
    if result.get("skipped_updates"):
        yield f"  refused     {plural(result['skipped_updates'], 'update')} that were not finite"
    if result.get("reason"):
        yield f"  reason      {result['reason']}"


def _to_go_on(result: Mapping[str, Any], run_dir: Path | str | None) -> Iterator[str]:
    """What would make it faster, where it is, and how it is resumed."""
    status = result.get("status")
    if result.get("bottleneck"):
        yield f"  bottleneck  {result['bottleneck']}"
    elif len(result.get("workers") or []) > 1 and status == "finished":
        yield "  bottleneck  not known: the run was too short to see how long workers wait"
    if run_dir is None:
        return
    yield f"  run         {run_dir}"
    yield from to_look_at(run_dir)
    again = "train again with another --run-dir, or remove this directory"
    if status == "interrupted" and not result.get("env_steps"):
        yield f"              stopped before its first update, so there is nothing to resume: {again}"
    elif status == "interrupted" and not result.get("resumable", True):
        yield f"              there is no checkpoint to resume from: {again}"
    elif status == "interrupted":
        yield f"  resume by   runnel resume {shlex.quote(str(run_dir))}{result.get('resume_flags', '')}"


def to_look_at(run_dir: Path | str) -> Iterator[str]:
    """The report of a run or of several, where it was written, and the command that shows them in a browser."""
    path = Path(run_dir, report.FILE)
    if path.is_file():
        yield f"  report      {path}"
    yield f"  watch by    runnel dash {shlex.quote(str(run_dir))}"


def members_summary(result: Mapping[str, Any], run_dir: Path | str) -> str:
    """What is printed when several runs have ended."""
    members, ended = result["members"], result["finished"]
    of_all = "all" if ended == members else f"{ended} of {members}"
    lines = [
        f"{result['status']}: {result['algorithm']} on {result['environment']}, {result['distribution']}, "
        f"{plural(members, 'member')}"
    ]
    if result.get("iqm_return") is None:
        lines.append("  return      no episode ended")
    else:
        low, high = result["iqm_interval"]
        lines.append(
            f"  return      {short(result['iqm_return'])} ({short(low)} to {short(high)}, 95%), interquartile mean"
        )
        lines.append(
            f"  spread      median {short(result['median_return'])}, from {short(result['min_return'])} to "
            f"{short(result['max_return'])}"
        )
    lines.append(f"  finished    {of_all}")
    if result.get("without_return"):
        lines.append(f"  left out    {plural(result['without_return'], 'member')} without a return")
    lines.append(f"  steps       {result['env_steps']:,} in {duration(result['wall_seconds'])}")
    for run in result["runs"]:
        if run.get("reason"):
            lines.append(f"  {run['directory']}   {run['reason']}")
    lines += [f"  runs        {run_dir}", *to_look_at(run_dir)]
    if ended < members:
        lines.append(f"  resume by   runnel resume {shlex.quote(str(run_dir))}")
    return printable("\n".join(lines))


def _best_line(best: Mapping[str, Any], run_dir: Path | str) -> list[str]:
    """The best evaluation of a result; nothing where a file holds something else in its place."""
    found, at, score = (best.get(name) for name in ("mean_return", "env_steps", "score"))
    if not isinstance(found, int | float) or not isinstance(at, int):
        return []
    by = f", score {short(score)}," if isinstance(score, int | float) and score != found else ""
    return [f"  evaluated   {short(found)}{by} at {at:,} steps: {run_dir}@best"]


def _busy(workers: Sequence[Mapping[str, Any]]) -> str:
    """By fragment; workers without a report are left out, as in a run of less than a second."""
    fragments: dict[str, list[float]] = {}
    for worker in workers:
        if worker["busy"] is not None:
            fragments.setdefault(fragment_of(worker), []).append(worker["busy"])
    return ", ".join(f"{label(name, len(busy))} {sum(busy) / len(busy):.0%}" for name, busy in fragments.items())
