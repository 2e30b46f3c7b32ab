"""How many members memory holds: those of one program by the compiler's estimate, processes by their arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from runnel.execution.building import BuiltRun
from runnel.planning.machine import Machine
from runnel.planning.placed import human_bytes
from runnel.runtime.single_process.cohort import CohortProgram
from runnel.system.limits import free_host_memory, free_memory

MEMORY_SHARE: Final = 0.9
"""The share of free memory that members may fill."""


def that_fit(program: CohortProgram, members: int, parallel_calls: int, devices: Sequence[Any]) -> int:
    """The number of members that fit into memory, by the compiler's estimate of the program's size; 0 if not even one
    does. The program is compiled for the number that is returned, and it is that size which fits."""
    free, fit = free_memory(devices[0]) * MEMORY_SHARE, members
    while (needed := program.bytes(fit, parallel_calls)) > free:
        if fit == 1:
            return 0
        fit = max(1, min(fit - 1, int(fit * free / needed)))
    return fit


def shortage(program: CohortProgram, devices: Sequence[Any]) -> str:
    """Says that not even one member fits: the estimate may be wrong, or memory may become free, so it is tried."""
    device = devices[0]
    return (
        f"found {human_bytes(free_memory(device))} of free memory on {device.platform}:{device.id}, of which "
        f"{MEMORY_SHARE:.0%} may be used; expected {human_bytes(program.bytes(1))}, which one member needs by the "
        "compiler's estimate; it is tried all the same: use a smaller network, a shorter unroll, fewer environments or "
        "a replay of less capacity if it fails"
    )


def side_by_side(built: BuiltRun, machine: Machine, members: int) -> tuple[int, str]:
    """The number of processes of members that this machine holds at a time, and what decides it.

    One if a run uses a GPU. Otherwise as many as there are cores for, or as the free memory holds, by the learners'
    states, unrolls and replays of each.
    """
    plan, each, free = built.plan, built.graph.bytes, free_host_memory()
    if not plan.on_cpus:
        return 1, "one member at a time, since each may use every GPU of this machine"
    cores = max(1, min(members, machine.cpus // max(1, plan.workers)))
    held = int(free * MEMORY_SHARE / max(1, each))
    if held >= cores:
        return cores, f"{cores} members at a time"
    memory = f"{human_bytes(free)} of memory are free, and the arrays of each need {human_bytes(each)}"
    return max(1, held), f"{max(1, held)} of {cores} members at a time: {memory}"
