"""Properties of DDPG, TD3 and SAC alike: bounds, warm-up, truncation, refusals, and a bandit that is solved."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from continuous import (
    ACTION,
    HIGH,
    KEY,
    LOW,
    SEEN,
    SMALL,
    apply_of,
    assert_same,
    blank,
    gradient_of,
    moved,
    shaken,
    transitions,
)

from runnel.algorithms.ddpg import DDPG
from runnel.algorithms.sac import SAC
from runnel.algorithms.td3 import TD3
from runnel.distributions.asynchronous import Async
from runnel.environment import TimeStep
from runnel.errors import UserError
from runnel.graph.flow import trace
from runnel.nn import Network
from runnel.ops.n_step import Transition
from runnel.planning.plan import Machine, build_plan
from runnel.replay import Prioritised
from runnel.types import AgentSpec, Box, Discrete, EnvSpec, MultiDiscrete, Trajectory

ALGORITHMS = [DDPG, TD3, SAC]
every = pytest.mark.parametrize("kind", ALGORITHMS, ids=lambda kind: kind.__name__)


class Still:
    """Where nothing happens, in JAX."""

    spec = EnvSpec.single("still", SEEN, ACTION)

    def reset(self, key):
        return (), jnp.zeros(3)

    def step(self, state, action, key):
        return (), TimeStep(jnp.zeros(3), jnp.zeros(()), jnp.bool_(False), jnp.bool_(False))


# What can be built


@pytest.mark.parametrize("x64", [False, True])
@every
def test_it_can_be_traced(kind, x64):
    with jax.enable_x64(x64):
        graph = trace(kind(**SMALL), EnvSpec.single("toy", SEEN, ACTION), 4)
        assert list(graph.nodes) == ["environment", "act", "rollout", "map", "replay", "gradient", "apply"]
        wanted = jnp.dtype(jnp.float64 if x64 else jnp.float32)
        floats = [x for x in jax.tree.leaves(graph.states) if jnp.issubdtype(x.dtype, jnp.floating)]
        assert {x.dtype for x in floats} == {wanted}


@every
def test_every_variant_can_be_traced(kind):
    graph = trace(kind(prioritised=True, n_step=3, **SMALL), EnvSpec.single("toy", SEEN, ACTION), 4)
    assert graph.nodes["gradient"].output["out"].priorities.shape == (16,)
    seen = {"image": Box((48, 48, 1), np.dtype(np.uint8), 0, 255), "number": Discrete(5)}
    trace(kind(**SMALL), EnvSpec.single("toy", seen, Box((2, 2), np.dtype(np.float32), -1.0, 1.0)), 4)
    linear = Network(lambda key, x: jnp.ones((3, 5)), lambda params, x: x @ params)
    critics = trace(kind(network=linear, **SMALL), EnvSpec.single("toy", SEEN, ACTION), 4).states["agent"].critics
    assert critics.torso[0].shape == (critics.count, 3, 5)


@every
@pytest.mark.parametrize(
    ("action", "message"),
    [
        (Discrete(3), "found Discrete actions of 'toy', expected Box"),
        (MultiDiscrete((2, 3)), "found MultiDiscrete actions of 'toy', expected Box"),
        (
            Box((2,)),
            "found float32 actions from -inf to inf, expected real numbers within bounds; give its action space",
        ),
        (Box((2,), np.dtype(np.float32), (0.0, 0.0), (1.0, 3e38)), r"found float32 actions from 0 to 3e\+38"),
        (Box((1,), np.dtype(np.int32), 0, 9), "found int32 actions from 0 to 9, expected real numbers within bounds"),
    ],
    ids=["discrete", "multi-discrete", "unbounded", "enormous", "whole numbers"],
)
def test_other_actions_are_refused(kind, action, message):
    with pytest.raises(UserError, match=f"{kind.__name__}: {message}"):
        trace(kind(**SMALL), EnvSpec.single("toy", SEEN, action), 4)


@every
@pytest.mark.parametrize(
    ("setting", "message"),
    [({"n_step": 0}, "n_step=0.*1 or more"), ({"tau": 1.5}, "tau=1.5.*0 to 1"), ({"batch": 0}, "batch=0.*1 or more")],
)
def test_bad_settings_are_refused(kind, setting, message):
    with pytest.raises(UserError, match=message):
        kind(**setting)


@every
def test_under_async_actors_run_free(kind):
    graph = trace(kind(**SMALL), Still.spec, 8)
    built = build_plan(Async(actors=4), graph, Still(), Machine(cpus=8, devices=("cuda:0",)))
    assert {fragment.name: fragment.replicas for fragment in built.fragments} == {"actor": 4, "learner": 1}
    assert str(kind.max_staleness) in built.text()


# Acting


@every
def test_acting_is_random_until_the_first_update_then_explores_and_does_not_when_evaluated(kind):
    algorithm, params = kind(**SMALL), blank(kind).params

    @jax.jit
    @jax.vmap
    def acts(key):
        learnt = params._replace(updates=jnp.int32(1))
        wild = learnt._replace(policy=shaken(params.policy, 0, by=3.0))  # goes for the edges
        of = [(params, True), (learnt, True), (params, False), (wild, True), (wild, False)]
        return [algorithm.act(each, jnp.ones(3), (), key, explore).action for each, explore in of]

    found = [np.asarray(x) for x in acts(jax.random.split(KEY, 4096))]
    for actions in found:
        assert (actions >= LOW).all()
        assert (actions <= HIGH).all()
    random, learnt, evaluated, *_ = found
    for quarter in range(5):
        np.testing.assert_allclose(np.quantile(random, quarter / 4, 0), LOW + (HIGH - LOW) * quarter / 4, atol=0.1)
    # A policy begins in the middle with noise about it; SAC's is wide, and most of it is squashed towards the edges.
    near = np.mean(np.abs(learnt - (HIGH + LOW) / 2) < (HIGH - LOW) / 8, 0)
    assert (np.abs(near - 0.25) > (0.02 if kind is SAC else 0.5)).all()
    assert len(np.unique(learnt, axis=0)) > 4000
    assert len(np.unique(evaluated, axis=0)) == 1


# Learning


@every
def test_a_truncated_episode_goes_on_in_value_and_a_terminated_one_does_not(kind):
    """Gradients are those of transitions written by hand."""
    algorithm = kind(**SMALL)
    state, steps = moved(kind), 8
    terminated, truncated = np.zeros((steps, 2), bool), np.zeros((steps, 2), bool)
    terminated[1, 0] = truncated[1, 1] = True
    seen, last = jax.random.normal(KEY, (2, steps, 2, 3))
    items = transitions()
    action, reward = items.a_tm1.reshape(steps, 2, 2), items.r_t.reshape(steps, 2)
    trajectory = Trajectory(seen, action, reward, terminated, truncated, last, (), (), (), (), (), ())

    s_t = jnp.concatenate([seen[1:], last[-1:]]).at[1, 1].set(last[1, 1])
    discount_t = jnp.full((steps, 2), 0.99).at[1, 0].set(0.0)
    by_hand = Transition(seen, action, reward, discount_t, s_t)
    by_hand = jax.tree.map(lambda x: x.reshape(16, *x.shape[2:]), by_hand)
    gradient = gradient_of(algorithm)
    found = gradient(state, algorithm.transitions(trajectory), KEY)
    assert_same(found, gradient(state, by_hand, KEY))
    as_an_end = by_hand._replace(discount_t=by_hand.discount_t.at[3].set(0.0))
    changed = gradient(state, as_an_end, KEY)[1].priorities != found[1].priorities
    np.testing.assert_array_equal(changed, np.arange(16) == 3)


@every
def test_targets_follow_by_so_much(kind):
    algorithm = kind(**SMALL)
    state = moved(kind)
    state = state._replace(params=state.params._replace(updates=jnp.int32(1)))  # TD3 waits every second time
    after = apply_of(algorithm)(state, gradient_of(algorithm)(state, transitions(), KEY)[0])
    learnt = after.critics if kind is SAC else type(after.target)(after.params.policy, after.critics)
    assert_same(after.target, jax.tree.map(lambda new, old: old + 0.005 * (new - old), learnt, state.target), atol=1e-6)
    assert after.params.updates == 2


def test_an_item_counts_the_less_the_likelier_it_was_to_be_drawn():
    """To the critics, at exponent 1; the policy learns from all alike."""
    algorithm = DDPG(prioritised=True, importance_exponent=1.0, **SMALL)
    state, items = moved(DDPG), transitions()
    likely = jnp.where(jnp.arange(16) < 8, 2.0, 1.0) / 24
    grads, out = gradient_of(algorithm)(state, Prioritised(items, likely, jnp.arange(16)), KEY)
    plain_grads, plain = gradient_of(DDPG(**SMALL))(state, items, KEY)
    assert_same((grads.policy, out.priorities), (plain_grads.policy, plain.priorities))
    weights = np.where(np.arange(16) < 8, 0.5, 1.0)
    np.testing.assert_allclose(out.critic_loss, (weights * 0.5 * plain.priorities**2).mean(), rtol=1e-3)


@pytest.mark.parametrize(
    "kind", [DDPG, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (TD3, SAC))], ids=lambda kind: kind.__name__
)
def test_a_bandit_is_solved(kind):
    """Action 1 of -2 to 2 pays best, whatever is seen; nothing follows."""
    space = Box((1,), np.dtype(np.float32), -2.0, 2.0)
    algorithm = kind(hidden=(32,), learning_rate=3e-3, batch=64)

    def learn(state, key):
        a_tm1 = jax.random.uniform(key, (64, 1), minval=-2.0, maxval=2.0)
        nothing, never = jnp.ones((64, 1)), jnp.zeros(64)
        items = Transition(nothing, a_tm1, -((a_tm1[:, 0] - 1.0) ** 2), never, nothing)
        return algorithm.learn(state, items, key)[0], ()

    @jax.jit
    def trained(keys):
        return jax.lax.scan(learn, algorithm.init(KEY, AgentSpec(Box((1,)), space)), keys)[0]

    state = trained(jax.random.split(KEY, 2000))
    assert state.params.updates == 2000  # of which none is missing: acting is random before the first
    best = algorithm.act(state.params, jnp.ones(1), (), KEY, False).action
    np.testing.assert_allclose(best, [1.0], atol=0.15)
