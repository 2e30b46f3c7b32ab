"""What it takes to go on with a block of host environments, as named arrays. NumPy only: see `parts.py`."""

from __future__ import annotations

import numpy as np

from runnel.runtime import history
from runnel.runtime.counting import Counter
from runnel.runtime.player import Block

Arrays = dict[str, np.ndarray]


def save_counter(number: int, counter: Counter) -> Arrays:
    saved: Arrays = {}
    for group in counter.agents:
        saved[f"block.{number}.length"] = counter.length
        saved[f"block.{number}.reward.{group}"] = counter.reward[group]
        saved[f"block.{number}.discounted.{group}"] = counter.discounted[group]
    return saved


def load_counter(number: int, counter: Counter, saved: Arrays) -> None:
    for group in counter.agents:
        counter.length = saved[f"block.{number}.length"].copy()
        counter.reward[group] = saved[f"block.{number}.reward.{group}"].copy()
        counter.discounted[group] = saved[f"block.{number}.discounted.{group}"].copy()


def save_host(number: int, block: Block) -> Arrays:
    """Counters, and the episodes in progress as the actions that lead to them."""
    episodes, cut = block.history.episodes(block.vector.episode_numbers().tolist())
    packed = {**history.pack(episodes), "cut": np.asarray(cut)}
    return save_counter(number, block.counter) | {
        f"block.{number}.host.{name}": value for name, value in packed.items()
    }


def load_host(number: int, block: Block, saved: Arrays) -> None:
    """Stands where it was saved, or at the beginning."""
    if not saved:
        block.reset()
        return
    load_counter(number, block.counter, saved)
    host = f"block.{number}.host."
    packed = {name.removeprefix(host): array for name, array in saved.items() if name.startswith(host)}
    cut = packed.pop("cut")
    block.restore(history.unpack(packed), cut, int(saved["iteration"]))
