"""The only place where a JAX environment's next episode begins."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from runnel.environment import JaxEnvironment, TimeStep
from runnel.ops.scatters import suited_to_device
from runnel.types import Array, PyTree


def reset_of(environment: JaxEnvironment) -> Callable[[Array, Array], tuple[PyTree, PyTree]]:
    """The environment's reset as a function of a key and of the environment's index in the run.

    An environment that is not the same at every index has a method `reset_at` instead of being reset by a key alone.
    """
    by_index: Callable[[Array, Array], tuple[PyTree, PyTree]] | None = getattr(environment, "reset_at", None)
    return by_index if by_index is not None else lambda key, index: environment.reset(key)


def autoreset_step(
    environment: JaxEnvironment, state: PyTree, action: PyTree, step_key: Array, fresh: tuple[PyTree, PyTree]
) -> tuple[PyTree, PyTree, TimeStep]:
    """Steps one environment and, if its episode ended, continues with `fresh`: the result of a reset.

    Returns the state and the observation to act on next, and the step itself, whose observation is the
    true last one of the episode that ended.
    """
    stepped, timestep = suited_to_device(environment.step)(state, action, step_key)
    fresh_state, first_observation = fresh
    done = timestep.terminated | timestep.truncated

    def pick(new: Array, old: Array) -> Array:
        return jnp.where(done, new, old)

    return (
        jax.tree.map(pick, fresh_state, stepped),
        jax.tree.map(pick, first_observation, timestep.observation),
        timestep,
    )
