"""Evaluates the current actor-critic on an unroll that older parameters may have generated."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from runnel.nn.actor_critic import ActorCritic, Prediction
from runnel.ops.returns import next_values
from runnel.types import Array, PyTree, Trajectory


class Review(NamedTuple):
    """Predictions for an unroll; gradients flow through the distribution and `v_tm1` only."""

    distribution: Any  # [T, B] over what the policy draws
    v_tm1: Array  # [T, B] the value of what the agent saw
    v_t: Array  # [T, B] the value of its true successor; anything at all where the episode terminated


def predict(actor_critic: ActorCritic, observation: PyTree, first: Array, memory: PyTree) -> Prediction:
    """[T, B] predictions for every step, given the memory `[B, ...]` before the first."""
    if actor_critic.core is None:
        return jax.vmap(actor_critic.batch)(observation)
    return jax.vmap(actor_critic.unroll, (1, 1, 0), 1)(observation, first, memory)


def review(actor_critic: ActorCritic, trajectory: Trajectory) -> Review:
    """Policy and values of every step, with one pass through the network.

    With memory, each column is unrolled from the memory with which its first step was acted on.
    """
    prediction = predict(actor_critic, trajectory.observation, trajectory.first, trajectory.memory)
    # A bootstrap is a target, and nothing is learnt through a target.
    fixed, v_tm1, memory = jax.lax.stop_gradient((actor_critic, prediction.value, prediction.memory))

    def value(last_observation: PyTree, memory: PyTree) -> Array:
        return fixed.step(last_observation, memory).value

    return Review(prediction.distribution, prediction.value, next_values(value, v_tm1, trajectory, memory))
