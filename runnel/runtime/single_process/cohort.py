"""Trains members in one XLA program: the same iteration of each, with separate seeds and settings.

The state of each member is stacked along a first axis. Counters that are equal for all members (iterations, updates,
the fill of replays) are not stacked: loops that depend on them stay loops, whereas a bound per member would turn them
into selects over the whole carry.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from runnel.ops.primitives import has_convolution
from runnel.runtime.programs import finite, totals
from runnel.runtime.programs.carry import Carry, IterationMetrics, ReplayState
from runnel.runtime.programs.loop import Loop
from runnel.runtime.programs.stage import Stage
from runnel.runtime.programs.traced_settings import NotShared, as_settings, setting_type
from runnel.types import Array, PyTree

MEMBERS = "members"
"""The axis that members are spread over, where there are several devices."""

CHUNK = 8
"""The largest number of steps that are unrolled in one compiled iteration on a GPU."""


class Called(NamedTuple):
    """The results of one call."""

    iterations: int
    totals: Any  # by member: [M, ...]
    reached: np.ndarray  # [M] whose target return is reached


class CohortProgram:
    """The compiled program of members; it is compiled once for each number of members."""

    def __init__(
        self, make_loop: Callable[[Mapping[str, Array]], Loop], devices: Sequence[Any], settings: Sequence[str] = ()
    ):
        """`make_loop` returns the loop for values of these settings, which are traced."""
        self._make_loop, self.devices, self._settings = make_loop, list(devices), tuple(settings)
        self._one = {name: setting_type() for name in settings}
        self._member = jax.eval_shape(self._first, jax.ShapeDtypeStruct((), jnp.uint32), self._one)
        self.axes = axes(self._member)
        self._init = jax.jit(jax.vmap(self._first, out_axes=self.axes))
        self._many = jax.jit(self._iterate, donate_argnums=0)
        self.compiled: dict[int, Any] = {}  # by number of members

    def prepare(self, members: int) -> None:
        """Compiles for calls of `members` members."""
        self._program(members)

    @functools.cached_property
    def one_each(self) -> bool:
        """Whether each member has separate calls, one after another: on a CPU, convolutions with stacked kernels are
        far slower."""
        kernels = any(leaf.ndim > 2 for leaf in jax.tree.leaves(self._member.states))
        if self.devices[0].platform != "cpu" or not kernels:
            return False
        return has_convolution(jax.make_jaxpr(self.once)(self._member, self._one))

    def call_size(self, members: int, parallel_calls: int = 1) -> int:
        """The number of members in each call, if `members` are trained by `parallel_calls` calls side by side.

        Over several devices it is rounded up so that each device has as many; the extra rows belong to no member.
        """
        if self.one_each:
            return 1
        size = members // parts(members, parallel_calls)
        each = -(-size // len(self.devices))
        return each * -(-size // each)

    def bytes(self, members: int, parallel_calls: int = 1) -> int:
        """The device memory that `members` members need, by the compiler's estimate; 0 if it makes none."""
        size = self.call_size(members, parallel_calls)
        found, calls = self._program(size).memory_analysis(), -(-members // size)
        if found is None:
            return 0
        held = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
        return int(
            calls * held + min(calls, parallel_calls) * found.temp_size_in_bytes + found.generated_code_size_in_bytes
        )

    def fresh(self, seeds: Sequence[int], settings: Mapping[str, np.ndarray]) -> Carry:
        """The members' carries before the first step, stacked."""
        return self.place(self._init(jnp.asarray(np.asarray(seeds, np.uint32)), as_settings(settings)))

    def types(self, members: int) -> Carry:
        """The types of the carries of `members` members, stacked."""
        seeds = jax.ShapeDtypeStruct((members,), jnp.uint32)
        values = {name: setting_type(members) for name in self._settings}
        return jax.eval_shape(jax.vmap(self._first, out_axes=self.axes), seeds, values)

    def run(
        self, carry: Carry, settings: Mapping[str, np.ndarray], iterations: int, targets: np.ndarray,
        skips: np.ndarray | None = None,
    ) -> tuple[Carry, Called]:  # fmt: skip
        """Runs at most `iterations` iterations; fewer if a member reaches its target or one of its updates is refused.

        `targets`: [M] returns; NaN for members that have ended. `skips`: [M] members that continue after a refused
        update.
        """
        skips = np.zeros(len(targets), np.bool_) if skips is None else skips
        carry, total, done, reached = self._program(len(targets))(
            carry, as_settings(settings), jnp.int32(iterations), jnp.asarray(targets, jnp.float32), jnp.asarray(skips)
        )
        jax.block_until_ready(carry)
        return carry, Called(int(done), jax.device_get(total), np.asarray(reached))

    def place(self, carry: Carry) -> Carry:
        """Spreads members over the devices."""
        own, whole = self._shardings(carry.seed.shape[0])
        return self.each(lambda x: jax.device_put(x, own), carry, lambda x: jax.device_put(x, whole))

    def _shardings(self, members: int) -> tuple[NamedSharding, NamedSharding]:
        """The shardings of members' own values, over as many devices as divide their number, and of shared values."""
        count = max(k for k in range(1, len(self.devices) + 1) if members % k == 0)
        mesh = Mesh(self.devices[:count], (MEMBERS,))
        return NamedSharding(mesh, PartitionSpec(MEMBERS)), NamedSharding(mesh, PartitionSpec())

    def _program(self, members: int) -> Any:
        """Compiles for a number of members, without running anything."""
        if members not in self.compiled:
            own, whole = self._shardings(members)

            def typed(x: Any, sharding: NamedSharding) -> Any:
                return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding, weak_type=x.weak_type)

            values = {name: setting_type(members) for name in self._settings}
            carry = self.each(lambda x: typed(x, own), self.types(members), lambda x: typed(x, whole))
            count, targets = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((members,), jnp.float32)
            skips = jax.ShapeDtypeStruct((members,), jnp.bool_)
            self.compiled[members] = self._many.lower(carry, values, count, targets, skips).compile()
        return self.compiled[members]

    def each(self, own: Callable[..., Any], carry: Carry, common: Callable[..., Any] = lambda x, *_: x, *others: Carry):
        """Maps over the leaves of stacked carries: `own` for values per member, `common` for shared ones."""

        def one(axis: int | None, *leaves: Any) -> Any:
            if leaves[0] is None:  # nothing, and no leaf
                return None
            return common(*leaves) if axis is None else own(*leaves)

        return jax.tree.map(one, self.axes, carry, *others, is_leaf=lambda x: x is None)

    def _first(self, seed: Array, settings: Mapping[str, Array]) -> Carry:
        return self._make_loop(settings).init(seed)

    def once(self, carry: Carry, settings: Mapping[str, Array]) -> tuple[Carry, IterationMetrics]:
        """One iteration of one member."""
        loop = self._make_loop(settings)
        carry, trajectories, finished = loop.unroll(carry, self._chunk(loop.graph.unroll))
        return Stage(loop.graph).iterate(carry, trajectories, finished)

    def _alone(self, carry: Carry, settings: Mapping[str, Array]) -> tuple[Carry, IterationMetrics]:
        """One iteration of a stack with one row, by the operations of a single run."""
        first, metrics = self.once(self.each(lambda x: x[0], carry), {n: value[0] for n, value in settings.items()})
        return self.each(lambda x: x[None], first), jax.tree.map(lambda x: x[None], metrics)

    def _iterate(
        self, carry: Carry, settings: Mapping[str, Array], iterations: Array, targets: Array, skips: Array
    ) -> tuple[Carry, IterationMetrics, Array, Array]:
        stacked = jax.vmap(self.once, in_axes=(self.axes, 0), out_axes=(self.axes, 0))
        members = self._alone if targets.shape == (1,) else stacked
        wanted = ~jnp.isnan(targets)

        def unfinished(now: tuple[Array, Array, Carry, IterationMetrics]) -> Array:
            i, reached, _, total = now
            refused = jax.vmap(finite.any_refused)(total.broken) if jax.tree.leaves(total.broken) else False
            return (i < iterations) & ~jnp.any((reached | (refused & ~skips)) & wanted)

        def body(now: tuple[Array, Array, Carry, IterationMetrics]) -> tuple[Array, Array, Carry, IterationMetrics]:
            i, _, carry, total = now
            carry, metrics = members(carry, settings)
            reached = jax.vmap(totals.window_mean, in_axes=(self.axes,))(carry) >= targets
            return i + 1, reached, carry, totals.add(total, metrics)

        nothing = totals.empty(jax.eval_shape(members, carry, settings)[1])
        start = (jnp.int32(0), jnp.zeros(targets.shape, jnp.bool_), carry, nothing)
        done, reached, carry, total = jax.lax.while_loop(unfinished, body, start)
        return carry, total, done, reached

    def _chunk(self, unroll: int) -> int:
        most = 1 if self.devices[0].platform == "cpu" else CHUNK
        return max(k for k in range(1, most + 1) if unroll % k == 0)


def parts(members: int, most: int) -> int:
    """The number of equal parts into which members are divided: one program is compiled for all of them."""
    return max(k for k in range(1, max(1, most) + 1) if members % k == 0)


def try_members(make_loop: Callable[[Mapping[str, Array]], Loop], settings: Sequence[str]) -> None:
    """Traces an iteration of two members that differ in these settings; raises where one program cannot hold them."""

    def once(seed: Array, values: Mapping[str, Array]) -> tuple[Carry, IterationMetrics]:
        loop = make_loop(values)
        return Stage(loop.graph).iterate(*loop.unroll(loop.init(seed)))

    one = jax.eval_shape(once, jax.ShapeDtypeStruct((), jnp.uint32), {name: setting_type() for name in settings})
    two = jax.ShapeDtypeStruct((2,), jnp.uint32), {name: setting_type(2) for name in settings}
    try:
        jax.eval_shape(jax.vmap(once, out_axes=(axes(one[0]), 0)), *two)
    except ValueError as error:
        if "out_axes" not in str(error):
            raise
        raise NotShared("how often members learn, or how full their replays are, depends on it") from None


def axes(carry: Carry) -> Carry:
    """For every leaf of a member's carry: 0 where members have values of their own, None where they share one."""

    def own(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda _: 0, tree)

    def shared(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda _: None, tree)

    def replay(state: ReplayState) -> ReplayState:
        # Where the next item goes and whether the ring is full: every member has inserted as many.
        items = jax.tree.map(lambda x: None if x.ndim == 0 and x.dtype.kind in "ib" else 0, state.items)
        return ReplayState(items, None, None)  # type: ignore[arg-type]

    return Carry(
        seed=0, iteration=None, updates=shared(carry.updates), states=own(carry.states),
        replays={name: replay(state) for name, state in carry.replays.items()}, window=own(carry.window),
        actors=own(carry.actors), running=own(carry.running), environments=own(carry.environments),
    )  # type: ignore[arg-type]  # fmt: skip
