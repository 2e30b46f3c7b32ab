"""`precision=bf16`: networks multiply in bfloat16; everything that is kept, sent or summed stays in float32."""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance import ALGORITHMS
from exports import GRID, PICTURE, TEAM, VECTOR
from parted import flags

from runnel.algorithm import act_one
from runnel.errors import UserError
from runnel.graph.flow import trace
from runnel.graph.nodes import Graph
from runnel.nn.actor_critic import ActorCritic
from runnel.nn.heads import DiscreteHead
from runnel.nn.networks import MLP, NatureCNN
from runnel.observations import parted
from runnel.ops import precision
from runnel.ops.primitives import equations
from runnel.types import AgentSpec, Box, Discrete, EnvSpec, zeros

NARROW, WIDE = jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32)
PRODUCTS = ("dot_general", "conv_general_dilated")
TEAM_SPACE = parted(VECTOR, action_mask=flags(3), active=flags(), state=Box((7,)))
TEAMS = ("mappo", "vdn", "qmix")
SIZE = 5
"""Of memories: no other layer has it."""


class Case(NamedTuple):
    algorithm: Any
    spec: AgentSpec


def cases() -> Iterator[tuple[str, Case]]:
    for name, algorithm in ALGORITHMS.items():
        fields = {field.name for field in dataclasses.fields(algorithm)}
        action = Box((2,)) if algorithm.actions == (Box,) else Discrete(3)
        if algorithm.actions == (Box,):
            action = Box((2,), low=np.full(2, -1.0, np.float32), high=np.full(2, 1.0, np.float32))
        more = TEAM if name in TEAMS else {}
        yield f"{name}, MLP", Case(algorithm, AgentSpec(TEAM_SPACE if more else VECTOR, action, **more))
        yield f"{name}, NatureCNN", Case(algorithm, AgentSpec(PICTURE, action))
        minatar = dataclasses.replace(algorithm, network="runnel.nn:MinAtarCNN")
        yield f"{name}, MinAtarCNN", Case(minatar, AgentSpec(GRID, action))
        for memory in ("gru", "lstm") if "memory" in fields else ():
            remembers = dataclasses.replace(algorithm, memory=memory, memory_size=SIZE)
            yield f"{name}, {memory.upper()}", Case(remembers, AgentSpec(VECTOR, action))
        for switch in sorted({"dueling", "noisy"} & fields):
            yield f"{name}, {switch}", Case(dataclasses.replace(algorithm, **{switch: True}), AgentSpec(VECTOR, action))


CASES = dict(cases())


def traced(case: Case, precision: Any) -> Graph:
    return trace(case.algorithm, EnvSpec("a test", {"agent": case.spec}), 8, precision=precision)


def programs(graph: Graph) -> Iterator[tuple[str, Any, Any]]:
    """Each function of the loop that computes something: its name, its jaxpr, and the types of its results."""
    (agents,) = graph.spec.groups.values()
    state, key = graph.states["agent"], jax.eval_shape(lambda: jax.random.key(0))
    for node in graph.nodes.values():
        inputs = [ref.type for ref in node.inputs]
        function: Any = node.function
        if node.kind == "act":
            memory = graph.algorithm.initial_memory(agents)
            yield (
                "act",
                *jax.make_jaxpr(
                    lambda p, o, m, k, f=function: act_one(f, p, o, m, k, True, jnp.int32(0)), return_shape=True
                )(state.params, zeros(agents.observation), memory, key),
            )
        elif node.kind in ("learn", "gradient"):
            yield node.kind, *jax.make_jaxpr(function, return_shape=True)(state, *inputs, key)
        elif node.kind == "apply":
            yield "apply", *jax.make_jaxpr(function, return_shape=True)(state, *inputs)


def products(jaxpr: Any) -> list[tuple[Any, ...]]:
    """The types of the operands of each product."""
    return [
        tuple(v.aval.dtype for v in equation.invars)
        for equation in equations(jaxpr)
        if equation.primitive.name in PRODUCTS and _of_a_network(equation)
    ]


def _of_a_network(equation: Any) -> bool:
    """Not the mean of C51's categories, whose support has one axis and no weights."""
    return (51,) not in [v.aval.shape for v in equation.invars]


def floats(tree: Any) -> set[Any]:
    return {leaf.dtype for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)}


@pytest.mark.parametrize("name", CASES)
def test_networks_multiply_in_bf16_and_last_layers_alone_in_float32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = traced(CASES[name], "bf16")
    assert floats(dict(graph.states)) <= {WIDE}
    assert floats([node.output for node in graph.nodes.values()]) <= {WIDE}
    found = {called: products(jaxpr) for called, jaxpr, _ in programs(graph)}
    assert all(floats(result) <= {WIDE} for _, _, result in programs(graph))
    # Were the last layers in bfloat16 too, nothing would be left in float32: it is theirs, all of it.
    monkeypatch.setattr("runnel.nn.networks.last_dtype", lambda: jnp.bfloat16)
    narrow = {called: products(jaxpr) for called, jaxpr, _ in programs(traced(CASES[name], "bf16"))}
    assert {dtype for pairs in narrow.values() for pair in pairs for dtype in pair} == {NARROW}
    for called, pairs in found.items():
        assert len(pairs) == len(narrow[called]), called
        if called != "apply":
            assert set(pairs) == {(NARROW, NARROW), (WIDE, WIDE)}, called


@pytest.mark.parametrize("name", CASES)
def test_the_default_never_sees_bf16_and_multiplies_as_often(name: str) -> None:
    plain, narrow = (list(programs(traced(CASES[name], each))) for each in ("float32", "bf16"))
    for (called, wide, _), (_, other, _) in zip(plain, narrow, strict=True):
        assert "bf16" not in str(wide), called
        assert len(products(wide)) == len(products(other)), called


def test_the_default_runs_the_algorithms_own_functions() -> None:
    case = CASES["ppo, MLP"]
    assert traced(case, "float32").only("learn", "agent").function == case.algorithm.learn
    assert traced(case, "bf16").only("learn", "agent").function != case.algorithm.learn


def test_a_function_keeps_its_precision_whatever_was_traced_before() -> None:
    network = MLP((4,))
    params = network.init(jax.random.key(0), jnp.ones(3))
    plain = precision.with_precision(network.apply, "float32")
    narrow = precision.with_precision(network.apply, "bf16")
    for function, dtype in ((plain, jnp.float32), (narrow, jnp.bfloat16), (plain, jnp.float32)):
        assert jax.jit(function)(params, jnp.ones(3)).dtype == dtype
    assert precision.compute_dtype() == jnp.float32


def test_a_policy_of_float32_stays_so_inside_a_program_of_bf16() -> None:
    """Such as an expert that labels what a run in bf16 learns from."""
    plain = precision.with_precision(precision.compute_dtype, "float32")
    assert precision.with_precision(plain, "bf16")() == jnp.float32
    assert precision.with_precision(precision.compute_dtype, "bf16")() == jnp.bfloat16


@pytest.mark.parametrize("joint", [False, True])
def test_heads_are_read_in_float32_jointly_and_one_by_one(joint: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.nn.actor_critic.launch_bound", lambda: joint)
    actor_critic = ActorCritic.create(jax.random.key(0), MLP((8,)), DiscreteHead(3), jnp.ones(4))
    with precision.computing("bf16"):
        jaxpr, found = jax.make_jaxpr(actor_critic.batch, return_shape=True)(jnp.ones((6, 4)))
    assert set(products(jaxpr)) == {(NARROW, NARROW), (WIDE, WIDE)}
    assert (found.distribution.logits.dtype, found.value.dtype) == (jnp.float32, jnp.float32)


def test_outputs_are_those_of_float32_to_three_digits() -> None:
    """Of products of about 30 terms, each rounded to 8 bits."""
    network, image = NatureCNN(16), jax.random.uniform(jax.random.key(1), (40, 36, 2))
    params = network.init(jax.random.key(0), image)
    wide = jax.jit(network.apply)(params, image)
    narrow: Any = jax.jit(precision.with_precision(network.apply, "bf16"))(params, image)
    assert narrow.dtype == jnp.bfloat16
    assert float(jnp.abs(narrow - wide).max()) < 0.02 * float(jnp.abs(wide).max())
    assert not np.array_equal(narrow, wide)


def test_bf16_is_refused_beside_64_bits() -> None:
    with (
        jax.enable_x64(True),
        pytest.raises(UserError, match="precision=bf16: found jax_enable_x64, expected JAX's default of 32 bits"),
    ):
        traced(CASES["ppo, MLP"], "bf16")
