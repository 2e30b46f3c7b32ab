"""For tests of DDPG, TD3 and SAC: transitions, and what networks make of them, worked out by NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from runnel.ops.n_step import Transition
from runnel.types import AgentSpec, Box

LOW, HIGH = np.array([-2.0, 0.0]), np.array([2.0, 1.0])
SEEN, ACTION = Box((3,)), Box((2,), np.dtype(np.float32), LOW, HIGH)
SPEC = AgentSpec(SEEN, ACTION)
SMALL = {"hidden": (8,), "batch": 16}
KEY = jax.random.key(0)
H = 1e-5


def transitions(n=16, seed=0):
    """Any; after some of them nothing follows."""
    rng = np.random.default_rng(seed)
    s_tm1, s_t = rng.normal(size=(2, n, 3))
    discount_t = np.where(rng.random(n) < 0.3, 0.0, 0.9)
    items = Transition(s_tm1, rng.uniform(LOW, HIGH, (n, 2)), rng.normal(size=n), discount_t, s_t)
    return jax.tree.map(lambda x: x.astype(np.float32), items)


def shaken(tree, seed, by=0.3):
    """The same with other numbers."""
    leaves, structure = jax.tree.flatten(tree)
    rng = np.random.default_rng(seed)
    return structure.unflatten([x + by * jnp.asarray(rng.normal(size=x.shape), x.dtype) for x in leaves])


def blank(kind):
    """A state with nothing but zeros: to begin as an algorithm does takes longer than most of these tests."""
    state = jax.eval_shape(lambda key: kind(**SMALL).init(key, SPEC), KEY)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), state)


def moved(kind):
    """A state in which everything differs."""
    state = blank(kind)
    params = state.params._replace(policy=shaken(state.params.policy, 1))
    return state._replace(params=params, critics=shaken(state.critics, 2), target=shaken(state.target, 3))


@functools.cache
def gradient_of(algorithm):
    """Compiled once."""
    return jax.jit(algorithm.gradient)


@functools.cache
def apply_of(algorithm):
    return jax.jit(algorithm.apply)


def check_slope(loss, tree, grads, seed=0):
    """The gradients at a tree are those of a slow loss, as far as a small step in one direction tells."""
    leaves, structure = jax.tree.flatten(jax.tree.map(lambda x: np.asarray(x, np.float64), tree))
    rng = np.random.default_rng(seed)
    way = [rng.normal(size=x.shape) for x in leaves]
    ahead, behind = (loss(structure.unflatten([x + h * d for x, d in zip(leaves, way, strict=True)])) for h in (H, -H))
    told = sum(float((np.asarray(g) * d).sum()) for g, d in zip(jax.tree.leaves(grads), way, strict=True))
    np.testing.assert_allclose(told, (ahead - behind) / (2 * H), rtol=1e-3, atol=1e-5)


def layer(params, x):
    return x @ np.asarray(params["kernel"], np.float64) + np.asarray(params["bias"], np.float64)


def slow_network(torso, head, x):
    """[batch, outputs] of rectified layers and a last one."""
    layers = torso["params"]["MLP_0"]
    for name in sorted(layers):
        x = np.maximum(layer(layers[name], x), 0.0)
    return layer(head["params"], x)


def slow_policy(policy, s):
    """[batch, outputs] of a policy's last layer."""
    return slow_network(policy.torso, policy.head, np.asarray(s, np.float64))


def slow_critics(critics, s, unit):
    """[batch, critics]"""
    seen = np.concatenate([s, unit], -1).astype(np.float64)
    each = [jax.tree.map(lambda x, k=k: x[k], (critics.torso, critics.head)) for k in range(critics.count)]
    return np.concatenate([slow_network(*layers, seen) for layers in each], -1)


def slow_unit(action):
    """[batch, 2] an action in units in which its space reaches from -1 to 1."""
    return (np.asarray(action, np.float64) - LOW) / (HIGH - LOW) * 2 - 1


def assert_same(found, wanted, rtol=1e-4, atol=1e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), found, wanted)


def differ(one, other):
    return [bool((a != b).any()) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)]
