"""PureJaxRL's PPO, written anew from its description: the reference side of the fused benchmark.

The whole training run is one XLA program: a scan over updates, each a scan over environment steps
followed by epochs of minibatches of single transitions. Like the original it treats a time limit as
a termination, and returns the episode record of every single step of the run.
It runs on gymnax 0.0.9 and 1.x, and imports nothing of runnel.

    python benchmarks/reference/purejaxrl_ppo.py CartPole-v1 --envs 64 --updates 100
"""

import argparse
import functools
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import optax

Array = jax.Array


class ActorCritic(nn.Module):
    """Two separate towers of two 64-unit tanh layers: action logits and value."""

    actions: int

    @nn.compact
    def __call__(self, observation: Array) -> tuple[Array, Array]:
        def dense(x: Array, units: int, scale: float) -> Array:
            return nn.Dense(units, kernel_init=nn.initializers.orthogonal(scale))(x)

        def tower(outputs: int, scale: float) -> Array:
            hidden = nn.tanh(dense(observation, 64, 2**0.5))
            hidden = nn.tanh(dense(hidden, 64, 2**0.5))
            return dense(hidden, outputs, scale)

        return tower(self.actions, 0.01), tower(1, 1.0).squeeze(-1)


class LoggedState(NamedTuple):
    """An environment's state and its episode record; all fields are scalars but `env`."""

    env: Any
    episode_return: Array  # of the episode in progress
    episode_length: Array
    returned_episode_return: Array  # of the last finished episode, 0 before the first
    returned_episode_length: Array
    timestep: Array


class Transition(NamedTuple):
    """One step of every environment; stacked to `[T, B, ...]`, then shuffled as `[T * B, ...]`."""

    observation: Array
    action: Array
    reward: Array
    done: Array
    log_prob: Array
    value: Array
    info: dict[str, Array]


def logged_environment(env_name: str) -> tuple[Callable, Callable, int, int]:
    """Gives `reset(key)`, `step(key, state, action)`, observation size and action count.

    Observations are flat; `step` adds the episode record to `info`.
    """
    env, params = gymnax.make(env_name)

    def reset(key: Array) -> tuple[Array, LoggedState]:
        observation, state = env.reset(key, params)
        record = (jnp.float32(0), jnp.int32(0), jnp.float32(0), jnp.int32(0), jnp.int32(0))
        return observation.reshape(-1), LoggedState(state, *record)

    def step(key: Array, state: LoggedState, action: Array) -> tuple:
        # gymnax 0.0.9 gives one end (done), 1.x gives two (terminated, truncated).
        observation, env_state, reward, *ends, info = env.step(key, state.env, action, params)
        done = functools.reduce(jnp.logical_or, ends)
        episode_return = state.episode_return + reward
        episode_length = state.episode_length + 1
        state = LoggedState(
            env=env_state,
            episode_return=episode_return * (1 - done),
            episode_length=episode_length * (1 - done),
            returned_episode_return=jnp.where(done, episode_return, state.returned_episode_return),
            returned_episode_length=jnp.where(done, episode_length, state.returned_episode_length),
            timestep=state.timestep + 1,
        )
        # Without gymnax 1.x's final_observation: it would make this side dearer than on 0.0.9.
        info = {
            "discount": info["discount"],
            "returned_episode_returns": state.returned_episode_return,
            "returned_episode_lengths": state.returned_episode_length,
            "timestep": state.timestep,
            "returned_episode": done,
        }
        return observation.reshape(-1), state, reward, done, info

    observation = jax.eval_shape(reset, jax.random.key(0))[0]
    return reset, step, observation.size, env.action_space(params).n


def make_train(
    env_name: str,
    envs: int,
    steps_per_unroll: int = 128,
    updates: int = 100,
    *,
    epochs: int = 4,
    minibatches: int = 4,
    learning_rate: float = 2.5e-4,
    anneal: bool = True,
    discount: float = 0.99,
    gae_lambda: float = 0.95,
    clip: float = 0.2,
    vf_coef: float = 0.5,
    ent_coef: float = 0.01,
    max_grad_norm: float = 0.5,
) -> Callable[[Array], dict[str, Any]]:
    """Gives `train(key) -> {"params", "info"}`; each field of `info` is `[updates, T, B]`."""
    batch_size = envs * steps_per_unroll
    if batch_size % minibatches:
        raise ValueError(
            f"{envs} envs x {steps_per_unroll} steps do not divide into {minibatches} minibatches; change one of them"
        )
    env_reset, env_step, observation_size, actions = logged_environment(env_name)
    network = ActorCritic(actions)

    def schedule(count: Array) -> Array:
        update = count // (epochs * minibatches)
        return learning_rate * (1 - update / updates)

    optimizer = optax.chain(
        optax.clip_by_global_norm(max_grad_norm),
        optax.adam(schedule if anneal else learning_rate, eps=1e-5),
    )

    def act_and_step(carry: tuple, key: Array) -> tuple[tuple, Transition]:
        params, state, observation = carry
        act_key, env_key = jax.random.split(key)
        logits, value = network.apply(params, observation)
        action = jax.random.categorical(act_key, logits)
        env_keys = jax.random.split(env_key, envs)
        next_observation, state, reward, done, info = jax.vmap(env_step)(env_keys, state, action)
        log_prob = select(jax.nn.log_softmax(logits), action)
        transition = Transition(observation, action, reward, done, log_prob, value, info)
        return (params, state, next_observation), transition

    def advantages_of(trajectory: Transition, last_value: Array) -> Array:
        def backward(carry: tuple[Array, Array], step: Transition) -> tuple:
            advantage_t, v_t = carry
            continues = discount * (1 - step.done)
            delta = step.reward + continues * v_t - step.value
            advantage_tm1 = delta + continues * gae_lambda * advantage_t
            return (advantage_tm1, step.value), advantage_tm1

        start = (jnp.zeros_like(last_value), last_value)
        return jax.lax.scan(backward, start, trajectory, reverse=True, unroll=16)[1]

    def loss(params: Any, batch: Transition, advantage: Array, target: Array) -> Array:
        logits, value = network.apply(params, batch.observation)
        log_probs = jax.nn.log_softmax(logits)

        clipped_value = batch.value + jnp.clip(value - batch.value, -clip, clip)
        value_errors = jnp.maximum((value - target) ** 2, (clipped_value - target) ** 2)

        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = jnp.exp(select(log_probs, batch.action) - batch.log_prob)
        clipped_ratio = jnp.clip(ratio, 1 - clip, 1 + clip)
        actor_loss = -jnp.minimum(ratio * advantage, clipped_ratio * advantage).mean()

        entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
        return actor_loss + vf_coef * 0.5 * value_errors.mean() - ent_coef * entropy

    def learn_minibatch(carry: tuple, minibatch: tuple) -> tuple[tuple, Array]:
        params, opt_state = carry
        loss_value, grads = jax.value_and_grad(loss)(params, *minibatch)
        steps, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, steps), opt_state), loss_value

    def update(carry: tuple, key: Array) -> tuple[tuple, dict[str, Array]]:
        params, opt_state, state, observation = carry
        unroll_key, shuffle_key = jax.random.split(key)
        (_, state, observation), trajectory = jax.lax.scan(
            act_and_step,
            (params, state, observation),
            jax.random.split(unroll_key, steps_per_unroll),
        )
        last_value = network.apply(params, observation)[1]
        advantages = advantages_of(trajectory, last_value)
        batch = (trajectory, advantages, advantages + trajectory.value)
        batch = jax.tree.map(lambda x: x.reshape(batch_size, *x.shape[2:]), batch)

        def learn_epoch(carry: tuple, key: Array) -> tuple[tuple, Array]:
            order = jax.random.permutation(key, batch_size)
            shuffled = jax.tree.map(lambda x: x[order].reshape(minibatches, -1, *x.shape[1:]), batch)
            return jax.lax.scan(learn_minibatch, carry, shuffled)

        (params, opt_state), _ = jax.lax.scan(learn_epoch, (params, opt_state), jax.random.split(shuffle_key, epochs))
        return (params, opt_state, state, observation), trajectory.info

    def train(key: Array) -> dict[str, Any]:
        init_key, reset_key, update_key = jax.random.split(key, 3)
        params = network.init(init_key, jnp.zeros(observation_size))
        observation, state = jax.vmap(env_reset)(jax.random.split(reset_key, envs))
        carry = (params, optimizer.init(params), state, observation)
        carry, info = jax.lax.scan(update, carry, jax.random.split(update_key, updates))
        return {"params": carry[0], "info": info}

    return train


def select(log_probs: Array, action: Array) -> Array:
    """The log-probability of each `action` [B] among `log_probs` [B, actions]."""
    return jnp.take_along_axis(log_probs, action[:, None], axis=-1).squeeze(-1)


def mean_return(info: dict[str, Array], episodes: int = 100) -> float | None:
    """Mean return of the newest episodes, in order of (step, environment); None where none finished."""
    newest = np.zeros(0, np.float32)
    for update in reversed(range(len(info["returned_episode"]))):
        finished = np.asarray(info["returned_episode"][update])  # [T, B]
        returns = np.asarray(info["returned_episode_returns"][update])[finished]
        newest = np.concatenate([returns, newest])[-episodes:]
        if len(newest) == episodes:
            break
    return float(newest.mean()) if len(newest) else None


@dataclass(frozen=True)
class Timing:
    """What `measure` saw. A run is one call of the compiled `train`, first resets included."""

    env_steps: int  # of one run
    compile_s: float  # tracing, lowering and compiling
    steps_per_second: list[float]  # one a run, warm-up run excluded
    mean_return: float | None  # at the end of the last run


def measure(train: Callable[[Array], dict[str, Any]], seed: int = 0, runs: int = 3) -> Timing:
    """Compiles `train` ahead of time, warms it up with one run, then times `runs` more."""
    keys = jax.random.split(jax.random.key(seed), 1 + runs)
    start = time.perf_counter()
    compiled = jax.jit(train).lower(keys[0]).compile()
    compile_s = time.perf_counter() - start

    out = jax.block_until_ready(compiled(keys[0]))
    env_steps = out["info"]["timestep"].size
    steps_per_second = []
    for key in keys[1:]:
        del out  # the record of a long run is large: hold one at a time
        start = time.perf_counter()
        out = jax.block_until_ready(compiled(key))
        steps_per_second.append(env_steps / (time.perf_counter() - start))
    return Timing(env_steps, compile_s, steps_per_second, mean_return(out["info"]))


def main() -> None:
    parser = argparse.ArgumentParser(description="Time PureJaxRL's PPO; prints one JSON line.")
    parser.add_argument("environment", nargs="?", default="CartPole-v1")
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--unroll", type=int, default=128)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--learning-rate", type=float, default=2.5e-4)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    train = make_train(args.environment, args.envs, args.unroll, args.updates, learning_rate=args.learning_rate)
    timing = asdict(measure(train, args.seed, args.runs))
    print(json.dumps({**vars(args), **timing, "device": str(jax.devices()[0])}))


if __name__ == "__main__":
    main()
