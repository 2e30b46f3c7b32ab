"""A group that is played by several stored policies."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runnel.algorithm import Algorithm, act_one
from runnel.algorithms.opponent_pool import DRAW, LOSS, NOBODY, WIN, OpponentPool, PoolMemory, PoolStep
from runnel.matchmaking import Latest
from runnel.types import Act, AgentSpec, Box, Discrete, Trajectory

SPEC = AgentSpec(Box((2,)), Discrete(100))


class State(NamedTuple):
    params: jax.Array


class Constant(Algorithm):
    """Its action is its parameter, and its memory counts the steps of the episode."""

    def init(self, key, spec):
        return State(jnp.int32(0))

    def initial_memory(self, spec):
        return jnp.int32(0)

    def act(self, params, observation, memory, key, explore):
        return Act(params, memory + 1, {"unused": params})

    def loop(self, flow):
        raise NotImplementedError


def pool_of(*actions: int, weights=None) -> tuple[OpponentPool, object]:
    pool = OpponentPool(Constant(), Latest(places=len(actions)))
    weights = [1.0] * len(actions) if weights is None else weights
    return pool, pool.filled([jnp.int32(a) for a in actions], weights, list(range(len(actions))))


def act(pool, state, memory, rows, seed=0, agents=1):
    keys = jax.random.split(jax.random.key(seed), rows)
    environment_keys = keys[jnp.arange(rows) // agents * agents]

    def one(memory, key, environment_key):
        return act_one(pool.act, state.params, jnp.zeros(2), memory, key, True, jnp.int32(0), environment_key)

    return jax.vmap(one)(memory, keys, environment_keys)


def fresh(pool, rows):
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (rows, *x.shape)), pool.initial_memory(SPEC))


def test_the_policy_that_begins_an_episode_plays_it_to_its_end():
    pool, state = pool_of(7, 11, 13)
    first = act(pool, state, fresh(pool, 64), 64)
    assert set(np.asarray(first.action).tolist()) == {7, 11, 13}
    later = first
    for seed in range(1, 4):
        later = act(pool, state, later.memory, 64, seed)
        assert np.asarray(later.action).tolist() == np.asarray(first.action).tolist()
    assert np.asarray(later.memory.policy).tolist() == [4] * 64  # each policy's own memory goes on


def test_places_play_as_often_as_their_probabilities_say():
    pool, state = pool_of(0, 1, 2, weights=[2.0, 0.0, 6.0])
    acted = act(pool, state, fresh(pool, 4000), 4000)
    share = np.bincount(np.asarray(acted.action), minlength=3) / 4000
    np.testing.assert_allclose(share, [0.25, 0.0, 0.75], atol=0.03)


def test_all_agents_of_a_group_in_an_environment_have_the_same_policy():
    pool, state = pool_of(3, 4, 5)
    acted = np.asarray(act(pool, state, fresh(pool, 60), 60, agents=3).action).reshape(20, 3)
    assert (acted == acted[:, :1]).all()
    assert len(set(acted[:, 0].tolist())) == 3


def test_one_observation_is_answered_without_a_batch():
    pool, state = pool_of(3, 4)
    memory = PoolMemory(jnp.int32(5), jnp.int32(1), jnp.int32(1))
    acted = pool.act(state.params, jnp.zeros(2), memory, jax.random.key(0), True)
    assert (int(acted.action), int(acted.memory.policy)) == (4, 6)


def test_members_of_one_program_have_pools_of_their_own():
    pool, one = pool_of(1, 2)
    _, other = pool_of(30, 40)
    params = jax.tree.map(lambda *x: jnp.stack(x), one.params, other.params)
    memory = jax.tree.map(lambda *x: jnp.stack(x), *[fresh(pool, 8)] * 2)

    def member(params, memory):
        return act(pool, one._replace(params=params), memory, 8).action

    actions = np.asarray(jax.vmap(member)(params, memory))
    assert set(actions[0].tolist()) <= {1, 2}
    assert (actions[1] == actions[0] * 10 + 20).all()


def trajectory(place, serial, reward, terminated, before=0.0) -> Trajectory:
    """The memory of one column: a list has an entry for each step."""

    def column(x, dtype=jnp.float32):
        return jnp.asarray(x, dtype)[:, None]

    steps = len(reward)
    return Trajectory(
        observation=jnp.zeros((steps, 1, 2)), action=column([0] * steps, jnp.int32), reward=column(reward),
        terminated=column(terminated, bool), truncated=column([False] * steps, bool),
        last_observation=jnp.zeros((steps, 1, 2)), first=column([False] * steps, bool), memory=(),
        extras=PoolStep(column(place, jnp.int32), column(serial, jnp.int32)), discounted_sum=jnp.asarray([before]),
        version=jnp.zeros(1, jnp.int32), index=jnp.zeros(1, jnp.int32),
    )  # fmt: skip


def test_results_are_counted_by_place_at_the_ends_of_episodes():
    pool, state = pool_of(0, 1, 2)
    place, serial = [0, 0, 1, 2, 2, 2], [0, 0, 1, 2, 2, 2]
    after, out = pool.learn(
        state, trajectory(place, serial, [0, 1, -2, 1, -1, 9], [0, 1, 1, 0, 1, 0], before=-3.0), jax.random.key(0)
    )
    games = np.asarray(after.results.games)
    # The first episode began with -3 in the unroll before; the last one has not ended.
    assert games[0, LOSS] == games[1, LOSS] == games[2, DRAW] == 1
    assert games.sum() == 3 == out["games"]
    assert np.asarray(after.results.returns).tolist() == [-2.0, -2.0, 0.0]
    again, _ = pool.learn(after, trajectory([1], [1], [1.0], [1]), jax.random.key(0))
    assert np.asarray(again.results.games)[1, WIN] == 1
    assert np.asarray(again.results.games).sum() == 4


def test_an_episode_whose_place_got_another_policy_is_no_result():
    pool, state = pool_of(0, 1)
    state = state._replace(params=state.params._replace(serials=jnp.asarray([0, 9])))
    after, _ = pool.learn(state, trajectory([1, 0], [1, 0], [1.0, 1.0], [1, 1]), jax.random.key(0))
    assert np.asarray(after.results.games).sum(1).tolist() == [1.0, 0.0]


def test_no_place_acts_before_an_episode_begins():
    pool, _ = pool_of(0, 1)
    assert int(pool.initial_memory(SPEC).place) == NOBODY


@pytest.mark.parametrize("attribute", ["actions", "central", "max_staleness"])
def test_a_pool_can_do_what_its_policies_can(attribute):
    pool, _ = pool_of(0)
    assert getattr(pool, attribute) == getattr(Constant(), attribute)
