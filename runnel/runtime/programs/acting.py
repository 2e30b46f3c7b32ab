"""Acting in the process that steps the environments: a compiled `act` for a fixed set of columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from runnel.runtime.programs.loop import Loop
from runnel.runtime.programs.row_packing import packed
from runnel.runtime.programs.versions import NO_STAMP, ParameterStamp
from runnel.types import Array, PyTree

ParameterSource = Callable[[int], tuple[ParameterStamp, dict[str, PyTree]]]
"""Returns the parameters that act in an unroll, by group, and their stamp."""

SMALL_BYTES = 1 << 16
"""Parameters up to this size go to `act` as one array of each kind; larger ones would be copied at every step."""


class LocalPolicies:
    """The policies of some groups, for all columns of a loop at once; they remember from step to step."""

    def __init__(self, loop: Loop, groups: Sequence[str], parameters: ParameterSource, seed: Any):
        self.loop, self.groups, self.parameters = loop, list(groups), parameters
        self.stamp = NO_STAMP
        self.seed = jnp.uint32(seed)
        self._act = jax.jit(self._act_all)
        self._keys = jax.jit(self._keys_of_unroll)
        self._pack = jax.jit(_by_type)
        self._types: list[jax.ShapeDtypeStruct] = []  # of the parameters' leaves
        self._structure: Any = None  # of the parameters
        self._params: list[Array] = []  # as `act` is given them
        self._unroll_keys: Any = None  # [T, columns] as numbers
        self._steps = jax.jit(lambda: list(jnp.arange(loop.graph.unroll, dtype=jnp.int32)))()
        self.memories: dict[str, PyTree] = {group: loop.initial_memory(group) for group in self.groups}
        self._remembers = bool(jax.tree.leaves(self.memories))
        given = Given(loop, {group: loop.columns(group) for group in self.groups})
        self._packed = np.zeros(given.size, np.uint8)
        self._given = given.arrays(self._packed)

    def begin(self, unroll: int) -> None:
        self.stamp, params = self.parameters(unroll)
        # Every array that enters or leaves a program costs a microsecond, and walking trees takes longer than that.
        leaves, self._structure = jax.tree.flatten({group: params[group] for group in self.groups})
        self._types = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
        self._params = self._pack(leaves) if self._small() else leaves
        self._unroll_keys = self._keys(self.seed, np.int32(unroll * self.loop.graph.unroll))

    def memory(self) -> dict[str, list[Any]]:
        return {group: jax.tree.leaves(memory) for group, memory in self.memories.items()}

    def adopt(self, observation: dict[str, PyTree]) -> dict[str, PyTree]:
        return jax.tree.map(_shared, observation)

    def act(self, t: int, observation: dict[str, PyTree], first: np.ndarray) -> Sequence[Any]:
        # Only memory cares where an episode begins, and every array passed costs microseconds.
        began = first if self._remembers else None
        row, self.memories = self._act(
            self._params, observation, self.memories, began, self._unroll_keys, self._steps[t]
        )
        self._packed[...] = np.asarray(row)
        return self._given

    def _small(self) -> bool:
        return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in self._types) <= SMALL_BYTES

    def _keys_of_unroll(self, seed: Array, start: Array) -> Array:
        """[T, columns, ...] the keys of all groups at each step, as numbers: drawn in one call instead of T."""
        steps = start + jnp.arange(self.loop.graph.unroll, dtype=jnp.int32)
        keys = [jax.vmap(partial(self.loop.act_keys, seed, group))(steps) for group in self.groups]
        return jax.random.key_data(jnp.concatenate(keys, axis=1))

    def _act_all(
        self, params: Any, observation: PyTree, memory: PyTree, first: Array | None, unroll_keys: Array, t: Array
    ) -> tuple[Array, PyTree]:
        """Acts for every group; returns the bytes of actions and extras, and the memories after."""
        leaves = _unpacked(params, self._types) if self._small() else params
        params = jax.tree.unflatten(self._structure, leaves)
        actions, extras, memories = [], [], {}
        first = jnp.zeros(len(self.loop.envs), jnp.bool_) if first is None else first
        keys = jax.lax.dynamic_index_in_dim(unroll_keys, t, keepdims=False)
        for group in self.groups:
            began = self.loop.each_column(first, group)
            columns = self.loop.columns(group)
            own, keys = jax.random.wrap_key_data(keys[:columns]), keys[columns:]
            indices = self.loop.indices(group)
            act = self.loop.act(group, params[group], observation[group], memory[group], began, own, indices)
            actions.append(act.action)
            extras += jax.tree.leaves(act.extras)
            memories[group] = act.memory
        return packed([*actions, *extras]), memories


class Given:
    """What acting returns for a number of columns of each group: all actions, then all extras.

    It comes as one row of bytes, because every array that leaves a program costs microseconds.
    """

    def __init__(self, loop: Loop, columns: Mapping[str, int]):
        acts = [(loop.node("act", group).output, n) for group, n in columns.items()]
        leaves = [(act.action, n) for act, n in acts]
        leaves += [(leaf, n) for act, n in acts for leaf in jax.tree.leaves(act.extras)]
        self._types = [((n, *leaf.shape[1:]), np.dtype(leaf.dtype)) for leaf, n in leaves]
        self._ends = np.cumsum([0, *(math.prod(shape) * dtype.itemsize for shape, dtype in self._types)]).tolist()
        self.size = self._ends[-1]

    def arrays(self, row: np.ndarray) -> list[np.ndarray]:
        """The arrays in a row of bytes."""
        spans = zip(pairwise(self._ends), self._types, strict=True)
        return [row[a:b].view(dtype).reshape(shape) for (a, b), (shape, dtype) in spans]


def _shared(array: np.ndarray) -> Any:
    """The memory of an array as an array of JAX's, where the two can share it: on a CPU, if it begins at a cache line.

    What lies there may change between two calls, not during one. Handing over the host's own arrays takes longer.
    """
    if jax.default_backend() != "cpu":
        return array
    shared = jax.device_put(array)
    return shared if shared.unsafe_buffer_pointer() == array.ctypes.data else array


def _by_type(leaves: Sequence[Array]) -> list[Array]:
    """One flat array for each dtype."""
    by_type: dict[Any, list[Array]] = {}
    for leaf in leaves:
        by_type.setdefault(leaf.dtype, []).append(jnp.ravel(leaf))
    return [jnp.concatenate(parts) for parts in by_type.values()]


def _unpacked(packed: Sequence[Array], types: Sequence[jax.ShapeDtypeStruct]) -> list[Array]:
    """The arrays of these types that `_by_type` put together."""
    by_type = {array.dtype: array for array in packed}
    taken = dict.fromkeys(by_type, 0)
    leaves = []
    for leaf in types:
        begin, taken[leaf.dtype] = taken[leaf.dtype], taken[leaf.dtype] + math.prod(leaf.shape)
        leaves.append(by_type[leaf.dtype][begin : taken[leaf.dtype]].reshape(leaf.shape))
    return leaves
