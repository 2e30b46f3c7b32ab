"""What cannot be trained is refused while it is being built, in words that say found, wanted and remedy."""

import jax.numpy as jnp
import pytest
from toys import Corridor, Reinforce

import runnel
from runnel.errors import UserError


class FloatClock(Corridor):
    """Its state changes type at the first step."""

    def step(self, state, action, key):
        (place, clock), timestep = super().step(state, action, key)
        return (place, clock.astype(jnp.float32)), timestep


class WideObservation(Corridor):
    """Sees three numbers where its spec says two."""

    def _observe(self, state):
        return jnp.zeros(3, jnp.float32)


class ManyRewards(Corridor):
    """Gives a vector of rewards to its one agent."""

    def step(self, state, action, key):
        state, timestep = super().step(state, action, key)
        return state, timestep._replace(reward=jnp.zeros(2))


class ComplexReward(Corridor):
    """Gives a complex number as its reward."""

    def step(self, state, action, key):
        state, timestep = super().step(state, action, key)
        return state, timestep._replace(reward=timestep.reward + 0j)


class NumberedEnd(Corridor):
    """Says whether it ended with a number."""

    def step(self, state, action, key):
        state, timestep = super().step(state, action, key)
        return state, timestep._replace(terminated=timestep.terminated.astype(jnp.int32))


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ("FloatClock", r"step gives a state whose \[1\] is float32\[\]; wanted int32\[\]"),
        ("WideObservation", r"reset gives an observation that is float32\[3\]; wanted float32\[2\]"),
        ("ManyRewards", r"step gives rewards float\d+\[2\], wanted"),
        ("ComplexReward", r"step gives rewards complex\d+\[\], wanted real numbers"),
        ("NumberedEnd", r"step gives terminated as int32\[\], wanted a single bool"),
    ],
)
def test_a_jax_environment_that_does_not_keep_its_word(environment, message):
    with pytest.raises(UserError, match=message):
        runnel.build(Reinforce(), f"test_building:{environment}", "fused", envs=4)


def test_sizes_that_make_no_sense():
    with pytest.raises(UserError, match="--envs 0"):
        runnel.build(Reinforce(), "toys:Corridor", envs=0)
    with pytest.raises(UserError, match="--steps 0"):
        runnel.train(Reinforce(), "toys:Corridor", steps=0)


def test_a_host_environment_cannot_be_fused_and_the_error_says_what_can():
    with pytest.raises(UserError, match=r"host environment.*--distribution inline.*gymnax:CartPole-v1"):
        runnel.build("ppo", "CartPole-v1", "fused")


def test_a_setting_of_the_wrong_type_from_python():
    with pytest.raises(UserError, match="learning_rate"):
        runnel.build(Reinforce(learning_rate="fast"), "toys:Corridor")


def test_named_algorithms_take_tuned_settings_and_the_users_override_them():
    tuned = runnel.build("ppo", "CartPole-v1")
    own = runnel.build("ppo", "CartPole-v1", settings={"discount": 0.5})
    assert own.algorithm.discount == 0.5
    assert own.algorithm.unroll == tuned.algorithm.unroll
    assert {"discount=0.98", "unroll=128"} <= set(tuned.tuned)
    assert set(own.tuned) == set(tuned.tuned) - {"discount=0.98"}
    assert runnel.build(own.algorithm, "CartPole-v1").tuned == ()


def test_how_many_environments_are_tuned_too_unless_it_is_said():
    assert "--envs 16" in runnel.build("a2c", "CartPole-v1").tuned
    assert not any("--envs" in each for each in runnel.build("a2c", "CartPole-v1", envs=8).tuned)


class World:
    """What somebody might pass in the place of its name."""


def test_an_environment_is_asked_for_by_its_name() -> None:
    with pytest.raises(UserError, match=r"wanted a name, such as 'CartPole-v1' or '.*:World'"):
        runnel.build("ppo", World)  # type: ignore[arg-type]
