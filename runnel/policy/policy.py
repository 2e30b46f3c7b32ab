"""A trained policy that acts on observations in the environment's own format, outside of a run.

    policy = runnel.load("runs/cartpole")
    observation, _ = env.reset()
    while not done:
        action = policy.act(observation)
        observation, reward, terminated, truncated, _ = env.step(action)

A policy knows its spaces, so it needs neither the environment nor its package. Observation statistics, masks and the
scale of actions are part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from runnel.algorithm import Algorithm, act_one, first_state
from runnel.config.policy_config import PolicyConfig
from runnel.errors import UserError, nearest
from runnel.graph.rollout_act import rollout_act
from runnel.ops import random
from runnel.ops.precision import check_precision, with_precision
from runnel.policy.acting_parameters import params_leaves
from runnel.policy.conversion import native_action_traced, native_actions, read_rows, read_traced
from runnel.recording import parameters, policy_directory
from runnel.types import Array, PyTree, zeros


class Policy:
    """One group's policy, with a memory for each row of a batch."""

    def __init__(
        self,
        algorithm: Algorithm,
        config: PolicyConfig,
        arrays: Mapping[str, np.ndarray],
        *,
        device: str | None = None,
        seed: int = 0,
        where: str = "this policy",
    ):
        """`arrays`: the learner's parameters by name; acting uses those below `params`. `seed`: of exploration.

        `where`: the name of the policy's file in errors.
        """
        self.algorithm, self.config, self.spec, self.arrays = algorithm, config, config.spec, dict(arrays)
        check_precision(config.precision)
        act = rollout_act(algorithm, config.group, config.spec)  # what the loop passes to a rollout
        self.acts_with = with_precision(act, config.precision)
        self.device = find_device(device)
        key = jax.eval_shape(lambda: jax.random.key(0))
        state = jax.eval_shape(lambda key: first_state(algorithm, key, config.spec, config.group), key)
        self.params: PyTree = jax.device_put(params_of(state, self.arrays, where), self.device)
        self._key = random.base_key(seed, random.ACT)
        self._steps = 0
        self._memory: PyTree = None  # [B, ...] after the last call
        self._jitted = jax.jit(self._act_batch, static_argnames="explore")

    # Acting

    def act(self, obs: Any, first: Any = None, mask: Any = None, explore: bool = False) -> Any:
        """The action for one observation, or the actions for a batch of them, as NumPy in the environment's own format.

        Whether `obs` is a batch follows from the shapes of the spec. A dict from agents' names to observations returns
        a dict of actions. `first`: whether an episode begins here, for each row; this resets the memory of the row. A
        new policy begins with empty memory. `mask`: the legal actions, where the policy was trained with masks.
        """
        if self.spec.names and isinstance(obs, Mapping) and obs and obs.keys() <= set(self.spec.names):
            return self._act_by_name(obs, first, mask, explore)
        if self.spec.names and isinstance(obs, Mapping) and not isinstance(self.spec.observation, dict):
            unknown = next((str(name) for name in obs if name not in self.spec.names), "")
            raise UserError(f"no agent is called '{unknown}'{nearest(unknown, self.spec.names)}")
        observation, single = read_rows(self.spec, obs, mask)
        rows = len(jax.tree.leaves(observation)[0])
        actions = self._act_rows(observation, self._first(first, rows, single), np.ones(rows, np.bool_), explore)
        native = native_actions(self.spec, actions)
        return native[0] if single else native

    def reset(self) -> None:
        """Clears the memory of all rows. Their number may change after it."""
        self._memory = None

    def initial_memory(self) -> PyTree:
        """One agent's memory at the start of an episode; `()` if the policy has none."""
        return self.algorithm.initial_memory(self.spec)

    def step(self, memory: PyTree, obs: PyTree, key: Array, explore: bool = False) -> tuple[Array, PyTree]:
        """One agent's action and its next memory: a pure function, to be traced, batched and differentiated by JAX.

            action, memory = jax.jit(policy.step)(policy.initial_memory(), observation, key)

        Whole numbers have at most 32 bits here.
        """
        observation = read_traced(self.spec, obs)
        act = self._act_one(self.params, observation, memory, key, jnp.int32(0), explore)
        return native_action_traced(self.spec, act.action), act.memory

    def __call__(self, obs: Any, **keywords: Any) -> Any:
        return self.act(obs, **keywords)

    def __repr__(self) -> str:
        made, config = type(self.algorithm).__name__, self.config
        at = f"version {config.version}, {config.env_steps} steps"
        return f"Policy({made} on {config.trained_on}, {config.group!r}, {at})"

    def _act_by_name(self, obs: Mapping[str, Any], first: Any, mask: Any, explore: bool) -> dict[str, Any]:
        names = self.spec.names
        given = {name: read_rows(self.spec, value, _of(mask, name)) for name, value in obs.items()}
        batches = [name for name, (_, single) in given.items() if not single]
        if batches:
            raise UserError(f"found a batch of observations for agent '{batches[0]}', expected one for each agent")
        full = zeros(self.spec.observation, len(names))
        for name, (observation, _) in given.items():
            row = names.index(name)
            jax.tree.map(lambda to, value, row=row: to.__setitem__(row, value[0]), full, observation)
        present = np.array([name in obs for name in names])
        if isinstance(first, Mapping):
            first = np.array([bool(first.get(name, False)) for name in names])
        acted = self._act_rows(full, self._first(first, len(names), False), present, explore)
        actions = native_actions(self.spec, acted)
        return {name: actions[names.index(name)] for name in obs}

    def _act_rows(self, observation: PyTree, first: np.ndarray, present: np.ndarray, explore: bool) -> np.ndarray:
        if self._memory is None:
            one = self.initial_memory()
            self._memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(first), *jnp.shape(x))), one)
        held = [len(leaf) for leaf in jax.tree.leaves(self._memory)]
        if held and held[0] != len(first):
            raise UserError(
                f"found a batch of {len(first)}, expected {held[0]} as before: the policy has a memory for each row; "
                "call reset() to begin with another number of rows"
            )
        step = np.uint32(self._steps % 2**32)
        action, self._memory = self._jitted(
            self.params, observation, self._memory, first, present, self._key, step, explore=bool(explore)
        )
        self._steps += 1
        return np.asarray(action)

    def _act_batch(
        self, params: PyTree, observation: PyTree, memory: PyTree, first: Array, present: Array, key: Array,
        step: Array, explore: bool,
    ) -> tuple[Array, PyTree]:  # fmt: skip
        rows = jnp.arange(len(first), dtype=jnp.int32)
        fresh = self.initial_memory()

        def select(where: Array, new: PyTree, old: PyTree) -> PyTree:
            def pick(a: Array, b: Array) -> Array:
                return jnp.where(where.reshape(-1, *[1] * (jnp.ndim(b) - 1)), a, b)

            return jax.tree.map(pick, new, old)

        began = select(first, fresh, memory)
        acts = jax.vmap(partial(self._act_one, params, explore=explore))(
            observation, began, random.column_keys(key, step, rows), rows
        )
        return acts.action, select(present, acts.memory, memory)

    def _act_one(
        self, params: PyTree, observation: PyTree, memory: PyTree, key: Array, index: Array, explore: bool
    ) -> Any:
        return act_one(self.acts_with, params, observation, memory, key, explore, index)

    def _first(self, first: Any, rows: int, single: bool) -> np.ndarray:
        if first is None:
            return np.zeros(rows, np.bool_)
        found = np.asarray(first, np.bool_)
        if found.shape not in ((), (rows,)) or (single and found.ndim):
            raise UserError(f"first: found shape {found.shape}, expected {() if single else (rows,)}")
        return np.broadcast_to(found, rows)

    # Keeping

    def save(self, directory: str | Path) -> Path:
        """Writes `config.json` and `model.safetensors` into a new directory, from which `runnel.load` reads it."""
        return policy_directory.write_new(Path(directory), [(self.config, self.arrays)])


class Policies:
    """The policies of several groups of one environment: agents' observations in, agents' actions out."""

    def __init__(self, groups: Mapping[str, Policy]):
        self.groups = dict(groups)
        self._group_of = {name: group for group, policy in self.groups.items() for name in policy.spec.names}

    def act(self, obs: Mapping[str, Any], first: Any = None, mask: Any = None, explore: bool = False) -> dict[str, Any]:
        """Actions by agent, or by group where `obs` has groups. `first` and `mask` are for all, or dicts like `obs`."""
        if not isinstance(obs, Mapping) or not obs:
            raise UserError(f"found {type(obs).__name__}, expected observations by agent: {', '.join(self._group_of)}")
        if obs.keys() <= self.groups.keys():
            return {
                group: self.groups[group].act(value, _of(first, group), _of(mask, group), explore)
                for group, value in obs.items()
            }
        for name in obs:
            if name in self.groups and name not in self._group_of:
                others = ", ".join(str(each) for each in obs if each not in self.groups)
                raise UserError(f"found the group '{name}' beside {others}; expected groups alone, or agents alone")
            if name not in self._group_of:
                raise UserError(
                    f"no agent or group is called '{name}'{nearest(str(name), [*self._group_of, *self.groups])}"
                )
        actions: dict[str, Any] = {}
        for group, policy in self.groups.items():
            own = {name: value for name, value in obs.items() if self._group_of[name] == group}
            if own:
                actions |= policy.act(own, first, mask, explore)
        return {name: actions[name] for name in obs}

    def reset(self) -> None:
        """Clears the memory of all policies."""
        for policy in self.groups.values():
            policy.reset()

    def save(self, directory: str | Path) -> Path:
        """Writes each group's policy into a directory below a new one, from which `runnel.load` reads all of them."""
        return policy_directory.write_new(
            Path(directory), [(policy.config, policy.arrays) for policy in self.groups.values()]
        )

    def __getitem__(self, group: str) -> Policy:
        if group not in self.groups:
            raise UserError(f"there is no group '{group}'{nearest(group, self.groups)}")
        return self.groups[group]

    def __call__(self, obs: Mapping[str, Any], **keywords: Any) -> dict[str, Any]:
        return self.act(obs, **keywords)

    def __repr__(self) -> str:
        return f"Policies({', '.join(map(repr, self.groups.values()))})"


def find_device(name: str | None) -> Any:
    """A device by its platform, such as `cpu` or `gpu`, or by platform and number, `gpu:1`."""
    if name is None:
        return jax.devices()[0]
    platform, _, number = str(name).partition(":")
    try:
        devices = jax.devices(platform)
    except RuntimeError:
        known = sorted({"cpu", *(device.platform for device in jax.devices())})
        raise UserError(f"device='{name}': found no such device; expected one of {', '.join(known)}") from None
    index = int(number) if number.isdigit() else 0
    if (number and not number.isdigit()) or index >= len(devices):
        raise UserError(f"device='{name}': found {len(devices)} devices of {platform}, expected a number below that")
    return devices[index]


def params_of(state: PyTree, arrays: Mapping[str, np.ndarray], where: str) -> PyTree:
    """The `params` of a state of this type, with values from a file."""
    wanted = params_leaves(state)
    parameters.check_fit(arrays, wanted, where)
    leaves = [parameters.as_leaf(arrays[name], leaf) for name, leaf in wanted.items()]
    return jax.tree.unflatten(jax.tree.structure(state.params), leaves)


def _of(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else value
