"""Several groups of agents, each with its own policy and learner, in one environment."""

import jax.numpy as jnp
import numpy as np
import pytest
from toys import Drift, State, Tag

from runnel.errors import UserError
from runnel.graph.flow import trace
from runnel.runtime.programs.loop import Loop
from runnel.runtime.single_process.compiled import CompiledProgram
from runnel.runtime.single_process.stepped import SteppedProgram


def never():
    return False


@pytest.fixture(scope="module")
def loop():
    return Loop(trace(Drift(), Tag.spec, 6), Tag())


def test_each_group_has_its_columns_its_learner_and_its_return(loop):
    assert loop.graph.columns("hunter") == 6
    assert loop.graph.columns("runners") == 12
    program = SteppedProgram(loop, None, 3)
    progress = program.run(5, 60, np.inf, never)
    assert progress.updates == 10
    # Steps 4 an iteration, episodes of 10 steps: 2 have ended in each of 6 environments.
    assert progress.episodes == 12
    sums = {group: float(state.params["sum"]) for group, state in program.carry.states.items()}
    assert sums["hunter"] < 0 < sums["runners"]
    # The hunter gains what both runners lose; a group's return is the mean over its agents.
    np.testing.assert_allclose(progress.group_returns["hunter"], -2 * progress.group_returns["runners"], rtol=1e-5)


def test_each_group_begins_with_a_state_made_from_its_own_spec():
    class Sized(Drift):
        def init(self, key, spec):
            return State({**super().init(key, spec).params, "weights": jnp.zeros(spec.observation.shape)}, ())

        def learn(self, state, trajectory, key):
            return state, {}

    states = Loop(trace(Sized(), Tag.spec, 2), Tag()).init(jnp.uint32(0)).states
    assert {group: state.params["weights"].shape for group, state in states.items()} == {
        "hunter": (3,),
        "runners": (2,),
    }


def test_inline_and_fused_agree_on_every_group(loop):
    import jax

    inline, fused = SteppedProgram(loop, None, 3), CompiledProgram(loop, jax.devices()[:1], 3)
    inline.run(4, 60, np.inf, never)
    while int(fused.carry.iteration) < 4:
        fused.run(4 - int(fused.carry.iteration), 60, np.inf, never)
    for group in loop.groups:
        np.testing.assert_allclose(
            inline.carry.states[group].params["sum"], fused.carry.states[group].params["sum"], rtol=1e-6
        )


def test_a_loop_said_once_applies_to_every_group():
    class Once(Drift):
        def loop(self, flow):
            flow.learn(self.learn, flow.rollout(self.act, steps=self.unroll))

    named = {node.name for node in trace(Once(), Tag.spec, 2).nodes.values()}
    assert {"hunter/learn", "runners/learn", "hunter/rollout", "runners/rollout"} < named


def test_a_group_without_a_rollout_and_an_unknown_group_are_refused():
    class Lazy(Drift):
        def loop(self, flow):
            agents = flow.agents("hunter")
            agents.learn(self.learn, agents.rollout(self.act, steps=1))

    with pytest.raises(UserError, match="adds no rollout for group runners"):
        trace(Lazy(), Tag.spec, 2)

    class Typo(Drift):
        def loop(self, flow):
            flow.agents("runner")

    with pytest.raises(UserError, match="no group 'runner'; did you mean 'runners'"):
        trace(Typo(), Tag.spec, 2)


def test_a_value_of_one_group_is_refused_by_another():
    class Mixed(Drift):
        def loop(self, flow):
            trajectory = flow.agents("hunter").rollout(self.act, steps=1)
            flow.agents("runners").learn(self.learn, trajectory)

    with pytest.raises(UserError, match="a value of group hunter is used by group 'runners'"):
        trace(Mixed(), Tag.spec, 2)


def test_columns_are_environment_times_agent():
    loop = Loop(trace(Drift(), Tag.spec, 3), Tag())
    _, trajectories, _ = loop.unroll(loop.init(jnp.uint32(0)))
    runners = trajectories["runners"]
    assert runners.observation.shape == (4, 6, 2)
    np.testing.assert_array_equal(runners.index, jnp.arange(6))
    # Both runners of an environment see the same hunter: position minus distance.
    hunter = runners.observation[..., 0] - runners.observation[..., 1]
    np.testing.assert_allclose(hunter[:, 0::2], hunter[:, 1::2], atol=1e-6)
    np.testing.assert_array_equal(runners.first[:, 0::2], runners.first[:, 1::2])
