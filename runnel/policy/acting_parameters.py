"""Finds the parameters and settings of a learner that acting depends on."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from runnel.algorithm import Algorithm, act_one, first_state
from runnel.ops import hardware
from runnel.recording.parameters import parameter_leaves
from runnel.types import Act, AgentSpec, Array, PyTree, zeros

CALLS = ("pjit", "jit", "closed_call", "custom_jvp_call", "custom_vjp_call")
"""Primitives that call a traced function with their own inputs."""


def params_leaves(state: PyTree) -> dict[str, Any]:
    """The leaves of a state's `params`, or of their types, by name."""
    return {n: leaf for n, leaf in parameter_leaves(state).items() if n == "params" or n.startswith("params/")}


def acting_names(
    algorithm: Algorithm, act: Callable[..., Act], spec: AgentSpec, state: PyTree,
    explores: Sequence[bool] = (False, True),
) -> list[str]:  # fmt: skip
    """The parameters that an action or the next memory depends on; without exploring, exploring, or either.

    `act`: the function of the algorithm's loop. `state`: a state, or its type.
    """
    used: set[int] = set()
    for explore in explores:
        traced = _traced(algorithm, act, spec, state, explore)
        used |= _used_inputs(traced.jaxpr, set(range(len(traced.jaxpr.outvars))))
    return [name for k, name in enumerate(params_leaves(state)) if k in used]


def same_acting(
    one: tuple[Algorithm, Callable[..., Act]], other: tuple[Algorithm, Callable[..., Act]], spec: AgentSpec, group: str,
    explore: bool,
) -> bool:  # fmt: skip
    """Whether two algorithms, each with the `act` of its loop, compute the same actions of a group from the same
    parameters."""
    texts, constants = [], []
    for algorithm, act in (one, other):
        key = jax.eval_shape(lambda: jax.random.key(0))
        state = jax.eval_shape(lambda key, algorithm=algorithm: first_state(algorithm, key, spec, group), key)
        traced = _traced(algorithm, act, spec, state, explore)
        texts.append(re.sub(r"0x[0-9a-f]+", "", str(traced.jaxpr)))  # addresses of functions
        constants.append([np.asarray(constant) for constant in traced.consts])
    same = len(constants[0]) == len(constants[1]) and all(map(np.array_equal, *constants))
    return texts[0] == texts[1] and same


def _traced(algorithm: Algorithm, act: Callable[..., Act], spec: AgentSpec, state: PyTree, explore: bool) -> Any:
    """An action and the next memory as a function of parameters, observation and key.

    Actor and critic are computed separately: computed jointly, the action would depend on the critic's parameters too.
    """

    def acted(params: PyTree, observation: PyTree, key: Array) -> Any:
        memory = algorithm.initial_memory(spec)
        done = act_one(act, params, observation, memory, key, explore, jnp.int32(0))
        return done.action, done.memory

    with hardware.plain_networks():
        key = jax.eval_shape(lambda: jax.random.key(0))
        return jax.make_jaxpr(acted)(state.params, zeros(spec.observation), key)


def _used_inputs(jaxpr: Any, wanted: set[int]) -> set[int]:
    """The inputs of a traced function that the given outputs depend on."""
    live = {v for k, v in enumerate(jaxpr.outvars) if k in wanted and not hasattr(v, "val")}
    for equation in reversed(jaxpr.eqns):
        reached = {k for k, v in enumerate(equation.outvars) if v in live}
        if not reached:
            continue
        called = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
        inner = getattr(called, "jaxpr", called) if equation.primitive.name in CALLS else None
        whole = inner is None or len(inner.invars) != len(equation.invars)
        needed = set(range(len(equation.invars))) if whole else _used_inputs(inner, reached)
        live |= {v for k, v in enumerate(equation.invars) if k in needed and not hasattr(v, "val")}
    return {k for k, v in enumerate(jaxpr.invars) if v in live}
