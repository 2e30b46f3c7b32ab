"""Saves and loads one block of host environments: in a checkpoint, and in its journal. NumPy only.

Code that needs JAX is in `worker_checkpoint.py`: workers of host environments never import it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from runnel.environment import Episode
from runnel.recording.events import ReportEvent
from runnel.runtime.programs.episode_counter import EpisodeCounter
from runnel.runtime.recovery import action_history
from runnel.runtime.recovery import checkpoint_names as names
from runnel.runtime.recovery.journal import Arrays, BlockMemory, Journal

if TYPE_CHECKING:
    from runnel.runtime.workers.player import BlockState


def save_counter(number: int, counter: EpisodeCounter) -> Arrays:
    saved: Arrays = {}
    for group in counter.agents:
        saved[names.block(number, names.LENGTH)] = counter.length
        saved[names.block(number, names.reward(group))] = counter.reward[group]
        saved[names.block(number, names.discounted(group))] = counter.discounted[group]
    return saved


def load_counter(number: int, counter: EpisodeCounter, saved: Arrays) -> None:
    for group in counter.agents:
        counter.length = saved[names.block(number, names.LENGTH)].copy()
        counter.reward[group] = saved[names.block(number, names.reward(group))].copy()
        counter.discounted[group] = saved[names.block(number, names.discounted(group))].copy()


def save_host(number: int, block: BlockState) -> Arrays:
    """The counters of a block, and the actions of its episodes in progress."""
    episodes, cut = block.history.episodes(block.vector.episode_numbers().tolist())
    return save_counter(number, block.counter) | _host_arrays(number, episodes, cut)


def _host_arrays(number: int, episodes: Sequence[Episode], cut: np.ndarray) -> Arrays:
    packed = {**action_history.pack(episodes), "cut": np.asarray(cut)}
    return {names.block(number, names.host(name)): value for name, value in packed.items()}


def load_host(number: int, block: BlockState, saved: Arrays) -> None:
    """Continues from the saved state; from the beginning if nothing was saved."""
    if not saved:
        block.reset()
        return
    load_counter(number, block.counter, saved)
    own = {name: array for name, array in saved.items() if names.block_number(name) == number}
    packed = {host: array for name, array in own.items() if (host := names.host_name(name)) is not None}
    cut = packed.pop("cut")
    block.restore(action_history.unpack(packed), cut, int(saved[names.ITERATION]))


# In a journal


class BlockStart(NamedTuple):
    """The initial state of a worker."""

    saved: Arrays = {}  # noqa: RUF012  (never changed) its part of a checkpoint, or nothing
    rejoins: bool = False  # it replaces a worker that died, and finds its state in that worker's journal
    suspect: bool = False  # the worker before it crashed or hung, and this one may do so again
    initial: Arrays = {}  # noqa: RUF012  (never changed) states that learners begin with instead of fresh ones


def report_cut_episodes(blocks: Iterable[BlockState], report: ReportEvent) -> None:
    """Reports episodes that could not be replayed."""
    cut = sum(block.cut for block in blocks)
    if cut:
        report("cut", reason=f"{cut} episodes could not be replayed", action="new episodes began", episodes=cut)


def entry(block: BlockState) -> Arrays:
    """A journal's entry: a block's part of a checkpoint, without the actions, which the journal stores separately."""
    kept: Arrays = {
        names.UNROLLS: np.asarray(block.unrolls),
        "first": block.first[-1],
        **save_counter(0, block.counter),
    }
    if block.replays:
        kept |= {
            "numbers": block.vector.episode_numbers(),
            "began": block.history.began,
            "kept_from": np.asarray(block.history.kept_from),
        }
    return kept


def open_journal(block: BlockState, memory: BlockMemory, kept: Callable[[], Arrays], new: bool) -> Journal:
    """Opens a block's journal, which is updated from now on. If the block is `new`, old content is dropped."""
    state = {name: (array.shape, array.dtype) for name, array in kept().items()}
    acted = {group: (lane.actions.shape, lane.actions.dtype) for group, lane in block.served.items()}
    journal = Journal(memory, state, acted, block.rows())
    if new:
        journal.clear()
    block.keep_in(journal, kept)
    return journal


def rejoin(block: BlockState, number: int, suspect: bool, load: Callable[[Arrays], None]) -> None:
    """Replaces a worker that died: rebuilds its block from its journal. `load` restores a block from arrays.

    If that worker crashed or hung (`suspect`), the journal records every environment before it is stepped, until an
    unroll is complete. If a worker dies then, the recorded environment caused it: its episode is truncated.
    """
    journal, vector = block.journal, block.vector
    assert journal is not None
    culprit = journal.watched() if suspect else None
    if culprit is not None:
        journal.condemn(*culprit, journal.replaying)

    def watch(row: int) -> None:
        journal.watch(row, int(vector.episode_numbers()[row]) if row >= 0 else -1)

    journal.watch(-1)
    if suspect and block.replays:
        vector.watch = watch
    journal.replaying = True
    load(_resumed(block, number))
    block.redo()
    journal.replaying = False
    for row, episode, replayed in journal.condemned():
        if not replayed:
            vector.condemn(row, episode, "it brought its worker down, twice at the same place")


def _resumed(block: BlockState, number: int) -> Arrays:
    """The block's journal as arrays of a checkpoint, without the episodes that must not be replayed."""
    assert block.journal is not None
    found = block.journal.resume_entry(lambda unroll: all(lane.has(unroll) for lane in block.kept.values()))
    unrolls = int(found[names.UNROLLS])
    saved = {names.in_block(name, number): array for name, array in found.items()}
    saved[names.ITERATION] = np.asarray(unrolls)
    if block.replays:
        block.history.resume_at(unrolls * block.steps, found["began"], int(found["kept_from"]))
        episodes, cut = block.history.episodes(found["numbers"].tolist())
        for row, episode, replayed in block.journal.condemned():
            if replayed and not cut[row] and episodes[row].number == episode:
                cut[row] = True
                none = {group: actions[:0] for group, actions in episodes[row].actions.items()}
                episodes[row] = Episode(episode + 1, none)
        block.cut += int(cut.sum())
        saved |= _host_arrays(number, episodes, cut)
    return saved
