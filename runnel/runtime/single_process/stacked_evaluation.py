"""Plays the episodes of many members at once, with their parameters stacked along a first axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from runnel.runtime.single_process.evaluation import CompiledEvaluator, PlayedEpisodes
from runnel.types import PyTree

ROWS: Final = 4096
"""The largest number of environments that are stepped side by side, which limits the members of one call."""


class StackedEvaluator:
    """The program of one `CompiledEvaluator`, for many members at once."""

    def __init__(self, evaluator: CompiledEvaluator):
        self._evaluator = evaluator
        self._begin = jax.jit(jax.vmap(evaluator.first))
        self._advance = jax.jit(jax.vmap(evaluator.steps), donate_argnums=1)

    def play(
        self, params: Mapping[str, PyTree], seeds: Sequence[int], beat: Callable[[], None] = lambda: None
    ) -> list[PlayedEpisodes]:
        """For each member, the result of `CompiledEvaluator.play` with its parameters and its seed."""
        at_a_time = min(len(seeds), max(1, ROWS // len(self._evaluator.loop.envs)))
        found: list[PlayedEpisodes] = []
        for start in range(0, len(seeds), at_a_time):
            rows = np.arange(start, start + at_a_time) % len(seeds)  # all calls alike: the last one repeats some
            part = jax.tree.map(lambda x, rows=rows: x[rows], params)
            found += self._play(part, np.asarray(seeds, np.uint32)[rows], beat)
        return found[: len(seeds)]

    def _play(self, params: Mapping[str, PyTree], seeds: np.ndarray, beat: Callable[[], None]) -> list[PlayedEpisodes]:
        evaluator = self._evaluator
        wanted = np.array([evaluator.quota[index] for index in evaluator.loop.envs])
        now = self._begin(jnp.asarray(seeds))
        while True:
            now = self._advance(params, now)
            beat()
            if (jax.device_get(now.ended) >= wanted).all():  # [M, E]
                break
        on_host = jax.device_get(now)
        return [evaluator.read(jax.tree.map(lambda x, row=row: x[row], on_host)) for row in range(len(seeds))]
