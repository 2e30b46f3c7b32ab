"""The unrolls of an iteration as a trainer takes them: from streams, or of environments that are stepped here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from runnel.runtime.programs import row_packing
from runnel.runtime.programs.versions import Acted
from runnel.runtime.workers.actor import Actor
from runnel.runtime.workers.assembly import Assignment
from runnel.runtime.workers.batch_collector import Collected
from runnel.runtime.workers.compiled_player import CompiledPlayer
from runnel.runtime.workers.inference_worker import InferenceWorker
from runnel.runtime.workers.player import Player
from runnel.runtime.workers.stream_headers import UnrollHeader
from runnel.runtime.workers.trainer import TrainerBatch
from runnel.runtime.workers.trainer_assembly import make_unroll_collector
from runnel.transport.stream import schema_of


class HeldSlots:
    """Slots of streams that were learnt from. They are released once what was learnt is published: a worker that finds
    room for an unroll then begins it with those parameters."""

    def __init__(self) -> None:
        self._releases: list[Callable[[], None]] = []

    def hold(self, release: Callable[[], None]) -> None:
        self._releases.append(release)

    def release(self) -> None:
        for release in self._releases:
            release()
        self._releases.clear()


class UnrollBatches:
    """Makes the batch of each iteration."""

    def __init__(
        self, a: Assignment, actor: Actor | None, inference: InferenceWorker | None, held: HeldSlots, copies: bool
    ):
        self.a, self.actor, self.inference, self.held = a, actor, inference, held
        self.copies = copies  # what goes to the device is copied; else it reads slots in place
        self.collector, self._blocks = make_unroll_collector(a)

    def ready(self, iteration: int) -> bool:
        """Whether all unrolls of an iteration have arrived from other workers."""
        return self.collector is not None and self.collector.ready(iteration)

    def make(self, iteration: int, versions: Mapping[str, int]) -> TrainerBatch | None:
        """The batch of an iteration; waits for it. `versions`: those that act here, by group."""
        if self.collector is not None:
            return self._collected(self.collector.collect(iteration))
        if self.actor is not None and isinstance(self.actor.player, CompiledPlayer):
            acted = {group: Acted.of([versions[group]]) for group in self.a.consumed_groups}
            return TrainerBatch(None, np.zeros(0), {}, lambda: None, acted, self.actor.player.unrolled())
        return self._stepped_here(versions)

    def _collected(self, collected: list[Collected]) -> TrainerBatch:
        collector, groups = self.collector, self.a.consumed_groups
        assert collector is not None
        blocks = {g: [each.messages[k].arrays for each in collected] for k, g in enumerate(groups)}
        starts = np.asarray([self._blocks[each.source].start for each in collected], np.int32)
        begun = {
            g: [UnrollHeader.unpack(each.messages[k].header).version for each in collected]
            for k, g in enumerate(groups)
        }
        versions = {group: np.asarray(updates, np.int32) for group, updates in begun.items()}
        acted = {group: Acted.of(updates) for group, updates in begun.items()}

        def release() -> None:
            if self.a.learns:
                self.held.hold(lambda: collector.release(collected))
            else:
                collector.release(collected)

        oldest = min(each.iteration for each in collected)
        return TrainerBatch(
            self._on_device(blocks), starts, versions, release, acted, begun=oldest,
            give_back=lambda: collector.give_back(collected),
        )  # fmt: skip

    def _stepped_here(self, now: Mapping[str, int]) -> TrainerBatch | None:
        """The batch of the environments that this worker steps or acts for."""
        kept: dict[str, list[list[Any]]] = {}
        starts: list[int] = []
        if self.actor is not None and isinstance(self.actor.player, Player):
            blocks = self.actor.player.blocks
            kept = {g: [block.kept[g].slot.arrays for block in blocks] for g in self.a.consumed_groups}
            starts = [block.envs.start for block in blocks]
        for server in self.inference.servers if self.inference is not None else ():
            for client in server.clients:
                if client.kept is not None and client.group in self.a.consumed_groups:
                    kept.setdefault(client.group, []).append(client.kept.slot.arrays)
            starts = [client.block.start for client in server.clients]
        if not kept:
            return None
        versions = {group: np.full(len(starts), now[group], np.int32) for group in kept}
        acted = {group: Acted.of(updates) for group, updates in versions.items()}
        return TrainerBatch(self._on_device(kept), np.asarray(starts, np.int32), versions, lambda: None, acted)

    def _on_device(self, blocks: dict[str, list[list[Any]]]) -> dict[str, list[Any]]:
        """Unrolls where the device can read them: copies, unless it is this processor."""
        if not self.copies:
            return blocks
        schemas = {group: schema_of(own[0]) for group, own in blocks.items()}
        whole = {group: [row_packing.whole(arrays, schemas[group]) for arrays in own] for group, own in blocks.items()}
        return jax.block_until_ready(jax.device_put(whole))
