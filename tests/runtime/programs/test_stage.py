"""The inputs of the nodes after the rollout."""

import jax
import numpy as np
from toys import Corridor, Reinforce

from runnel.graph.flow import trace
from runnel.runtime.programs.loop import Loop
from runnel.runtime.single_process.stepped import SteppedProgram


class Drawing(Reinforce):
    """Two stages that draw a number each, which `learn` shows."""

    def loop(self, flow):
        def first(trajectory, key):
            return trajectory, jax.random.uniform(key)

        def second(drawn, key, params):
            return (*drawn, jax.random.uniform(key), params["b"].sum())

        flow.learn(self.learn, flow.map(second, flow.map(first, flow.rollout(self.act, 2))))

    def learn(self, state, batch, key):
        trajectory, first, second, bias = batch
        state, _ = super().learn(state, trajectory, key)
        return state, {"first": first, "second": second, "bias": bias}


def test_every_map_has_a_key_of_its_own_in_every_iteration_and_the_newest_parameters():
    program = SteppedProgram(Loop(trace(Drawing(), Corridor.spec, 2), Corridor()), None, 0)
    shown, biases = [], []
    for _ in range(3):
        biases.append(float(np.sum(program.carry.states["agent"].params["b"])))
        shown.append(program.run(1, 60, np.inf, lambda: False).out)
    numbers = [out[name] for out in shown for name in ("first", "second")]
    assert len(set(numbers)) == 6
    np.testing.assert_allclose([out["bias"] for out in shown], biases, atol=1e-6)
