"""A fragment as a process loop: environments step, `act` answers, and every other node is one compiled update."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from runnel.environment import HostVector
from runnel.runtime import history, host, totals
from runnel.runtime.host import HostUnroller, Unroll
from runnel.runtime.loop import Carry, Loop, Metrics
from runnel.runtime.totals import Progress
from runnel.types import Array, PyTree


class SteppedProgram:
    """The whole loop in one process, on host environments, or on JAX environments unrolled in one call each."""

    def __init__(self, loop: Loop, vector: HostVector | None, seed: int):
        self.loop = loop
        self.carry: Carry = jax.jit(loop.init)(jnp.uint32(seed))
        self.unroller = HostUnroller(loop, vector) if vector is not None else None
        self._unroll_s, self._learn_s = 0.0, 0.0
        self._unroll = jax.jit(loop.unroll, donate_argnums=0)
        self._update = jax.jit(self._learn, donate_argnums=(0, 1))

    def run(self, iterations: int, seconds: float, target: float, stop: Callable[[], bool]) -> Progress:
        """Trains for at most so many iterations, about so many seconds, or until the target return is reached."""
        started, done, reached = time.monotonic(), 0, False
        total = None
        while done < iterations and not reached:
            total, reached = self._iterate(total, target)
            done += 1
            if stop() or time.monotonic() - started > seconds:
                break
        assert total is not None
        return totals.read(done, total, self.carry, reached)

    def phases(self) -> dict[str, float]:
        if self.unroller is None:
            return {"rollout": self._unroll_s, "learn": self._learn_s}
        return {
            "environment": self.unroller.environment_s,
            "act": self.unroller.act_s,
            "learn": self._learn_s,
        }

    def save(self) -> dict[str, PyTree]:
        if self.unroller is None:
            return {"carry": self.carry, "host": {}}
        episodes, cut = self.unroller.save()
        return {"carry": self.carry, "host": {**history.pack(episodes), "cut": np.asarray(cut)}}

    def load(self, saved: dict[str, PyTree]) -> int:
        """Goes on from what `save` gave; says how many episodes could not be replayed and were cut."""
        carry: Carry = jax.device_put(saved["carry"])
        if self.unroller is None:
            self.carry = carry
            return 0
        packed = dict(saved["host"])
        cut = np.asarray(packed.pop("cut"))
        end = int(carry.iteration) * self.loop.graph.unroll
        self.unroller.load(history.unpack(packed), end)
        kept = jnp.asarray(~cut)
        counted = carry.episodes._replace(
            reward={group: reward * kept for group, reward in carry.episodes.reward.items()},
            length=carry.episodes.length * kept,
        )
        sums = {
            group: total * self.loop.each_column(kept, group) for group, total in carry.actors.discounted_sum.items()
        }
        self.carry = carry._replace(episodes=counted, actors=carry.actors._replace(discounted_sum=sums))
        return int(cut.sum())

    def close(self) -> None:
        if self.unroller is not None:
            self.unroller.vector.close()

    def _iterate(self, total: Metrics | None, target: float) -> tuple[Metrics, bool]:
        """One iteration; `total` with its metrics, and whether the target return is reached."""
        started = time.perf_counter()
        if self.unroller is None:
            self.carry, seen = self._unroll(self.carry)
            memory: Any = None
            jax.block_until_ready(seen)
        else:
            seen, memory = self.unroller.unroll(self.carry)
        if total is None:
            total = totals.empty(jax.eval_shape(self._learn, self.carry, None, seen, memory)[1])
        unrolled = time.perf_counter()
        self.carry, summed, mean = self._update(self.carry, total, seen, memory)
        # Also ends the reading of the unroll, whose memory the next one writes.
        reached = float(mean) >= target
        self._unroll_s += unrolled - started
        self._learn_s += time.perf_counter() - unrolled
        return summed, reached

    def _learn(self, carry: Carry, total: Metrics | None, seen: Any, memory: PyTree) -> tuple[Carry, Metrics, Array]:
        """Every node after the rollout, and the mean return after it."""
        if isinstance(seen, Unroll):
            unrolled = host.trajectories(self.loop, carry, seen)
            carry = carry._replace(actors=carry.actors._replace(memory=memory))
        else:
            unrolled = seen
        carry, metrics = self.loop.update(carry, unrolled)
        metrics = metrics if total is None else totals.add(total, metrics)
        return carry, metrics, totals.window_mean(carry)
