"""The `frame_stack` setting for JAX environments; the stack is part of the environment's state. See `frame_stack`."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from runnel.environment import JaxEnvironment, TimeStep
from runnel.envs.frame_stack import FrameAxis, LeafPlace, places, stacked_spec
from runnel.envs.wrappers import JaxWrapper
from runnel.types import Array, PyTree


class StackedState(NamedTuple):
    """An episode in progress."""

    inner: PyTree  # the environment's own
    stacks: tuple[Array, ...]  # what is shown, of each leaf that is stacked


class FrameStackedJaxEnvironment(JaxWrapper):
    """A JAX environment whose observations are stacks of frames."""

    def __init__(self, environment: JaxEnvironment, frames: int):
        super().__init__(environment, stacked_spec(environment.spec, frames))
        self.frames = frames
        self._places = places(environment.spec)
        self._only = next(iter(environment.spec.groups)) if len(environment.spec.groups) == 1 else None

    def reset(self, key: Array) -> tuple[StackedState, PyTree]:
        inner, observation = self.environment.reset(key)
        stacks = tuple(
            axis.join([place.of(self._groups(observation))] * self.frames, jnp.concatenate)
            for place, axis in self._stacked()
        )
        return StackedState(inner, stacks), self._show(observation, stacks)

    def step(self, state: StackedState, action: PyTree, key: Array) -> tuple[StackedState, TimeStep]:
        inner, timestep = self.environment.step(state.inner, action, key)
        seen = self._groups(timestep.observation)
        stacks = tuple(
            _pushed(stack, place.of(seen), axis)
            for stack, (place, axis) in zip(state.stacks, self._stacked(), strict=True)
        )
        return StackedState(inner, stacks), timestep._replace(observation=self._show(timestep.observation, stacks))

    def _stacked(self) -> list[tuple[LeafPlace, FrameAxis]]:
        return [(place, place.axis) for place in self._places if place.axis is not None]

    def _groups(self, observation: PyTree) -> dict[str, PyTree]:
        return observation if self._only is None else {self._only: observation}

    def _show(self, observation: PyTree, stacks: tuple[Array, ...]) -> PyTree:
        """An observation with stacks in the place of its frames."""
        groups = self._groups(observation)
        stacked = {(place.group, place.path): stack for (place, _), stack in zip(self._stacked(), stacks, strict=True)}
        leaves = [stacked.get((place.group, place.path), place.of(groups)) for place in self._places]
        # Places are in the order in which JAX takes an observation apart: groups and keys sorted.
        ordered = sorted(zip(self._places, leaves, strict=True), key=lambda each: each[0].group)
        return jax.tree.unflatten(jax.tree.structure(observation), [leaf for _, leaf in ordered])


def _pushed(stack: Array, frame: Any, axis: FrameAxis) -> Array:
    """A stack without its oldest frame and with a new one."""
    frame = frame[..., None] if axis.new else frame
    rest = jax.lax.slice_in_dim(stack, frame.shape[axis.number], None, axis=axis.number)
    return jnp.concatenate([rest, frame], axis=axis.number)
