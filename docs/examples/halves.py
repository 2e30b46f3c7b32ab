"""The update in two halves, so that a distribution can compute gradients in one place and apply them in another."""

from dataclasses import dataclass

import jax
import optax
from reinforce import Reinforce, State

from runnel import Algorithm


@dataclass(frozen=True)
class Halves(Reinforce):
    """Reinforce with `gradient` and `apply`."""

    learn = Algorithm.learn  # calls the two methods below; Reinforce overrides it

    def gradient(self, state, trajectory, key):
        advantage, target = self._targets(state, trajectory)
        return jax.grad(self._loss, has_aux=True)(state.params, trajectory, advantage, target)

    def apply(self, state, grads):
        changes, optimiser = self._optimiser().update(grads, state.optimiser)
        return State(optax.apply_updates(state.params, changes), optimiser)
