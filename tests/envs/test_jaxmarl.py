"""The JaxMARL adapter: groups, parts of observations, how episodes end, and types that stay."""

import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runnel.environment import JaxEnvironment
from runnel.envs.jaxmarl import JaxMarlEnvironment
from runnel.envs.jaxmarl_catalog import ENVIRONMENTS, MABRAX
from runnel.errors import UserError
from runnel.observations import view
from runnel.types import Discrete

pytest.importorskip("jaxtyping")

FAST = {"MPE_simple_tag_v3", "coin_game", "switch_riddle"}
NAMES = [name for name, (kind, _) in ENVIRONMENTS.items() if kind is not MABRAX] + ["3m"]


def slow_unless_fast(names):
    return [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in names]


def types(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), tree)


def actions(environment, make):
    """The actions of all agents: `make(shape, dtype)` for each group."""
    groups = {
        name: make(((group.agents,) if group.agents > 1 else ()) + group.action.shape, group.action.dtype)
        for name, group in environment.spec.groups.items()
    }
    return groups if len(groups) > 1 else next(iter(groups.values()))


def check_types(environment):
    """A step leaves every type as a reset made it, weak types too, and the spec says which they are."""
    assert isinstance(environment, JaxEnvironment)
    key = jax.eval_shape(jax.random.key, 0)
    state, observation = jax.eval_shape(environment.reset, key)
    stepped, timestep = jax.eval_shape(environment.step, state, actions(environment, jax.ShapeDtypeStruct), key)
    assert types(stepped) == types(state)
    assert types(timestep.observation) == types(observation)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves((state, observation, timestep)))
    assert all(leaf.dtype == jnp.result_type(float) for leaf in jax.tree.leaves(timestep.reward))
    assert timestep.terminated.dtype == timestep.truncated.dtype == jnp.bool
    groups = environment.spec.groups
    by_group = observation if len(groups) > 1 else dict.fromkeys(groups, observation)
    for name, group in groups.items():
        rows = (group.agents,) if group.agents > 1 else ()
        for space, leaf in zip(jax.tree.leaves(group.observation), jax.tree.leaves(by_group[name]), strict=True):
            assert (leaf.shape, leaf.dtype) == ((*rows, *space.shape), space.dtype)


@pytest.mark.parametrize("name", slow_unless_fast(NAMES))
def test_types_are_stable(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        environment = JaxMarlEnvironment(name, state=True)
        check_types(environment)
        with jax.enable_x64(True):
            check_types(environment)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, (kind, _) in ENVIRONMENTS.items() if kind is MABRAX])
def test_types_are_stable_in_mabrax(name):
    pytest.importorskip("brax")
    check_types(JaxMarlEnvironment(name))


def rollout(environment, policy, steps, seed=0):
    """Steps of one environment, past an episode's end too; jitted, scanned."""

    @jax.jit
    def run(key):
        def step(now, key):
            state, observation = now
            state, timestep = environment.step(state, policy(observation, key), key)
            return (state, timestep.observation), (observation, timestep)

        return jax.lax.scan(step, environment.reset(key), jax.random.split(key, steps))[1]

    return jax.device_get(run(jax.random.key(seed)))


def legal(observation, key):
    """One of the legal actions."""
    return jax.random.categorical(key, jnp.where(view(observation).action_mask, 0.0, -jnp.inf))


def test_agents_alike_in_space_and_name_form_a_group():
    tag = JaxMarlEnvironment("MPE_simple_tag_v3").spec
    assert {name: (group.agents, group.observation.shape) for name, group in tag.groups.items()} == {
        "adversary": (3, (16,)),
        "agent": (1, (14,)),
    }
    adversary = JaxMarlEnvironment("MPE_simple_adversary_v3").spec
    assert {name: group.agents for name, group in adversary.groups.items()} == {"adversary": 1, "agent": 2}
    each = JaxMarlEnvironment("MPE_simple_tag_v3", groups="each").spec
    assert set(each.groups) == {"adversary_0", "adversary_1", "adversary_2", "agent_0"}
    one = JaxMarlEnvironment("MPE_simple_speaker_listener_v4", groups="one", state=True).spec.groups["agent"]
    assert (one.agents, one.action) == (2, Discrete(5))
    seen, mask, active, state = view(one.observation)
    assert (seen.shape, mask.shape, active, state.shape) == ((11 + 2,), (5,), None, (3 + 11,))


def test_different_agents_in_one_group_keep_their_own_actions():
    environment = JaxMarlEnvironment("MPE_simple_speaker_listener_v4", groups="one")
    _, observation = jax.jit(environment.reset)(jax.random.key(0))
    seen, mask, _, _ = view(observation)
    assert mask.sum(-1).tolist() == [3, 5]
    assert seen[:, -2:].tolist() == [[1, 0], [0, 1]]
    assert (seen[0, 3:-2] == 0).all()


def test_mpe_is_truncated_at_its_limit():
    environment = JaxMarlEnvironment("MPE_simple_tag_v3", max_steps=3, state=True)
    assert environment.spec.max_episode_steps == 3
    observation, steps = rollout(environment, lambda *_: actions(environment, jnp.zeros), 3)
    assert not steps.terminated.any()
    assert steps.truncated.tolist() == [False, False, True]
    assert steps.reward["adversary"].shape == (3, 3)
    assert steps.reward["agent"].shape == (3,)
    # Everybody's state is what all see, one after another.
    chasers, chased = view(observation["adversary"]), view(observation["agent"])
    all_seen = np.concatenate([chasers.seen.reshape(3, -1), chased.seen], axis=-1)
    np.testing.assert_array_equal(chased.state, all_seen)
    np.testing.assert_array_equal(chasers.state, all_seen[:, None].repeat(3, axis=1))


@pytest.mark.slow
def test_hanabi_is_played_in_turns_and_terminates():
    environment = JaxMarlEnvironment("hanabi")
    observation, steps = rollout(environment, legal, 60)
    _, mask, active, _ = view(observation)
    last = int(np.argmax(steps.terminated))
    assert steps.terminated.any()
    assert not steps.truncated.any()
    np.testing.assert_array_equal(active[: last + 1, 0], np.arange(last + 1) % 2 == 0)
    np.testing.assert_array_equal(active[: last + 1].sum(-1), 1)
    assert mask[~active].all()
    assert not mask[: last + 1, :, -1][active[: last + 1]].any()  # who has a turn cannot wait


@pytest.mark.slow
def test_the_dead_of_a_battle_are_not_active_and_its_end_is_a_termination():
    environment = JaxMarlEnvironment("3m", state=True)
    run = jax.jit(jax.vmap(lambda seed: _battle(environment, seed)))
    observation, steps = jax.device_get(run(jnp.arange(16)))
    _, mask, active, state = view(observation)
    assert (active[:, 0]).all()
    assert mask[~active].all()
    assert mask.any(-1).all()
    np.testing.assert_array_equal(state[:, :, 0], state[:, :, 2])
    returns = []
    for column in range(16):
        ends = steps.terminated[column] | steps.truncated[column]
        assert ends.any()
        last = int(np.argmax(ends))
        assert steps.truncated[column, last] == (last == 99)
        seen = view(jax.tree.map(lambda x, c=column, t=last: x[c, t], steps.observation))
        returns.append(steps.reward[column, : last + 1, 0].sum())
        if steps.terminated[column, last]:
            assert not seen.active.all() or returns[-1] > 1.99
    assert all(r < 1.001 or abs(r - 2) < 1e-3 for r in returns)
    won = [steps.metrics["is_success"][column, int(np.argmax(steps.terminated[column]))] for column in range(16)]
    assert won == [abs(r - 2) < 1e-3 for r in returns]


def _battle(environment, seed):
    def step(now, key):
        state, observation = now
        state, timestep = environment.step(state, legal(observation, key), key)
        return (state, timestep.observation), (observation, timestep)

    key = jax.random.key(seed)
    return jax.lax.scan(step, environment.reset(key), jax.random.split(key, 100))[1]


@pytest.mark.slow
def test_the_last_coin_game_is_not_the_end():
    environment = JaxMarlEnvironment("coin_game", num_inner_steps=2, num_outer_steps=2)
    _, steps = rollout(environment, lambda *_: actions(environment, jnp.zeros), 4)
    assert not steps.terminated.any()
    assert steps.truncated.tolist() == [False, False, False, True]


def test_to_tell_ends_the_riddle_at_its_limit_too():
    environment = JaxMarlEnvironment("switch_riddle")

    def tell(*_):
        return jnp.full(3, 2)

    state, _ = jax.jit(environment.reset)(jax.random.key(0))
    _, late = jax.jit(environment.step)(state._replace(time=jnp.int32(5)), tell(), jax.random.key(0))
    assert (bool(late.terminated), bool(late.truncated)) == (True, False)


@pytest.mark.slow
def test_kitchens_by_name_and_rewards_on_the_way():
    environment = JaxMarlEnvironment("overcooked", layout="coord_ring", max_steps=2, shaping=1.0)
    _, steps = rollout(environment, lambda *_: actions(environment, jnp.zeros), 2)
    assert steps.truncated.tolist() == [False, True]
    assert steps.observation.dtype == np.int8  # bytes would be scaled as a picture's are


@pytest.mark.slow
def test_rewards_on_the_way_are_no_part_of_the_score():
    def at_random(_, key):
        return jax.random.randint(key, (2,), 0, 6)

    def played(shaping):
        environment = JaxMarlEnvironment("overcooked", layout="cramped_room", max_steps=400, shaping=shaping)
        return rollout(environment, at_random, 400)[1]

    plain, shaped = played(0.0), played(1.0)
    assert plain.metrics == ()
    assert shaped.reward.sum() > plain.reward.sum()
    np.testing.assert_allclose(shaped.metrics["return"], np.cumsum(plain.reward.mean(-1)))


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("2s4z", {}, "no JaxMARL environment or map of SMAX is called '2s4z'; did you mean '2s3z'"),
        ("storm", {}, "no JaxMARL environment or map of SMAX is called 'storm'"),
        ("overcooked", {"layout": "cramped"}, "no layout is called 'cramped'; did you mean 'cramped_room'"),
        ("MPE_simple_spread_v3", {"max_stepss": 1}, "has no setting 'max_stepss'; did you mean 'max_steps'"),
        ("coin_game", {"num_inner": 1}, "cannot be made with num_inner"),
        ("MPE_simple_spread_v3", {"groups": "both"}, "groups is 'both'; expected kind, each or one"),
    ],
)
def test_mistakes_are_reported(name, settings, words):
    with pytest.raises(UserError, match=words):
        JaxMarlEnvironment(name, **settings)


def test_shaping_needs_something_to_shape_with():
    environment = JaxMarlEnvironment("switch_riddle", shaping=1.0)
    with pytest.raises(UserError, match="has no rewards on the way: leave out shaping"):
        check_types(environment)


def test_only_what_is_asked_for_is_imported():
    """Importing JaxMARL as a whole prints, and takes Brax, MuJoCo, SciPy and Matplotlib along."""
    code = (
        "import sys; from runnel.envs.jaxmarl_catalog import make; make('hanabi', 'hanabi', {});"
        "print([name for name in ('brax', 'mujoco', 'matplotlib', 'jaxmarl') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
