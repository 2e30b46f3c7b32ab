"""The stages are recognised in order, by metrics that the environment reports."""

import jax
import jax.numpy as jnp
from hide_scenes import game

from hide_and_seek.stages import STAGES, reached

NOTHING = {
    "seen": 0.2, "max_box_move_prep": 0.2, "num_box_lock_prep": 0.4, "seeker_climbed": 0.0, "max_ramp_move": 0.1,
    "num_ramp_lock_prep": 0.0,
}  # fmt: skip
RUNNING = {**NOTHING, "seen": 0.7}
SHELTER = {**NOTHING, "max_box_move_prep": 1.0, "num_box_lock_prep": 1.2, "seen": 0.3}
RAMPS = {**SHELTER, "seeker_climbed": 0.6, "max_ramp_move": 1.0, "seen": 0.6}
DEFENCE = {**SHELTER, "num_ramp_lock_prep": 0.9, "seen": 0.2}


def test_stages_are_reached_in_order():
    assert [stage.name for stage in STAGES] == ["running", "shelter", "ramp use", "ramp defence"]
    assert reached([NOTHING, RUNNING, RUNNING, SHELTER, RAMPS, DEFENCE, DEFENCE]) == [1, 3, 4, 5]


def test_a_stage_before_its_time_does_not_count():
    assert reached([DEFENCE, SHELTER, NOTHING]) == []
    assert reached([DEFENCE, RUNNING, DEFENCE, DEFENCE]) == [1, 2]


def test_conditions_are_on_metrics_of_the_environment():
    environment, reset, _, _ = game("quadrant")
    state, _ = reset(jax.random.key(0))
    names = environment._measures(state).keys()
    assert {condition.metric for stage in STAGES for condition in stage.conditions} <= names


def test_agents_that_act_at_random_reach_none():
    environment = game("quadrant")[0]

    def play(key):
        begin_key, act_key = jax.random.split(key)
        state, _ = environment.reset(begin_key)
        drawn = jax.random.randint(act_key, (80, environment.agents, 5), 0, jnp.array([11, 11, 11, 2, 2]))
        return jax.lax.scan(lambda state, moves: environment.step(state, moves, key), state, drawn)[1].metrics

    metrics = jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(0), 16))
    means = {name: float(values[:, -1].mean()) for name, values in metrics.items()}
    assert not any(stage.holds(means) for stage in STAGES), means
    assert 0 < means["seen"] < 0.6


def test_each_condition_matters():
    for stage, holds in zip(STAGES, (RUNNING, SHELTER, RAMPS, DEFENCE), strict=True):
        for condition in stage.conditions:
            assert stage.holds(holds)
            off = condition.value + (0.01 if condition.bound == "at most" else -0.01)
            assert not stage.holds({**holds, condition.metric: off})
