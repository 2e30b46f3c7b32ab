"""MAPPO: masks, turns and states in one update, for one agent or several, with memory or without."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from teams import EDGE, Meeting
from toys import Tag

from runnel.algorithms.mappo import MAPPO, Networks
from runnel.graph.flow import trace
from runnel.runtime.programs.loop import Loop
from runnel.runtime.single_process.compiled import CompiledProgram

SMALL = MAPPO(unroll=8, epochs=2, minibatches=2, hidden=(16,))
VARIANTS = [
    {},
    {"memory": "lstm", "agent_ids": False},
    {"normalise_observations": True, "popart": False, "value_clip": None, "anneal_steps": 10_000},
    {"advantages": "vtrace", "dual_clip": 3.0, "memory": "gru", "memory_size": 5},
]


@pytest.mark.parametrize(
    ("settings", "environment", "x64"),
    [
        (VARIANTS[0], Tag, True),
        (VARIANTS[1], Meeting, False),
        (VARIANTS[2], Meeting, True),
        (VARIANTS[3], Meeting, True),
    ],
)
def test_every_variant_can_be_traced(settings, environment, x64):
    with jax.enable_x64(x64):
        graph = trace(dataclasses.replace(SMALL, **settings), environment.spec, 4)
    assert sum(node.kind == "learn" for node in graph.nodes.values()) == 2


def test_the_policy_learns_from_turns_only_and_the_value_from_all():
    """One update on an unroll, and on the same one in which the resting did something else."""
    algorithm = dataclasses.replace(SMALL, entropy_cost=0.1, epochs=1, minibatches=1)
    loop = Loop(trace(algorithm, Meeting.spec, 4), Meeting())
    carry = jax.jit(loop.init)(jnp.uint32(0))
    _, trajectories, _ = jax.jit(loop.unroll)(carry)
    played, state = trajectories["walkers"], carry.states["walkers"]
    rests = ~played.observation["active"]
    assert rests.any()
    learn = jax.jit(algorithm.learn)
    other = played._replace(
        action=jnp.where(rests, 2 - played.action, played.action),
        extras=played.extras._replace(log_prob=jnp.where(rests, -9.0, played.extras.log_prob)),
    )
    (one, _), (same, _) = (learn(state, trajectory, jax.random.key(0)) for trajectory in (played, other))
    jax.tree.map(np.testing.assert_array_equal, one, same)
    paid, _ = learn(state, played._replace(reward=played.reward + 5.0 * rests), jax.random.key(0))
    assert any((a != b).any() for a, b in zip(*map(jax.tree.leaves, (one.critic, paid.critic)), strict=True))


# V-trace


def played_by(algorithm, seed, steps=6, envs=4):
    """An unroll of walkers, and the state of those that played it."""
    loop = Loop(trace(dataclasses.replace(algorithm, unroll=steps), Meeting.spec, envs), Meeting())
    carry, unroll = jax.jit(loop.init)(jnp.uint32(seed)), jax.jit(loop.unroll)
    for _ in range(2):  # into the second episode, so that an unroll has ends
        carry, trajectories, _ = unroll(carry)
    return carry.states["walkers"], trajectories["walkers"]


def test_where_nothing_lags_vtrace_is_gae():
    with jax.enable_x64(True):
        gae = dataclasses.replace(SMALL, advantages="gae")
        vtrace = dataclasses.replace(gae, advantages="vtrace")
        state, played = played_by(gae, 0)
        assert (played.terminated | played.truncated).any()
        one, other = (jax.jit(algorithm.batch)(state, played) for algorithm in (gae, vtrace))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11), one, other)


@pytest.mark.parametrize("memory", ["none", pytest.param("gru", marks=pytest.mark.slow)])
def test_the_loss_of_an_unroll_that_lags_is_that_of_the_paper(memory):
    """Walkers of one policy played it, those of another learn: step by step, in NumPy."""
    algorithm = dataclasses.replace(
        SMALL, advantages="vtrace", memory=memory, memory_size=5, dual_clip=2.0, entropy_cost=0.1, discount=0.9,
        gae_lambda=0.8, normalise_advantages=False,
    )  # fmt: skip
    with jax.enable_x64(True):
        state, played = played_by(algorithm, 0)
        moved = jax.tree.map(lambda x: x + 0.5 * jnp.cos(jnp.arange(x.size).reshape(x.shape)), state.params.policy)
        state = state._replace(params=state.params._replace(policy=moved))
        networks = Networks(state.params.policy, state.critic)
        batch = jax.jit(algorithm.batch)(state, played)
        flat = batch if memory == "gru" else jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
        loss_of = jax.jit(algorithm.loss)
        loss, metrics = loss_of(networks, flat)
        _, grown = loss_of(networks, flat._replace(log_prob=flat.log_prob - 2.0))  # since: e^2 times as likely

        now, entropy = (np.asarray(x) for x in present(state.params.policy, played, memory))
        whole = state.critic.with_state(played.observation), state.critic.with_state(played.last_observation)
        agent = jnp.broadcast_to(played.index, played.reward.shape)
        v_seen, v_last = (np.asarray(jax.vmap(jax.vmap(state.critic))(seen, agent)) for seen in whole)
    active = np.asarray(played.observation["active"])
    ratio = np.where(active, np.exp(now - np.asarray(played.extras.log_prob)), 1.0)
    assert ratio.min() < 0.8 < 1.2 < ratio.max()
    target, advantage = slow_vtrace(played, v_seen, v_last, ratio, algorithm)
    np.testing.assert_allclose(batch.target, target, rtol=1e-9)
    np.testing.assert_allclose(batch.advantage, advantage, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(batch.log_prob, now, rtol=1e-9)  # the policy stays near the present one
    # Before the first step, every ratio to the present policy is 1: neither clip holds.
    policy_loss = -(advantage * active).sum() / active.sum()
    np.testing.assert_allclose(metrics.policy_loss, policy_loss, rtol=1e-8)
    bounded = np.where(advantage < 0, 2.0, 1.2) * advantage  # by the dual clip, and by the clip
    np.testing.assert_allclose(grown.policy_loss, -(bounded * active).sum() / active.sum(), rtol=1e-8)
    mean_entropy = (entropy * active).sum() / active.sum()
    wanted = policy_loss - 0.1 * mean_entropy + 0.5 * np.mean((target - v_seen) ** 2)
    np.testing.assert_allclose(loss, wanted, rtol=1e-8)


def present(policy, played, memory):
    """[T, B] log-probabilities of what was done and entropies, one column after the other, one step after the other."""
    steps, columns = played.reward.shape
    log_prob, entropy = np.zeros((steps, columns)), np.zeros((steps, columns))
    step = jax.jit(policy.step)
    fresh = jax.tree.map(jnp.zeros_like, jax.tree.map(lambda x: x[0], played.memory))
    for b in range(columns):
        kept = jax.tree.map(lambda x, b=b: x[b], played.memory) if memory == "gru" else ()
        for t in range(steps):
            if memory == "gru" and bool(played.first[t, b]):
                kept = fresh
            seen = jax.tree.map(lambda x, t=t, b=b: x[t, b], played.observation)
            distribution, kept = step(seen, kept, played.index[b])
            log_prob[t, b] = distribution.log_prob(played.action[t, b])
            entropy[t, b] = distribution.entropy()
    return log_prob, entropy


def slow_vtrace(played, v_seen, v_last, ratio, algorithm):
    """Targets and advantages, as in the definition: a sum over all later steps of the episode in the unroll."""
    reward, discount, lambda_ = np.asarray(played.reward, np.float64), algorithm.discount, algorithm.gae_lambda
    terminated, truncated = np.asarray(played.terminated), np.asarray(played.truncated)
    steps, columns = reward.shape
    next_value = np.concatenate([v_seen[1:], v_last[-1:]])
    next_value = np.where(truncated, v_last, next_value) * ~terminated
    rho = np.minimum(1.0, ratio)
    target, advantage = np.zeros((steps, columns)), np.zeros((steps, columns))
    for b in range(columns):
        for t in range(steps):
            total, weight = 0.0, 1.0
            for k in range(t, steps):
                delta = rho[k, b] * (reward[k, b] + discount * next_value[k, b] - v_seen[k, b])
                total += weight * delta
                if terminated[k, b] or truncated[k, b]:
                    break
                weight *= discount * lambda_ * min(1.0, ratio[k, b])
            target[t, b] = v_seen[t, b] + total
    for b in range(columns):
        for t in range(steps):
            goes_on = t + 1 < steps and not (terminated[t, b] or truncated[t, b])
            later = target[t + 1, b] - v_seen[t + 1, b] if goes_on else 0.0
            q = reward[t, b] + discount * (next_value[t, b] + lambda_ * later)
            advantage[t, b] = rho[t, b] * (q - v_seen[t, b])
    return target, advantage


@pytest.mark.slow
def test_walkers_meet_and_never_step_over_the_edge():
    """An illegal step would pay a hundred times what anything else does."""
    algorithm = MAPPO(unroll=16, learning_rate=3e-3, hidden=(32,))
    program = CompiledProgram(Loop(trace(algorithm, Meeting.spec, 32), Meeting()), jax.devices()[:1], 1)
    stretches = []
    while int(program.carry.iteration) < 120:
        stretches.append(program.run(30, 60, np.inf, lambda: False))
    begun, last = stretches[0].group_returns, stretches[-1].group_returns
    assert all(stretch.group_returns["walkers"] <= 0 for stretch in stretches)
    assert last["walkers"] > max(-0.1 * EDGE * 3, begun["walkers"])
    assert last["watcher"] / stretches[-1].mean_length > 0.8  # of a step: 1 is always right, 0 is chance
