"""VDN and QMIX: joint steps of teams, what a target is made of, and who explores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from teams import Meeting

from runnel.algorithms.qmix import QMIX, MixedValues
from runnel.algorithms.vdn import VDN
from runnel.errors import UserError
from runnel.graph.flow import trace
from runnel.observations import parted
from runnel.ops.n_step import Transition
from runnel.types import Box, EnvSpec

WALKERS = Meeting.spec.groups["walkers"]
BOTH = pytest.mark.parametrize("kind", [VDN, QMIX])


def steps(n=8, discount=0.5):
    """Random ones of two walkers, the second of whom rests in some."""
    keys = jax.random.split(jax.random.key(0), 6)

    def observed(k, j):
        active = jnp.stack([jnp.ones(n, bool), jax.random.bernoulli(keys[j], 0.5, (n,))], -1)
        legal = jnp.ones((n, 2, 3), bool).at[:, 0, 0].set(False)
        return parted(jax.random.normal(keys[k], (n, 2, 2)), legal, active, jax.random.normal(keys[j], (n, 3)))

    action = jax.random.randint(keys[4], (n, 2), 0, 3)
    reward = jax.random.normal(keys[5], (n,))
    return Transition(observed(0, 1), action, reward, jnp.full(n, discount), observed(2, 3))


@pytest.mark.parametrize(("kind", "x64"), [(VDN, False), (QMIX, True)])
def test_every_group_has_a_replay_of_its_teams(kind, x64):
    with jax.enable_x64(x64):
        graph = trace(kind(n_step=3), Meeting.spec, 4)
    joint, alone = (graph.nodes[f"{group}/map"].output for group in ("walkers", "watcher"))
    assert joint.a_tm1.shape == (4 * 4, 2)
    assert joint.s_t["observation"].shape == (4 * 4, 2, 2)
    assert joint.s_t["state"].shape == (4 * 4, 3)  # once for the team
    assert alone.a_tm1.shape == (4 * 4, 1)
    assert {"walkers/apply", "watcher/apply"} < set(graph.nodes)


def test_only_discrete_actions():
    with pytest.raises(UserError, match="VDN: found Box actions of 'toy', expected Discrete"):
        trace(VDN(), EnvSpec.single("toy", Box((2,)), Box((1,))), 4)


@BOTH
def test_the_target_is_the_value_of_what_each_agent_likes_best(kind):
    algorithm, items = kind(hidden=(8,)), steps()

    @jax.jit
    def losses(key, other):
        state = algorithm.init(key, WALKERS)._replace(target=algorithm.init(other, WALKERS).target)
        values, target = state.params.values, state.target
        online = MixedValues(values, state.mixer) if kind is QMIX else values.of
        late = target if kind is QMIX else target.of

        def total(team, observation, action):  # [n]
            return jax.vmap(lambda o, a: jnp.sum(team(o, a)))(observation, action)

        best = jax.vmap(values.greedy)(items.s_t)
        wanted = items.r_t + items.discount_t * total(late, items.s_t, best)
        errors = wanted - total(online, items.s_tm1, items.a_tm1)
        return algorithm.gradient(state, items, key)[1].loss, (errors**2).mean() / 2, best

    loss, by_hand, best = losses(jax.random.key(0), jax.random.key(1))
    assert (best[:, 0] != 0).all()  # that is illegal
    np.testing.assert_allclose(loss, by_hand, rtol=1e-4)


def test_exploration_is_among_legal_actions_and_ends():
    algorithm = VDN(hidden=(8,), batch=64, samples_per_insert=8.0, epsilon_end=0.0, epsilon_steps=800)
    params = jax.jit(lambda key: algorithm.init(key, WALKERS))(jax.random.key(0)).params
    observation = parted(jnp.ones(2), jnp.array([True, False, True]), jnp.bool_(True), jnp.ones(3))

    @jax.jit
    def actions(params):
        keys = jax.random.split(jax.random.key(0), 500)
        return jax.vmap(lambda key: algorithm.act(params, observation, (), key, True, jnp.int32(1)).action)(keys)

    np.testing.assert_allclose(np.bincount(actions(params), minlength=3) / 500, [0.5, 0, 0.5], atol=0.1)
    assert len(set(actions(params._replace(updates=jnp.int32(100))).tolist())) == 1
