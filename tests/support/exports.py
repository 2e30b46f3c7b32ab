"""Policies of many kinds to export, and how they act."""

import json
import subprocess
import sys

import jax
import numpy as np
from parted import flags
from paths import SUPPORT

from runnel import algorithms
from runnel.config.policy_config import PolicyConfig
from runnel.evaluation.export import export
from runnel.observations import parted
from runnel.policy import Policy
from runnel.recording.parameters import parameter_leaves, stored_type
from runnel.types import AgentSpec, Box, Discrete, MultiDiscrete, NativeFormat

VECTOR = Box((4,))
PICTURE = Box((40, 36, 2), np.dtype(np.uint8), 0, 255)
CHANNELS_FIRST = Box((2, 36, 40), np.dtype(np.uint8), 0, 255)
GRID = Box((10, 10, 4), np.dtype(np.bool_), False, True)
BOUNDED = Box((2,), low=np.array([-1.0, 0.0], np.float32), high=np.array([2.0, 0.5], np.float32))
UNBOUNDED = Box((2,))
MASKED = parted(VECTOR, action_mask=flags(3))
TURNS = parted(VECTOR, action_mask=flags(3), active=flags(), state=Box((7,)))
TREE = {"a": VECTOR, "b": (Discrete(4), Box((2,), np.dtype(np.int32), 0, 9)), "c": MultiDiscrete((2, 3))}
FROM_3 = NativeFormat((), np.dtype(np.int64), 3)
NUMBERS = NativeFormat((2,), np.dtype(np.float64))
TEAM = {"agents": 3, "names": ("x", "y", "z")}

CASES = {
    "PPO, MLP, normalised observations, discrete": ("ppo", {}, AgentSpec(VECTOR, Discrete(4), native=FROM_3)),
    "PPO, CNN, discrete": ("ppo", {}, AgentSpec(PICTURE, Discrete(6))),
    "PPO, GRU, normalised observations, continuous": ("ppo", {"memory": "gru"}, AgentSpec(VECTOR, BOUNDED)),
    "SAC, MLP, continuous (tanh)": ("sac", {}, AgentSpec(VECTOR, BOUNDED, native=NUMBERS)),
    "DQN, MLP, discrete, masks, turns and a global state": ("dqn", {}, AgentSpec(TURNS, Discrete(3))),
}
"""By name: the algorithm, its settings, and what its agents see and do."""

MORE = {
    "PPO, LSTM, multi-discrete": ("ppo", {"memory": "lstm"}, AgentSpec(VECTOR, MultiDiscrete((2, 3)))),
    "PPO, MLP, multi-discrete, masks": (
        "ppo", {}, AgentSpec(parted(VECTOR, action_mask=flags(5)), MultiDiscrete((2, 3)))
    ),
    "PPO, MLP, continuous without bounds": ("ppo", {}, AgentSpec(VECTOR, UNBOUNDED)),
    "PPO, CNN with GRU, pictures with channels first": (
        "ppo", {"memory": "gru"}, AgentSpec(CHANNELS_FIRST, Discrete(6))
    ),
    "PPO, MinAtar's CNN": ("ppo", {"network": "runnel.nn:MinAtarCNN"}, AgentSpec(GRID, Discrete(6))),
    "PPO, dict and tuple observations": ("ppo", {}, AgentSpec(TREE, Discrete(3))),
    "A2C, MLP, continuous": ("a2c", {}, AgentSpec(VECTOR, BOUNDED)),
    "REINFORCE, MLP, discrete": ("reinforce", {}, AgentSpec(VECTOR, Discrete(3))),
    "IMPALA, CNN, discrete": ("impala", {}, AgentSpec(PICTURE, Discrete(3))),
    "DQN, dueling and noisy": ("dqn", {"dueling": True, "noisy": True}, AgentSpec(VECTOR, Discrete(3))),
    "DQN, CNN": ("dqn", {}, AgentSpec(PICTURE, Discrete(6))),
    "C51, MLP": ("c51", {}, AgentSpec(VECTOR, Discrete(3))),
    "DDPG, MLP, continuous (tanh)": ("ddpg", {}, AgentSpec(VECTOR, BOUNDED)),
    "TD3, MLP, continuous (tanh)": ("td3", {}, AgentSpec(VECTOR, BOUNDED)),
    "MAPPO, GRU, a team": ("mappo", {"memory": "gru"}, AgentSpec(TURNS, Discrete(3), **TEAM)),
    "VDN, a team": ("vdn", {}, AgentSpec(TURNS, Discrete(3), **TEAM)),
    "QMIX, a team": ("qmix", {}, AgentSpec(TURNS, Discrete(3), **TEAM)),
}  # fmt: skip

ROWS, STEPS = 68, 3


def policy_of(algorithm, spec, seed=0):
    """A policy with random parameters: no program is compiled to make it."""
    state = jax.eval_shape(lambda key: algorithm.init(key, spec), jax.eval_shape(lambda: jax.random.key(0)))
    drawing = np.random.default_rng(seed)

    def drawn(name, leaf):
        shape, dtype = stored_type(leaf)
        if dtype.kind != "f":
            return np.zeros(shape, dtype)
        if name.endswith("/variance"):
            return drawing.uniform(0.5, 2.0, shape).astype(dtype)
        values = 0.1 * drawing.standard_normal(shape)
        if len(shape) > 1:  # blind to what all inputs have in common, or all pictures would look alike
            above = tuple(range(len(shape) - 1))
            values = 15 * (values - values.mean(above, keepdims=True)) / np.sqrt(values[..., 0].size)
        return values.astype(dtype)

    arrays = {name: drawn(name, leaf) for name, leaf in parameter_leaves(state).items()}
    return Policy(algorithm, PolicyConfig({}, "agent", spec), arrays)


def made(name):
    algorithm, settings, spec = (CASES | MORE)[name]
    return policy_of(algorithms.load(algorithm)(**settings), spec)


class Trial:
    """What a policy does on observations, and what it was given, as `run_exported.py` reads it."""

    def __init__(self, policy, draw=None):
        """`draw(space, rng)`: [ROWS, ...] observations."""
        self.draw = draw or drawn
        drawing = np.random.default_rng(1)
        self.given, self.actions = {"steps": STEPS}, []
        for step in range(STEPS):
            first = np.full(ROWS, step == 0) | (drawing.random(ROWS) < (0.3 if step == 2 else 0.0))
            observation = self.draw(policy.spec.observation, drawing)
            self.actions.append(policy.act(observation, first))
            self.given[f"{step}/first"] = first
            self.given[f"{step}/agent"] = np.arange(ROWS)
            self.given |= {f"{step}/{name}": x for name, x in named(observation, policy.spec.observation)}


def drawn(space, drawing):
    """[ROWS, ...] observations."""
    if isinstance(space, dict):
        return {name: drawn(part, drawing) for name, part in space.items()}
    if isinstance(space, tuple):
        return tuple(drawn(part, drawing) for part in space)
    if isinstance(space, Discrete):
        return drawing.integers(0, space.n, ROWS).astype(space.dtype)
    if isinstance(space, MultiDiscrete):
        return drawing.integers(0, space.sizes, (ROWS, *space.shape)).astype(space.dtype)
    if space.dtype.kind == "f":
        return 2 * drawing.standard_normal((ROWS, *space.shape)).astype(space.dtype)
    if not space.shape:
        return np.ones(ROWS, space.dtype)
    # Pictures of few or many squares, which no network sees alike; of masks, with something legal.
    scales = [6 if n >= 36 else 1 for n in space.shape]
    coarse = [-(-n // scale) for n, scale in zip(space.shape, scales, strict=True)]
    values = drawing.integers(0, int(np.max(space.high)) + 1, (ROWS, *coarse))
    share = np.linspace(0.05, 0.95, ROWS).reshape(ROWS, *[1] * len(coarse))
    values = np.where(drawing.random(values.shape) < share, values, 0)
    for axis, (n, scale) in enumerate(zip(space.shape, scales, strict=True), 1):
        values = np.repeat(values, scale, axis).take(range(n), axis)
    if len(space.shape) == 1:
        values[..., [0, -1]] = 1
    return values.astype(space.dtype)


def named(observation, space):
    """Of every leaf, the input of its name."""
    if not isinstance(space, dict) or "observation" not in space:
        observation, space = {"observation": observation}, {"observation": space}
    for part, tree in observation.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            keys = [str(getattr(key, "key", getattr(key, "idx", None))) for key in path]
            yield "_".join([part, *keys]), leaf


def exported(names, format, root):
    """By name: what the policy does, and the directory with what its export does, in a process without Runnel."""
    found = {}
    for k, name in enumerate(names):
        policy = made(name)
        directory = export(policy, root / f"{format}-{k}", format)
        found[name] = Trial(policy), directory
        np.savez(directory / "trial.npz", **found[name][0].given)
    run([directory for _, directory in found.values()])
    return found


def run(directories):
    """Runs what `run_exported.py` says, with JAX or onnxruntime alone."""
    ended = subprocess.run(
        [sys.executable, "-I", str(SUPPORT / "run_exported.py"), json.dumps([str(each) for each in directories])],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
