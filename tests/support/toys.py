"""Small environments and algorithms with known answers, for tests."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from runnel.algorithm import Algorithm
from runnel.environment import TimeStep
from runnel.types import Act, AgentSpec, Box, Discrete, EnvSpec


class Corridor:
    """Walk right for a reward of 1 at the end; cut after 20 steps. Starts at a random place."""

    length = 8
    spec = EnvSpec.single("corridor", Box((2,), np.dtype(np.float32), -1.0, 1.0), Discrete(2), 20)

    def _observe(self, state):
        place, clock = state
        return jnp.stack([place / self.length, clock / 20]).astype(jnp.float32)

    def reset(self, key):
        state = (jax.random.randint(key, (), 0, 4, jnp.int32), jnp.int32(0))
        return state, self._observe(state)

    def step(self, state, action, key):
        place, clock = state
        slip = jax.random.bernoulli(key, 0.1)
        place = jnp.clip(place + jnp.where((action == 1) & ~slip, 1, -1), 0, self.length).astype(jnp.int32)
        state = (place, clock + 1)
        there = place == self.length
        return state, TimeStep(self._observe(state), jnp.where(there, 1.0, -0.01), there, clock + 1 >= 20)


def named(name, id):
    """An environment with settings that Runnel's own functions have parameters for."""
    environment = Corridor()
    environment.spec = replace(Corridor.spec, name=f"{name}-{id}")
    return environment


class Tag:
    """Two groups on a line: one hunter, two runners; the hunter gains what each runner loses by being near."""

    spec = EnvSpec(
        "tag",
        {
            "hunter": AgentSpec(Box((3,)), Discrete(2)),
            "runners": AgentSpec(Box((2,)), Box((1,), np.dtype(np.float32), -1.0, 1.0), agents=2),
        },
        10,
    )

    def _observe(self, state):
        hunter, runners, _ = state
        return {
            "hunter": jnp.concatenate([hunter[None], runners]),
            "runners": jnp.stack([runners, runners - hunter], -1),
        }

    def reset(self, key):
        runners = jax.random.uniform(key, (2,), jnp.float32, -1, 1)
        state = (jnp.float32(0), runners, jnp.int32(0))
        return state, self._observe(state)

    def step(self, state, action, key):
        hunter, runners, clock = state
        hunter = hunter + jnp.where(action["hunter"] == 1, 0.1, -0.1).astype(jnp.float32)
        runners = jnp.clip(runners + 0.1 * action["runners"][:, 0], -1, 1).astype(jnp.float32)
        state = (hunter, runners, clock + 1)
        near = -jnp.abs(runners - hunter)
        reward = {"hunter": near.sum(), "runners": -near}
        return state, TimeStep(self._observe(state), reward, jnp.bool_(False), clock + 1 >= 10)


class State(NamedTuple):
    params: dict
    optimiser: optax.OptState


@dataclass(frozen=True)
class Reinforce(Algorithm):
    """Monte-Carlo policy gradient with a linear policy."""

    learning_rate: float = 1e-2
    unroll: int = 8

    actions = (Discrete,)

    def init(self, key, spec):
        size = int(np.prod(spec.observation.shape))
        dtype = jnp.result_type(float)
        params = {
            "w": 0.01 * jax.random.normal(key, (size, spec.action.n), dtype),
            "b": jnp.zeros(spec.action.n, dtype),
        }
        return State(params, optax.adam(self.learning_rate).init(params))

    def _logits(self, params, observation):
        return observation.reshape(-1).astype(params["w"].dtype) @ params["w"] + params["b"]

    def act(self, params, observation, memory, key, explore):
        logits = self._logits(params, observation)
        action = jax.random.categorical(key, logits) if explore else logits.argmax()
        return Act(action.astype(jnp.int32))

    def learn(self, state, trajectory, key):
        def step(g_t, x):
            reward, done = x
            g_t = reward + 0.99 * jnp.where(done, 0.0, g_t)
            return g_t, g_t

        done = trajectory.terminated | trajectory.truncated
        _, returns = jax.lax.scan(step, jnp.zeros_like(trajectory.reward[0]), (trajectory.reward, done), reverse=True)

        def loss(params):
            logits = jax.vmap(jax.vmap(lambda o: self._logits(params, o)))(trajectory.observation)
            log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), trajectory.action[..., None], -1)[..., 0]
            return -(log_prob * (returns - returns.mean())).mean()

        value, grads = jax.value_and_grad(loss)(state.params)
        updates, optimiser = optax.adam(self.learning_rate).update(grads, state.optimiser)
        return State(optax.apply_updates(state.params, updates), optimiser), {"loss": value}

    def loop(self, flow):
        trajectory = flow.rollout(self.act, steps=self.unroll)
        flow.learn(self.learn, trajectory)


class Relay(Reinforce):
    """Learns from rewards that two other stages have a part in, one of them twice."""

    def loop(self, flow):
        trajectory = flow.rollout(self.act, self.unroll)
        first = flow.map(lambda t: 2 * t.reward, trajectory)
        second = flow.map(lambda t: -t.reward, trajectory)
        both = flow.map(lambda t, a, b: t._replace(reward=a + b), trajectory, first, second)
        flow.learn(self.learn, flow.map(lambda t, b: t._replace(reward=t.reward + b), both, second))


@dataclass(frozen=True)
class GradientReinforce(Reinforce):
    """The same, in the two halves that `central` can cut apart."""

    def gradient(self, state, trajectory, key):
        def loss(params):
            logits = jax.vmap(jax.vmap(lambda o: self._logits(params, o)))(trajectory.observation)
            log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), trajectory.action[..., None], -1)[..., 0]
            return -(log_prob * trajectory.reward).mean()

        value, grads = jax.value_and_grad(loss)(state.params)
        return grads, {"loss": value}

    def apply(self, state, grads):
        updates, optimiser = optax.adam(self.learning_rate).update(grads, state.optimiser)
        return State(optax.apply_updates(state.params, updates), optimiser)

    learn = Algorithm.learn


@dataclass(frozen=True)
class Drift(Algorithm):
    """Acts in any space, and its parameters drift by what its group was rewarded: easy to follow by hand."""

    unroll: int = 4

    def init(self, key, spec):
        return State({"sum": jnp.zeros((), jnp.result_type(float))}, ())

    def act(self, params, observation, memory, key, explore, index):
        del memory, index
        if observation.shape == (3,):
            return Act(jax.random.bernoulli(key).astype(jnp.int32))
        return Act(jnp.clip(params["sum"] + observation[:1], -1, 1).astype(jnp.float32))

    def learn(self, state, trajectory, key):
        total = state.params["sum"] + trajectory.reward.mean()
        return State({"sum": total}, ()), {"sum": total}

    def loop(self, flow):
        for group in flow.groups:
            agents = flow.agents(group)
            agents.learn(self.learn, agents.rollout(self.act, steps=self.unroll))


@dataclass(frozen=True)
class Joined(Drift):
    """Drifts by what its own group and the hunter were rewarded in the same steps of the same environments, and adds up
    how far what both saw of the runners differs: not at all, where it is of the same steps."""

    tolerates: int = 0

    @property
    def max_staleness(self):
        return self.tolerates

    def init(self, key, spec):
        zero = jnp.zeros((), jnp.result_type(float))
        return State({"sum": zero, "apart": zero}, ())

    def learn(self, state, own, hunter, key):
        agents = own.reward.shape[1] // hunter.reward.shape[1]
        steps, envs = hunter.reward.shape
        seen = own.observation.reshape(steps, envs, agents, -1)
        places = seen[..., 0] if agents > 1 else seen[:, :, 0, 1:]
        apart = state.params["apart"] + jnp.abs(places - hunter.observation[..., 1:]).max()
        rewarded = own.reward * (1 + jnp.repeat(hunter.reward, agents, axis=1))
        total = state.params["sum"] + rewarded.mean()
        return State({"sum": total, "apart": apart.astype(total.dtype)}, ()), {"sum": total, "apart": apart}

    def loop(self, flow):
        trajectory = flow.rollout(self.act, steps=self.unroll)
        flow.learn(self.learn, trajectory, trajectory.of("hunter"))


@dataclass(frozen=True)
class GradientDrift(Drift):
    """The same, in two halves."""

    def gradient(self, state, trajectory, key):
        mean = trajectory.reward.mean()
        return {"sum": mean}, {"mean": mean}

    def apply(self, state, grads):
        return State({"sum": state.params["sum"] + grads["sum"]}, ())

    learn = Algorithm.learn


@dataclass(frozen=True)
class TellsConvolutions(Reinforce):
    """Tells whether the process that learns lowers convolutions in the layout that is fast on CPUs."""

    def learn(self, state, trajectory, key):
        from jax._src.lax.convolution import conv_general_dilated_p
        from jax.interpreters import mlir

        from runnel.config import cpu_convolutions

        rules = mlir._platform_specific_lowerings["cpu"]  # asked while the learner is traced, where it will run
        fast = getattr(rules[conv_general_dilated_p], "rule", rules[conv_general_dilated_p]) is cpu_convolutions.rule
        state, _ = super().learn(state, trajectory, key)
        return state, {"fast": jnp.float32(fast)}


def flee(observation, key):
    """A runner of `Tag` that moves away from the hunter."""
    return jnp.sign(observation[1:])
