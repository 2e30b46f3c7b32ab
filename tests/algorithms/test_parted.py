"""Policy gradients with illegal actions, which are never drawn, and idle steps, which teach the policy nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from actor_critics import SEEN, assert_same, play
from parted import BRIBE, LIMIT, flags

import runnel
from runnel.algorithms.a2c import A2C
from runnel.algorithms.impala import IMPALA
from runnel.algorithms.ppo import PPO
from runnel.algorithms.reinforce import Reinforce
from runnel.errors import UserError
from runnel.evaluation.evaluate import evaluate
from runnel.graph.flow import trace
from runnel.observations import parted
from runnel.types import AgentSpec, Box, Discrete, EnvSpec

KEY = jax.random.key(0)
ACTION = Discrete(3)
SMALL = {"hidden": (8,), "entropy_cost": 0.1}
CASES = {
    "ppo": PPO(**SMALL),
    "ppo, V-trace": PPO(advantages="vtrace", normalise_advantages=False, **SMALL),
    "a2c": A2C(**SMALL),
    "impala": IMPALA(**SMALL),
    "reinforce": Reinforce(**SMALL),
    "reinforce, no baseline": Reinforce(baseline=False, **SMALL),
}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in CASES if name != "impala"]


@pytest.mark.parametrize(
    "environment", ["parted:Forbidden", pytest.param("parted:ForbiddenPairs", marks=pytest.mark.slow)]
)
def test_illegal_actions_are_never_chosen_though_they_would_pay(environment, tmp_path):
    algorithm = PPO(learning_rate=1e-2, unroll=8, hidden=(16,), discount=0.0)
    run = runnel.train(algorithm, environment, envs=16, steps=8 * 16 * 60, seed=1, run_dir=tmp_path / "run", quiet=True)
    assert 0.85 * LIMIT < run.result["mean_return"] <= LIMIT < BRIBE / 2
    played = evaluate(tmp_path / "run", episodes=16)
    assert np.max(played["returns"]) <= LIMIT


def test_a_mask_that_does_not_fit_is_refused():
    def traced(mask_size, action):
        trace(A2C(), EnvSpec.single("toy", parted(SEEN, action_mask=flags(mask_size)), action), 8)

    with pytest.raises(UserError, match=r"shape \(2,\), expected \(3,\): a bool"):
        traced(2, Discrete(3))
    with pytest.raises(UserError, match="actions are a Box"):
        traced(2, Box((2,)))


def learner(algorithm, space):
    """The gradient of one update from an unroll, before it is clipped."""
    state = algorithm.init(KEY, AgentSpec(space, ACTION))

    @jax.jit
    def gradient(played):
        if isinstance(algorithm, PPO):
            batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), algorithm.batch(state, played)[0])
            return jax.grad(algorithm.loss, has_aux=True)(state.params.actor_critic, batch)[0]
        grads = algorithm.gradient(state, played, KEY)[0]
        return grads if isinstance(algorithm, Reinforce) else grads.actor_critic

    return gradient


@pytest.mark.parametrize("name", ["impala", *SLOW])
def test_idle_steps_teach_the_policy_nothing_and_the_value_as_much_as_others(name):
    algorithm = CASES[name]
    played = play(algorithm, algorithm.init(KEY, AgentSpec(SEEN, ACTION)).params, ACTION)
    plain, gradient = learner(algorithm, SEEN)(played), learner(algorithm, parted(SEEN, active=flags()))

    def learnt(active, action):
        seen, last = (parted(x, active=active) for x in (played.observation, played.last_observation))
        return gradient(played._replace(observation=seen, last_observation=last, action=action))

    assert_same(learnt(jnp.ones((6, 4), bool), played.action), plain)
    active = jnp.asarray(np.random.default_rng(0).random((6, 4)) < 0.6)
    found, another = learnt(active, played.action), (played.action + 1) % 3
    assert_same(learnt(active, jnp.where(active, played.action, another)), found)
    changed = learnt(active, jnp.where(active, another, played.action))
    assert abs(changed.policy["params"]["Dense_0"]["kernel"] - found.policy["params"]["Dense_0"]["kernel"]).max() > 1e-4
    assert_same(found.critic, plain.critic)


@pytest.mark.slow
def test_agents_that_take_turns_learn_from_their_own(tmp_path):
    """The reward of a step without a turn would teach a simple policy to name 1 everywhere."""
    algorithm = PPO(learning_rate=1e-2, unroll=8, hidden=(16,), discount=0.0)
    run = runnel.train(
        algorithm, "parted:Turns", envs=16, steps=8 * 16 * 30, seed=1, run_dir=tmp_path / "run", quiet=True
    )
    seen = parted(jnp.eye(2, dtype=jnp.float32), active=jnp.ones(2, bool))
    distribution = run.params.actor_critic.batch(seen).distribution
    np.testing.assert_array_equal(distribution.mode(), [0, 1])
    unseen = parted(jnp.zeros((1, 2), jnp.float32), active=jnp.zeros(1, bool))
    assert run.params.actor_critic.batch(unseen).distribution.entropy() > 0.1
