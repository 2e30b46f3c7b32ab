"""Games between two policies of a pool, played beside training: results of policies that do not change meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final

import jax
import numpy as np

from runnel.algorithms.opponent_pool import OpponentPool
from runnel.execution.building import BuiltRun, fixed_envs
from runnel.execution.snapshots.evaluators import random_numbers_kept
from runnel.payoffs import GameResult
from runnel.population import random_numbers
from runnel.runtime.single_process.evaluation import Evaluator, make_evaluator, quotas
from runnel.types import PyTree

STREAM: Final = 1
"""Of the run's random numbers: those of these games."""

BEAT_S: Final = 0.5
"""How often `beat` is called while games are played."""


class PoolGames:
    """Plays the same number of games between any two policies, which act as in training."""

    def __init__(self, built: BuiltRun, group: str, pool: OpponentPool, seed: int):
        self._built, self._group, self._pool = built, group, pool
        self._seed = int(random_numbers(seed, 0, STREAM).integers(2**31))
        self._evaluator: Evaluator | None = None  # made for the first game; it is compiled once

    @property
    def played(self) -> bool:
        """Whether games are played: in symmetric games with one learner, unless the matchmaker wants none."""
        two = set(self._built.graph.spec.groups) == {self._group, self._pool.learner}
        return bool(self._pool.matchmaker.games and two and not self._pool.role)

    def play(
        self, player: str, own: PyTree, opponent: str, other: PyTree, beat: Callable[[], None] = lambda: None
    ) -> GameResult | None:
        """Plays `player` with the parameters `own`, on the pool's seats, against `opponent` on the learner's; None if
        no game was finished. `beat` is called now and then."""
        beaten_at = time.monotonic()

        def on_step(steps: int) -> None:
            nonlocal beaten_at
            if time.monotonic() >= beaten_at + BEAT_S:
                beat()
                beaten_at = time.monotonic()

        with random_numbers_kept():
            returns = self._returns(own, other, on_step)
        if not len(returns):
            return None
        won, lost = float((returns > 0).sum()), float((returns < 0).sum())
        return GameResult(player, opponent, won, len(returns) - won - lost, lost, float(returns.sum()))

    def _returns(self, own: PyTree, other: PyTree, on_step: Callable[[int], None]) -> np.ndarray:
        if self._evaluator is None:
            most = fixed_envs(self._built.environment)
            quota = dict(enumerate(quotas(self._pool.matchmaker.games, most)))
            graph, environment = self._built.graph, self._built.environment
            self._evaluator = make_evaluator(graph, environment, self._seed, quota, explore=True)
        places = self._pool.places
        state = self._pool.filled([own] * places, [1.0] * places, [0] * places)
        params = jax.device_put({self._group: state.params, self._pool.learner: other})
        returns = self._evaluator.play(params, on_step).returns[self._group]
        return returns[np.isfinite(returns)]

    def forget(self) -> None:
        """Closes environments that failed; the next game has new ones."""
        with contextlib.suppress(Exception, SystemExit):
            self.close()

    def close(self) -> None:
        evaluator, self._evaluator = self._evaluator, None
        if evaluator is not None:
            evaluator.close()
