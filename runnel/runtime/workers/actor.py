"""An actor: steps its environments and acts for them, or requests actions elsewhere for some of its groups."""

from __future__ import annotations

from functools import partial

from runnel.runtime.programs.acting import ParameterSource
from runnel.runtime.recovery import worker_checkpoint
from runnel.runtime.recovery.journal import Arrays
from runnel.runtime.workers.assembly import Assignment, make_blocks, make_compiled_player
from runnel.runtime.workers.compiled_player import CompiledPlayer
from runnel.runtime.workers.player import Player
from runnel.runtime.workers.unroll_gate import UnrollGate
from runnel.runtime.workers.worker_loop import Worker, listen


class Actor(Worker):
    """A turn is one unroll of every block. A trainer that also steps environments has an actor."""

    def __init__(self, a: Assignment, parameters: ParameterSource, gate: UnrollGate):
        self.a, self.context = a, a.context
        self.player: Player | CompiledPlayer = make_compiled_player(a, parameters, gate.wait) or Player(
            make_blocks(a, parameters), gate.wait_for, gate.early_stamp, a.context.leave_boundary,
            asks_count=a.asks_early and bool(a.groups("rollout")),
            compiled=partial(a.context.enter, "working"), beat=a.context.bell.beat_at,
            report_event=a.context.report_event,
        )  # fmt: skip
        self._steps = a.graph.unroll * sum(len(place.envs) for place in a.blocks)

    @property
    def unrolls(self) -> int:
        """How many unrolls all blocks have completed."""
        return min(block.unrolls for block in self.player.blocks)

    def boundary(self) -> None:
        listen(self.context, self.player.between_unrolls)

    def turn(self) -> None:
        self.player.unroll()
        self.context.counts["env_steps"] += self._steps

    def episode_sums(self) -> dict[str, tuple[float, int]]:
        return self.player.episode_sums()

    def save(self) -> Arrays:
        if isinstance(self.player, CompiledPlayer):
            return self.player.save()
        saved: Arrays = {}
        for block, place in zip(self.player.blocks, self.a.blocks, strict=True):
            saved |= worker_checkpoint.save_block(block, place)
        return saved
