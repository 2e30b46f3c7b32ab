"""The load of a run's workers and streams, and its bottleneck, for the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

from runnel.environment import is_traceable
from runnel.execution.building import BuiltRun
from runnel.execution.run_stats import RunCounters
from runnel.launch.rejections import total
from runnel.planning.plan import Machine
from runnel.reporting.bottleneck import FragmentSetting, RunSetting, bottleneck
from runnel.runtime.single_process.program import Program
from runnel.runtime.usage import UsageReport
from runnel.system.platform import has_worker_processes

if TYPE_CHECKING:
    from runnel.execution.session.session_state import SessionState


def outcome(
    program: Program | None, built: BuiltRun, machines: Sequence[Machine], counters: RunCounters, worked: bool,
    traffic: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Workers, streams, the network and the bottleneck. `worked`: whether there was an update; before it the run was
    starting."""
    report = program.report() if program is not None else UsageReport()
    if built.plan.workers == 1 and program is not None:
        (worker,) = report.workers
        report = UsageReport((replace(worker, env_steps=counters.env_steps, updates=counters.updates),))
    measured = worked and report.workers
    sentence = bottleneck(report, setting_of(built, machines), counters.restart_reasons) if measured else None
    return {
        "workers": [worker.json() for worker in report.workers],
        "streams": [stream.json() for stream in report.streams],
        "bottleneck": sentence,
        **({"machines": [asdict(machine) for machine in machines]} if len(machines) > 1 else {}),
        **({"network": _network(traffic, built)} if traffic else {}),
    }


def usage_now(lately: UsageReport, state: SessionState) -> dict[str, Any]:
    """The content of usage.json: workers and streams over the last seconds, and the bottleneck."""
    setting = setting_of(state.built, state.pool.machines)
    known = lately.workers and all(worker.busy is not None for worker in lately.workers)
    return {
        "env_steps": state.counters.env_steps,
        "workers": [worker.json() for worker in lately.workers],
        "streams": [stream.json() for stream in lately.streams],
        "bottleneck": bottleneck(lately, setting, state.counters.restart_reasons) if known else None,
    }


def devices(machines: Sequence[Machine]) -> dict[str, Any]:
    """The machines and devices of a run, for provenance.json."""
    return {"machines": [asdict(machine) for machine in machines]}


def _network(traffic: Mapping[str, Any], built: BuiltRun) -> dict[str, Any]:
    """The traffic between machines, messages dropped because they are not of this run, and rejected connections."""
    carried: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    sent = saved = 0
    for tally in traffic.values():
        sent += tally["wire"].get("sent_bytes", 0)
        saved += sum(counts.get("saved_bytes", 0) for counts in tally["carried"].values())
        carried.update({kind: counts.get("sent_bytes", 0) for kind, counts in tally["carried"].items()})
        dropped.update(tally["dropped"])
    return {
        "sent_bytes": sent,
        "saved_bytes": saved,  # by compression
        "by_kind": dict(carried),
        "dropped": dict(dropped),
        "rejected": total({name: tally["rejected"] for name, tally in traffic.items()}),
        "predicted_bytes_per_step": built.plan.across.bytes_per_step if built.plan.across is not None else 0.0,
    }


def setting_of(built: BuiltRun, machines: Sequence[Machine]) -> RunSetting:
    """The settings of a run that `bottleneck` may suggest to change."""
    plan, graph = built.plan, built.graph
    known = ("actors", "inference", "learners", "env_splits")
    given: Any = built.distribution
    flags = {each.name: getattr(given, each.name) for each in fields(given) if each.name in known}
    if "env_splits" in flags:
        flags["env_splits"] = plan.stepping.env_splits  # as far as the environments could be divided
    return RunSetting(
        flags=flags,
        fragments=tuple(
            FragmentSetting(each.name, each.replicas, frozenset(graph.nodes[node].kind for node in each.nodes))
            for each in plan.fragments
        ),
        envs=plan.envs,
        # Where no workers can be started, nothing is gained by further CPUs.
        cpus=sum(machine.cpus for machine in machines) if has_worker_processes() else 1,
        column_blocks=graph.column_blocks(),
        gpus=sum(not device.startswith("cpu") for machine in machines for device in machine.devices),
        free=all(plan.limit_iterations.values()),
        mixed=plan.mixed,
        max_staleness=built.max_staleness,
        host=not is_traceable(built.environment),
    )
