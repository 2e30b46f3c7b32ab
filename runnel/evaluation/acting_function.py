"""A policy as a pure function of named arrays, which exported files compute.

    (observation, memory, ...) -> (action, next memory, ...)

It acts greedily on a batch of any size. Parameters, observation statistics and the scale of actions are constants in
it; memory is an input and an output. Inputs that actions do not depend on are left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from runnel.algorithm import act_one
from runnel.evaluation.constant_folding import Folded, Replaced, fold
from runnel.observations import view
from runnel.ops import hardware
from runnel.policy import Policy
from runnel.policy.conversion import native_action_traced, read_traced
from runnel.recording.parameters import as_leaf, as_numpy
from runnel.types import Array, Leaf, PyTree

OBSERVATION, MASK, MEMORY, AGENT, ACTION = "observation", "action_mask", "memory", "agent", "action"
"""The roles of the function's arrays."""


class Port(NamedTuple):
    """One input or output: `[batch, *shape]`."""

    name: str
    role: str
    path: tuple[str | int, ...]  # where it is in the observation or memory, which are trees
    shape: tuple[int, ...]
    dtype: np.dtype
    space: Leaf | None = None  # of an observation
    initial: np.ndarray | None = None  # of a memory: at the start of an episode


class ActingFunction(NamedTuple):
    """Inputs and outputs in order, and the function of one row."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    one: Folded
    places: tuple[int, ...]  # by input: which one of `one` it is
    replaced: Replaced = MappingProxyType({})  # primitives that another program does not know

    def __call__(self, *inputs: Array) -> tuple[Array, ...]:
        """[batch, ...] all outputs."""

        def row(*given: Array) -> tuple[Array, ...]:
            by_place: dict[int, Any] = dict(zip(self.places, given, strict=True))
            return self.one.run([by_place.get(k) for k in range(max(by_place) + 1)], self.replaced)

        return jax.vmap(row)(*inputs)


def acting_function(policy: Policy) -> ActingFunction:
    """The policy's function, traced in the form that any device can run."""
    memory, structure = jax.tree_util.tree_flatten_with_path(policy.initial_memory())
    seen, observation = _seen(policy)
    before = [leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf) for _, leaf in memory]
    masks = sum(port.role == MASK for port in seen)

    def one(*inputs: Array) -> tuple[Array, ...]:
        leaves, remembered, agent = inputs[: len(seen)], inputs[len(seen) : -1], inputs[-1]
        mask = {MASK: leaves[-1]} if masks else {}
        given = _parted(policy, jax.tree.unflatten(observation, leaves[: len(seen) - masks]), mask)
        act = act_one(
            policy.acts_with,
            policy.params,
            read_traced(policy.spec, given),
            jax.tree.unflatten(structure, map(as_leaf, remembered, before)),  # type: ignore[arg-type]
            jax.random.key(0),  # acting greedily, it draws nothing
            False,
            agent,
        )
        after = map(_like, jax.tree.leaves(act.memory), before)
        return native_action_traced(policy.spec, act.action), *after

    remembered = [_memory_port(path, as_numpy(leaf)) for (path, _), leaf in zip(memory, before, strict=True)]
    ports = _with_names([*seen, *remembered, Port("", AGENT, (), (), np.dtype(np.int32))])
    types = [jax.ShapeDtypeStruct(port.shape, port.dtype) for port in ports]
    with hardware.plain_networks(), jax.default_device(policy.device):
        folded = fold(one, *types)
        outputs = jax.eval_shape(lambda *given: folded.run(given), *types)
    kept = [k for k, port in enumerate(ports) if k in folded.used or port.role == MEMORY]
    kept = kept or [0]  # what depends on nothing still needs to know the size of the batch
    remembered = [port for port in ports if port.role == MEMORY]
    return ActingFunction(tuple(ports[k] for k in kept), _outputs(outputs, remembered), folded, tuple(kept))


def _seen(policy: Policy) -> tuple[list[Port], Any]:
    """The ports of the policy's observation, with the mask last, and the tree that the others form."""
    space = view(policy.spec.observation)
    leaves, structure = jax.tree_util.tree_flatten_with_path(space.seen)
    roles = [(OBSERVATION, path, leaf) for path, leaf in leaves]
    roles += [] if space.action_mask is None else [(MASK, (), space.action_mask)]
    return [
        Port("", role, _path(path), tuple(leaf.shape), jax.dtypes.canonicalize_dtype(leaf.dtype), space=leaf)
        for role, path, leaf in roles
    ], structure


def _parted(policy: Policy, observed: PyTree, mask: dict[str, Array]) -> PyTree:
    """The input of `read_traced`, which fills in the parts that acting ignores: active, and no state."""
    parted = any(part is not None for part in view(policy.spec.observation)[1:])
    return {"observation": observed, **mask} if parted else observed


def _outputs(found: Sequence[Any], memory: Sequence[Port]) -> tuple[Port, ...]:
    action, *after = found
    ports = [Port(ACTION, ACTION, (), tuple(action.shape), np.dtype(action.dtype))]
    ports += [
        port._replace(name=f"next_{port.name}", shape=tuple(kind.shape), dtype=np.dtype(kind.dtype), initial=None)
        for port, kind in zip(memory, after, strict=True)
    ]
    return tuple(ports)


def _like(after: Array, before: Any) -> Array:
    """The memory after a step, cast to the type of the memory before it."""
    if jax.dtypes.issubdtype(before.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(after)
    return jnp.asarray(after, before.dtype)


def _path(path: Sequence[Any]) -> tuple[str | int, ...]:
    return tuple(getattr(key, "name", getattr(key, "key", getattr(key, "idx", str(key)))) for key in path)


def _memory_port(path: Sequence[Any], start: np.ndarray) -> Port:
    return Port("", MEMORY, _path(path), start.shape, start.dtype, initial=start)


def _with_names(ports: Sequence[Port]) -> list[Port]:
    """The ports with unique names that every format accepts."""
    taken: set[str] = set()
    named = []
    for port in ports:
        name = re.sub(r"\W", "_", "_".join(map(str, (port.role, *port.path))), flags=re.ASCII)
        while name in taken:
            name += "_"
        taken.add(name)
        named.append(port._replace(name=name))
    return named
