"""Frames stacked by setting: the same for host and JAX environments, whatever they show."""

import functools
from types import SimpleNamespace

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import own_envs
import own_vectors
import parted
import pytest
import toys
from gymnasium.wrappers import FrameStackObservation
from own_envs import Drunkard, Saboteur
from playing import empty, play, same

import runnel
from runnel.algorithms.ppo import PPO
from runnel.environment import Episode, HostEnvironment, is_traceable
from runnel.envs import make, of_object
from runnel.envs.frame_stack import MOST_FRAMES, FrameStackedEnvironment, stacked_spec
from runnel.envs.frame_stack_jax import FrameStackedJaxEnvironment
from runnel.envs.gymnasium import GymnasiumEnvironment
from runnel.envs.stepped import Stepped
from runnel.errors import UserError
from runnel.observations import parted as in_parts
from runnel.types import Box, Discrete, EnvSpec, MultiDiscrete

BYTES = np.dtype(np.uint8)


@pytest.mark.parametrize(
    ("space", "shape"),
    [
        (Box(()), (3,)),
        (Box((4,)), (12,)),
        (Box((84, 84), BYTES, 0, 255), (84, 84, 3)),
        (Box((10, 10), BYTES, 0, 255), (10, 10, 3)),
        (Box((84, 84, 3), BYTES, 0, 255), (84, 84, 9)),
        (Box((10, 10, 4), np.dtype(bool), 0, 1), (10, 10, 12)),
        (Box((4, 84, 84), BYTES, 0, 255), (12, 84, 84)),
        (Box((2, 3, 4, 5)), (2, 3, 4, 15)),
    ],
)
def test_arrays_are_stacked_along_their_channels(space, shape):
    stacked = stacked_spec(EnvSpec.single("x", space, Discrete(2)), 3).groups["agent"].observation
    assert (stacked.shape, stacked.dtype) == (shape, space.dtype)
    assert np.shape(stacked.low) in ((), shape)


def test_bounds_are_those_of_every_frame():
    space = Box((2,), np.dtype(np.float32), np.array([-1, 0], np.float32), np.array([1, 5], np.float32))
    stacked = stacked_spec(EnvSpec.single("x", space, Discrete(2)), 2).groups["agent"].observation
    assert stacked.low.tolist() == [-1, 0, -1, 0]
    assert stacked.high.tolist() == [1, 5, 1, 5]


def test_whole_numbers_are_stacked_as_several():
    spaces = {"one": Discrete(5), "two": (MultiDiscrete((2, 3)),)}
    stacked = stacked_spec(EnvSpec.single("x", spaces, Discrete(2)), 2).groups["agent"].observation
    assert stacked == {"one": MultiDiscrete((5, 5)), "two": (MultiDiscrete((2, 3, 2, 3)),)}


def test_of_an_observation_in_parts_only_what_is_seen_is_stacked():
    space = in_parts({"a": Box((2,)), "state": Box((1,))}, action_mask=Box((4,)), active=Box(()), state=Box((7,)))
    stacked = stacked_spec(EnvSpec.single("x", space, Discrete(4)), 3).groups["agent"].observation
    assert {name: part.shape for name, part in stacked.items() if name != "observation"} == {
        "action_mask": (4,), "active": (), "state": (7,),
    }  # fmt: skip
    assert {name: part.shape for name, part in stacked["observation"].items()} == {"a": (6,), "state": (3,)}


def test_the_stack_is_gymnasiums():
    """But for the axis: of vectors it is the last, as networks take them."""
    ours = play(make("CartPole-v1", frame_stack=3), 60)
    theirs = play(
        of_object(lambda: FrameStackObservation(gymnasium.make("CartPole-v1"), 3, padding_type="reset"), {}), 60
    )
    np.testing.assert_array_equal(ours.first["agent"], theirs.first["agent"].reshape(4, 12))
    for one, other in zip(ours.steps, theirs.steps, strict=True):
        np.testing.assert_array_equal(one.observation["agent"], other.observation["agent"].reshape(4, 12))
        ended = one.terminated | one.truncated
        last = other.last_observation["agent"].reshape(4, 12)
        np.testing.assert_array_equal(one.last_observation["agent"][ended], last[ended])
        assert same(one[1:4], other[1:4])


def test_last_stacks_end_with_true_last_frames_and_others_begin_with_repeated_first_ones():
    plain, stacked = play(of_object(Drunkard, {}), 60), play(of_object(Drunkard, {"frame_stack": 3}), 60)
    history = [[row] * 3 for row in plain.first["agent"]]
    ends = 0
    for one, other in zip(plain.steps, stacked.steps, strict=True):
        for row in range(4):
            if one.terminated[row] or one.truncated[row]:
                last = [*history[row][1:], one.last_observation["agent"][row]]
                np.testing.assert_array_equal(other.last_observation["agent"][row], np.concatenate(last))
                history[row] = [one.observation["agent"][row]] * 3
                ends += 1
            else:
                history[row] = [*history[row][1:], one.observation["agent"][row]]
            np.testing.assert_array_equal(other.observation["agent"][row], np.concatenate(history[row]))
    assert ends > 10


@pytest.mark.parametrize("environment", [toys.Corridor(), toys.Tag(), parted.Forbidden()], ids=lambda e: e.spec.name)
def test_jax_and_host_environments_stack_alike(environment):
    stepped, jitted = Stepped(environment), FrameStackedJaxEnvironment(environment, 3)
    assert is_traceable(jitted)
    host = FrameStackedEnvironment(stepped, 3)
    assert isinstance(host, HostEnvironment)
    assert not is_traceable(host)
    one, other = play(host, 30), play(Stepped(jitted), 30)
    assert same(one[:2], other[:2])


def test_a_picture_keeps_its_channels_first():
    class Screen:
        spec = EnvSpec.single("screen", Box((2, 40, 40), BYTES, 0, 255), Discrete(2), 5)

        def reset(self, key):
            return jnp.int32(1), jnp.full((2, 40, 40), 1, jnp.uint8)

        def step(self, state, action, key):
            frame = jnp.full((2, 40, 40), state + 1, jnp.uint8)
            return state + 1, runnel.TimeStep(frame, 1.0, jnp.bool_(False), state + 1 >= 5)

    stacked = FrameStackedJaxEnvironment(Screen(), 2)
    state, _ = stacked.reset(jax.random.key(0))
    _, step = stacked.step(state, 0, jax.random.key(0))
    assert step.observation[:, 0, 0].tolist() == [1, 1, 2, 2]


# The setting


@pytest.mark.parametrize(
    ("name", "frames", "shape"),
    [
        ("CartPole-v1", 4, (16,)),
        ("gymnax:CartPole-v1", 4, (16,)),
        ("gymnax:Breakout-MinAtar", 2, (10, 10, 8)),
        ("envpool:CartPole-v1", 3, (12,)),
        ("own_vectors:cartpoles", 3, (12,)),
        ("own_envs:INSTANCE", 2, (2,)),
        ("toys:Corridor", 2, (4,)),
    ],
)
def test_every_family_has_the_setting(name, frames, shape):
    environment = make(name, frame_stack=frames)
    assert environment.spec.groups["agent"].observation.shape == shape
    plain = make(name, frame_stack=1)
    assert type(plain) is type(make(name))
    assert (environment.spec.name, environment.spec.max_episode_steps) == (
        plain.spec.name,
        plain.spec.max_episode_steps,
    )


@pytest.mark.parametrize("name", ["pettingzoo:mpe2.simple_tag_v3", "jaxmarl:MPE_simple_spread_v3"])
def test_every_agent_has_a_stack(name):
    plain, stacked = make(name), make(name, frame_stack=3)
    for group, agents in plain.spec.groups.items():
        wide = stacked.spec.groups[group]
        assert wide.observation.shape == (3 * agents.observation.shape[0],)
        assert (wide.agents, wide.action) == (agents.agents, agents.action)


def test_an_object_has_the_setting_too():
    for given in (Drunkard(), GymnasiumEnvironment(Drunkard), functools.partial(Drunkard, 0.5), toys.Corridor()):
        assert of_object(given, {"frame_stack": 2}).spec.groups["agent"].observation.shape == (4,)


@pytest.mark.parametrize("frames", [0, -1, MOST_FRAMES + 1, 2.5, "many", True, None, 10**40])
def test_what_is_no_number_of_frames_is_refused(frames):
    with pytest.raises(UserError, match=rf"env.frame_stack=.*expected a whole number from 1 to {MOST_FRAMES}"):
        make("CartPole-v1", frame_stack=frames)


def test_an_environment_keeps_a_setting_of_that_name(monkeypatch):
    assert of_object(Hoarder, {"frame_stack": 7}).spec.groups["agent"].observation.shape == (7,)
    spec = gymnasium.envs.registration.EnvSpec("Hoarder-v0", entry_point=Hoarder)
    monkeypatch.setitem(gymnasium.registry, "Hoarder-v0", spec)
    assert make("Hoarder-v0", frame_stack=5).spec.groups["agent"].observation.shape == (5,)
    assert make("envpool:HalfCheetah-v4", frame_stack=2).spec.groups["agent"].observation.shape == (2, 17)


class Hoarder(Drunkard):
    """Has a setting called as Runnel's own is."""

    def __init__(self, frame_stack: int = 2):
        super().__init__()
        self.observation_space = gymnasium.spaces.Box(-1, 1, (frame_stack,))


def test_atari_games_stack_by_themselves():
    with pytest.raises(
        UserError, match=r"ALE/Pong-v5 stacks its frames itself: found env.frame_stack=4, expected env.st"
    ):
        make("ALE/Pong-v5", frame_stack=4)


# As the vector inside


def test_failures_condemnation_and_watch_are_those_of_the_vector_inside():
    environment = of_object(Saboteur, {"frame_stack": 2})
    vector, out = environment.open(range(2), 7), empty(environment.spec, 2)
    vector.reset(out.observation)
    first = out.observation["agent"].copy()
    watched = []
    vector.watch = watched.append
    vector.step({"agent": np.array([2, 0], np.int32)}, out)  # the first raises
    assert watched[-1] == -1
    assert out.truncated.tolist() == [True, False]
    np.testing.assert_array_equal(out.last_observation["agent"][0], first[0])  # the last good observation, twice
    assert [failure.what for failure in vector.failures()] == ["step raised ValueError: bad thing"]
    vector.watch = None
    vector.condemn(1, 0, "it brought its worker down")
    vector.step({"agent": np.array([0, 0], np.int32)}, out)
    assert out.truncated.tolist() == [False, True]


def test_what_is_not_played_again_the_same_is_cut(monkeypatch):
    monkeypatch.setattr(own_envs.Unsure, "lengths", iter([9, 9, 9, 3, 9, 9, 9, 9]))
    environment = of_object(own_envs.Unsure, {"frame_stack": 3})
    vector, out = environment.open(range(1), 7), empty(environment.spec, 1)
    vector.reset(out.observation)
    cut = vector.restore([Episode(4, {"agent": np.zeros(6, np.int32)})], out.observation)
    assert cut.tolist() == [True]
    assert vector.episode_numbers().tolist() == [5]
    assert len(vector.failures()) == 1


def test_metrics_are_those_of_the_vector_inside():
    environment = of_object(own_vectors.sync, {"frame_stack": 2, "mode": "SAME_STEP"})
    vector, out = environment.open(range(2), 7), empty(environment.spec, 2)
    vector.reset(out.observation)
    for _ in range(6):
        vector.step({"agent": np.array([0, 0], np.int32)}, out)
    assert {each.row for each in vector.episode_metrics()} == {0, 1}
    plain = of_object(Drunkard, {"frame_stack": 2}).open(range(1), 7)
    assert isinstance(plain.episode_metrics(), list)


def test_what_begins_for_learning_begins_with_a_stack_of_its_own():
    """If a game continues after the loss of a life, a restored stack has no frame of the life before."""
    environment = FrameStackedEnvironment(Lives(), 3)
    whole, again = environment.open([0], 0), environment.open([0], 0)
    out, restored = empty(environment.spec, 1), empty(environment.spec, 1)
    whole.reset(out.observation)
    for step in range(1, 9):
        whole.step({"agent": np.zeros(1, np.int32)}, out)
        again.restore([Episode(0, {"agent": np.zeros(step, np.int32)})], restored.observation)
        assert same(out.observation, restored.observation)


class Lives:
    """A host environment that loses a life in every third step and continues."""

    spec = EnvSpec.single("lives", Box((1,)), Discrete(2))

    def open(self, indices, seed, render=False):
        return LivesVector()


class LivesVector:
    stateful, watch = False, None

    def __init__(self):
        self.count, self.lives = 0, SimpleNamespace(first=np.ones(1, bool))

    def reset(self, observation):
        self.restore([Episode(0, {})], observation)

    def step(self, action, out):
        self.count += 1
        self.lives.first[:] = out.terminated[:] = self.count % 3 == 0
        out.truncated[:] = False
        out.observation["agent"][:] = out.last_observation["agent"][:] = self.count
        out.reward["agent"][:] = 1

    def restore(self, episodes, observation):
        self.count = len(episodes[0].actions.get("agent", ()))
        self.lives.first[:] = self.count % 3 == 0
        observation["agent"][:] = self.count
        return np.zeros(1, bool)

    def episode_numbers(self):
        return np.zeros(1, np.int64)


def test_pictures_are_those_of_the_environment():
    for environment in (make("own_envs:limited", frame_stack=2), Stepped(make("gymnax:CartPole-v1", frame_stack=2))):
        vector = environment.open(range(1), 0, render=True)
        vector.reset(empty(environment.spec, 1).observation)
        assert vector.render(0).ndim == 3
        vector.close()
    with pytest.raises(UserError, match="cannot be rendered"):
        Stepped(FrameStackedJaxEnvironment(toys.Corridor(), 2)).open(range(1), 0, render=True)


def test_a_policy_learns_from_stacks(tmp_path):
    small = PPO(unroll=8, hidden=(4,), epochs=1, minibatches=1)
    run = runnel.train(
        small, "CartPole-v1", envs=2, steps=64, env_settings={"frame_stack": 3}, run_dir=tmp_path, quiet=True
    )
    shapes = {leaf.shape for leaf in jax.tree.leaves(run.params)}
    assert (2, 12, 4) in shapes  # of the policy and the value
