"""A worker that steps host environments and does nothing else. NumPy only: it never imports JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from runnel.environment import HostVector
from runnel.planning.schemas import GroupTypes
from runnel.runtime.programs.versions import Leads
from runnel.runtime.recovery.block_checkpoint import (
    BlockStart,
    entry,
    load_host,
    open_journal,
    rejoin,
    report_cut_episodes,
    save_host,
)
from runnel.runtime.recovery.journal import Arrays, BlockMemory
from runnel.runtime.workers.lanes import RemotePolicyLane, RemoteRolloutLane
from runnel.runtime.workers.player import BlockState, Player
from runnel.runtime.workers.ports import InPort, OutPort, WorkerContext
from runnel.runtime.workers.unroll_gate import UnrollGate
from runnel.runtime.workers.worker_loop import Worker, listen, run
from runnel.transport.parameter_store import StoreReader


class EnvWorker(Worker):
    """Steps blocks whose actions other workers choose. A turn is one unroll of every block.

    Its parameters are one list because it cannot take them from a graph, as other workers do: a graph needs JAX.
    """

    def __init__(
        self,
        context: WorkerContext,
        types: Mapping[str, GroupTypes],
        rolled: Sequence[str],  # the groups whose trajectories are put together here
        unroll: int,
        discounts: dict[str, float | None],
        blocks: Mapping[int, range],
        ports: Callable[[str, str, int], list[Any]],  # of a kind, a group and a block
        stores: Mapping[str, StoreReader],  # by group
        open_vector: Callable[[Sequence[int]], HostVector],
        early: bool,  # a block may ask for its first actions while its neighbours still step
        leads: Leads,
        start: BlockStart,
        memory: BlockMemory,
    ):
        self.context, self.unroll = context, unroll
        self._steps = unroll * sum(len(envs) for envs in blocks.values())
        gate = UnrollGate(context, stores, leads, early=early)
        self.blocks = {
            number: self._block(number, envs, types, rolled, discounts, ports, open_vector)
            for number, envs in blocks.items()
        }
        for number, block in self.blocks.items():
            journal = open_journal(block, memory, partial(entry, block), new=not start.rejoins)
            if start.rejoins:
                rejoin(block, number, start.suspect, partial(load_host, number, block))
            else:
                load_host(number, block, start.saved)
                journal.write(block.entry())
        self.player = Player(
            list(self.blocks.values()), gate.wait_for, gate.early_stamp, context.leave_boundary,
            asks_count=early and bool(rolled), beat=context.bell.beat_at, report_event=context.report_event,
        )  # fmt: skip
        report_cut_episodes(self.blocks.values(), context.report_event)

    def _block(
        self, number: int, envs: range, types: Mapping[str, GroupTypes], rolled: Sequence[str],
        discounts: dict[str, float | None], ports: Callable[[str, str, int], list[Any]],
        open_vector: Callable[[Sequence[int]], HostVector],
    ) -> BlockState:  # fmt: skip
        lanes: dict[str, Any] = {}
        for group, own in types.items():
            request: OutPort = ports("request", group, number)[0]
            reply: InPort = ports("reply", group, number)[0]
            if group in rolled:
                outs = ports("unroll", group, number)
                lanes[group] = RemotePolicyLane(own, group, self.unroll, len(envs), outs, request, reply)
            else:
                lanes[group] = RemoteRolloutLane(own, group, self.unroll, len(envs), request, reply)
        return BlockState(open_vector(envs), envs, self.unroll, lanes, None, discounts)

    def boundary(self) -> None:
        listen(self.context, self.player.between_unrolls)

    def turn(self) -> None:
        self.player.unroll()
        self.context.counts["env_steps"] += self._steps

    def run(self) -> None:
        """Runs until the supervisor stops it."""
        run(self.context, self, compiles=False)

    def episode_sums(self) -> dict[str, tuple[float, int]]:
        return self.player.episode_sums()

    def save(self) -> Arrays:
        saved: Arrays = {}
        for number, block in self.blocks.items():
            saved |= save_host(number, block)
        return saved
