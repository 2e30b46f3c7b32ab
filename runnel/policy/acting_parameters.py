"""Which of a learner's parameters acting depends on."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from runnel.algorithm import Algorithm, act_one
from runnel.recording.parameters import parameter_leaves
from runnel.types import AgentSpec, Array, PyTree, zeros

CALLS = ("pjit", "jit", "closed_call", "custom_jvp_call", "custom_vjp_call")
"""Primitives that call a traced function with their own inputs."""


def params_leaves(state: PyTree) -> dict[str, Any]:
    """The leaves of a state's `params`, or of their types, by name."""
    return {n: leaf for n, leaf in parameter_leaves(state).items() if n == "params" or n.startswith("params/")}


def acting_names(algorithm: Algorithm, spec: AgentSpec, state: PyTree) -> list[str]:
    """The parameters that an action or the next memory depends on, exploring or not. `state`: a state, or its type."""

    def acted(explore: bool, params: PyTree, observation: PyTree, key: Array) -> Any:
        act = act_one(
            algorithm.act, params, observation, algorithm.initial_memory(spec), key, explore, jnp.int32(0)
        )  # fmt: skip
        return act.action, act.memory

    key = jax.eval_shape(lambda: jax.random.key(0))
    used: set[int] = set()
    for explore in (False, True):
        traced = jax.make_jaxpr(acted, static_argnums=0)(explore, state.params, zeros(spec.observation), key)
        used |= _used_inputs(traced.jaxpr, set(range(len(traced.jaxpr.outvars))))
    return [name for k, name in enumerate(params_leaves(state)) if k in used]


def _used_inputs(jaxpr: Any, wanted: set[int]) -> set[int]:
    """Which inputs of a traced function its outputs of these numbers depend on."""
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
