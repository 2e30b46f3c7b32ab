"""A JAX environment stepped from the host sees the episodes that a traced rollout sees."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from playing import empty, play, random_actions, same
from toys import Corridor, Tag

from runnel.envs.stepped import Stepped
from runnel.errors import UserError
from runnel.ops.autoreset import autoreset_step
from runnel.ops.random import ENVIRONMENT, base_key, environment_keys, reset_keys

ENVS, STEPS, SEED = 4, 50, 3
CORRIDOR = Stepped(Corridor())  # compiled once for all tests


def traced(environment, actions):
    """The computation of the fused program: one scan over all steps of all environments."""
    base, indices = base_key(SEED, ENVIRONMENT), jnp.arange(ENVS)

    def step(state, t_and_action):
        t, action = t_and_action
        keys = environment_keys(base, t, indices)
        fresh = jax.vmap(environment.reset)(keys[:, 1])
        state, observation, timestep = jax.vmap(partial(autoreset_step, environment))(state, action, keys[:, 0], fresh)
        return state, (observation, timestep)

    state, first = jax.vmap(environment.reset)(reset_keys(base, indices))
    _, (observation, timestep) = jax.lax.scan(step, state, (jnp.arange(STEPS), actions))
    return first, observation, timestep


def test_it_equals_the_traced_rollout_bit_for_bit():
    environment = CORRIDOR.environment
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 2, (STEPS, ENVS)).astype(np.int32)
    first, observation, timestep = jax.device_get(jax.jit(lambda a: traced(environment, a))(actions))

    vector, out = CORRIDOR.open(range(ENVS), SEED), empty(environment.spec, ENVS)
    vector.reset(out.observation)
    assert same(out.observation["agent"], first)
    ended = 0
    for t in range(STEPS):
        vector.step({"agent": actions[t]}, out)
        assert same(out.observation["agent"], observation[t])
        np.testing.assert_array_equal(out.reward["agent"], timestep.reward[t])
        np.testing.assert_array_equal(out.terminated, timestep.terminated[t])
        np.testing.assert_array_equal(out.truncated, timestep.truncated[t] & ~timestep.terminated[t])
        done = out.terminated | out.truncated
        ended += done.sum()
        assert same(out.last_observation["agent"][done], timestep.observation[t][done])
    assert ended > ENVS


def test_groups_have_a_row_an_agent():
    environment = Stepped(Tag())
    vector, out = environment.open(range(3), 0), empty(environment.spec, 3)
    vector.reset(out.observation)
    assert out.observation["runners"].shape == (6, 2)
    places = out.observation["runners"].reshape(3, 2, 2)[..., 0].copy()
    action = random_actions(environment.spec, 3, np.random.default_rng(0))
    vector.step(action, out)
    moved = np.clip(places + 0.1 * action["runners"].reshape(3, 2), -1, 1)
    np.testing.assert_allclose(out.observation["runners"].reshape(3, 2, 2)[..., 0], moved, atol=1e-6)
    np.testing.assert_allclose(out.reward["hunter"], -out.reward["runners"].reshape(3, 2).sum(1), atol=1e-6)


def test_its_state_can_be_kept_and_taken_up():
    vector, out = CORRIDOR.open(range(ENVS), 0), empty(CORRIDOR.spec, ENVS)
    vector.reset(out.observation)
    actions = [{"agent": np.array([t % 2, 1, 1, t % 3 > 0], np.int32)} for t in range(60)]
    for action in actions[:30]:
        vector.step(action, out)
    kept = jax.device_get(vector.state)
    runs = []
    for one in (vector, CORRIDOR.open(range(ENVS), 0)):
        one.state = kept
        seen = []
        for action in actions[30:]:
            one.step(action, out)
            seen.append(jax.tree.map(np.copy, out._replace(last_observation=None)))
        runs.append((seen, one.episode_numbers()))
    assert same(runs[0], runs[1])


def test_restoring_knows_the_step_from_a_first_episode_or_asks_for_it():
    early, late = play(CORRIDOR, 3), play(CORRIDOR, 40)
    assert any(episode.number == 0 for episode in early.episodes)
    assert same(play(CORRIDOR, 0, restore=early.episodes).first, early.steps[-1].observation)
    assert all(episode.number > 0 for episode in late.episodes)
    with pytest.raises(ValueError, match="`step` must be given"):
        play(CORRIDOR, 0, restore=late.episodes)


def test_pictures_come_from_the_environment():
    class Drawn(Corridor):
        def render(self, state):
            return np.full((2, 3, 3), state[0] * 10)

    vector = Stepped(Drawn()).open(range(2), 0, render=True)
    vector.reset(empty(Drawn.spec, 2).observation)
    picture = vector.render(1)
    assert (picture.shape, picture.dtype) == ((2, 3, 3), np.uint8)
    assert (picture == int(vector.state.environment[0][1]) * 10).all()
    with pytest.raises(UserError, match="corridor cannot be rendered"):
        Stepped(Corridor()).open(range(2), 0, render=True)
