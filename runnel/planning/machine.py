"""Machines: their CPUs, devices and addresses. Data, and the detection of this machine."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runnel.errors import UserError
from runnel.system.platform import cpus

HERE = "here"
"""The name of a machine if there is no other."""

DRIVER = "the driver"
"""Stands for the driver's own machine beside those of a cluster, none of which has a name with a space."""


@dataclass(frozen=True)
class Machine:
    """A machine that workers can run on."""

    cpus: int
    devices: tuple[str, ...]  # accelerators, or the CPU where there are none: "cpu:0", "cuda:1"
    name: str = HERE
    address: str = "127.0.0.1"  # where other machines reach it

    @classmethod
    def here(cls, name: str = HERE, address: str = "127.0.0.1") -> Machine:
        """This machine. GPUs are counted without starting on them: that would take their memory from the workers."""
        import jax

        platforms = jax.config.values.get("jax_platforms") or ""
        found = gpus(platforms)
        if found and not _started():
            return cls(cpus(), tuple(f"cuda:{i}" for i in range(found)), name, address)
        try:
            devices = jax.devices()
        except (RuntimeError, AssertionError) as problem:  # JAX asserts where it has nothing for the platform asked for
            asked = f" of the platforms '{platforms}', which JAX_PLATFORMS asks for" if platforms else ""
            reason = (str(problem).strip().splitlines() or ["none is known to this jaxlib"])[0]
            raise UserError(
                f"found no device{asked}: {reason}; `runnel doctor` looks for what is wrong", page="command-line#doctor"
            ) from problem
        return cls(cpus(), tuple(f"{device.platform}:{device.id}" for device in devices), name, address)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Machine:
        """The machine that `dataclasses.asdict` turned into this data."""
        return cls(**{**data, "devices": tuple(data["devices"])})

    @property
    def accelerators(self) -> int:
        return sum(not device.startswith("cpu") for device in self.devices)


def in_order(machines: Machine | Sequence[Machine]) -> tuple[Machine, ...]:
    """Machines in the order in which plans name them: that of the driver, which comes first, and the others by name.

    Thus the plan does not depend on the order in which the other machines are given.
    """
    given = (machines,) if isinstance(machines, Machine) else tuple(machines)
    names = [machine.name for machine in given]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not given:
        found = f"several called {', '.join(twice)}" if twice else "none"
        raise UserError(f"machines: found {found}, expected one or more, each with a name of its own")
    return (given[0], *sorted(given[1:], key=lambda machine: machine.name))


def _started() -> bool:
    """Whether JAX has started on its devices already."""
    from jax._src import xla_bridge  # there is no public way to ask

    return xla_bridge.backends_are_initialized()


def gpus(platforms: str) -> int:
    """How many NVIDIA GPUs JAX would find with JAX_PLATFORMS set to `platforms`. Does not import JAX."""
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin")
    wanted = platforms.split(",")[0] in ("", "cuda", "gpu")
    if not wanted or not any(importlib.util.find_spec(name) for name in plugins):
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() and part.strip() != "-1"])
    return len([name for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdigit()])
