"""Several learner processes as one program: batches are sharded over all their devices, parameters are on each."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from runnel.types import PER_COLUMN, PyTree, Trajectory

START_S: Final = 240
"""How long learners wait for the last of them to start: less than a worker may take for that, so that the reason is
named. One that has died does not keep them waiting: all are started again."""


class Spmd:
    """The mesh of all learners' devices, and values spread over it."""

    def __init__(self, devices: int = 1) -> None:
        """`devices` of each process."""
        chosen: dict[int, list[Any]] = {}
        for device in jax.devices():
            chosen.setdefault(device.process_index, []).append(device)
        each = [device for process in sorted(chosen) for device in chosen[process][:devices]]
        self.mesh, self.here = Mesh(np.asarray(each), ("columns",)), devices
        self.whole = NamedSharding(self.mesh, PartitionSpec())

    def everywhere(self, tree: PyTree) -> PyTree:
        """Values that every learner has, as one."""
        return self.placed(tree, jax.tree.map(lambda _: self.whole, tree))

    def placed(self, tree: PyTree, shardings: PyTree) -> PyTree:
        """Values of which every learner knows the whole, each where it is to be."""

        def put(x: Any, sharding: NamedSharding) -> Any:
            here = np.asarray(x)
            return jax.make_array_from_callback(here.shape, sharding, lambda index: here[index])

        return jax.tree.map(put, tree, shardings)

    def columns(self, trajectories: dict[str, Trajectory]) -> dict[str, Trajectory]:
        """This learner's columns as its part of all."""

        def spread(trajectory: Trajectory) -> Trajectory:
            fields = {
                name: self._spread(value, 0 if name in PER_COLUMN else 1)
                for name, value in trajectory._asdict().items()
            }
            return trajectory._replace(**fields)

        return {group: spread(trajectory) for group, trajectory in trajectories.items()}

    def time_major(self, tree: PyTree) -> PyTree:
        """[T, E] of this learner as its part of all."""
        return self._spread(tree, 1)

    def flags(self, mine: bool) -> Any:
        """[devices] one flag of each learner."""
        return self._spread(np.full(self.here, mine), 0)

    def _spread(self, tree: PyTree, axis: int) -> PyTree:
        sharding = NamedSharding(self.mesh, PartitionSpec(*([None] * axis), "columns"))
        return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, np.asarray(x)), tree)


def join(address: str, processes: int, rank: int, devices: int) -> Spmd:
    """Brings this process together with the other learners, `devices` of each; only then may JAX start."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    bind = address if rank == 0 else None
    jax.distributed.initialize(address, processes, rank, initialization_timeout=START_S, coordinator_bind_address=bind)
    spmd = Spmd(devices)
    # gloo connects them at their first collective, and gives up after 30 s; at later ones it waits. So the first is
    # here, where all come at once, and not after each has traced and compiled for as long as that takes.
    jax.block_until_ready(jax.jit(jnp.any)(spmd.flags(False)))
    return spmd
