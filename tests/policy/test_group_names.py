"""`init` receives the name of its group where it asks for it, in a run and wherever a stored policy is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policies import fresh
from toys import Corridor, Reinforce, State

import runnel
from runnel.algorithm import PerGroup, first_state
from runnel.algorithms.opponent_pool import OpponentPool
from runnel.errors import UserError
from runnel.graph.flow import trace
from runnel.matchmaking import Latest
from runnel.policy import Policy
from runnel.runtime.programs.loop import Loop
from runnel.types import Act, AgentSpec, Box, Discrete, EnvSpec

RANKS = {"left": 1, "right": 3}
ONE = AgentSpec(Box((2,)), Discrete(2))
PAIR = EnvSpec("pair", dict.fromkeys(RANKS, ONE), 10)


@dataclass(frozen=True)
class Ranked(Reinforce):
    """Each group's policy has factors of a rank of its own, though the groups' specs are equal."""

    def init(self, key: Any, spec: Any, group: str) -> State:  # type: ignore[override]
        params = {"w": 0.1 * jax.random.normal(key, (2, RANKS[group])), "b": jnp.ones((RANKS[group], 2))}
        return State(params, ())

    def act(self, params: Any, observation: Any, memory: Any, key: Any, explore: bool) -> Act:
        return Act((observation @ params["w"] @ params["b"]).argmax().astype(jnp.int32))

    def learn(self, state: Any, trajectory: Any, key: Any) -> Any:
        return state, {"loss": trajectory.reward.mean()}


@dataclass(frozen=True)
class ByKeyword(Reinforce):
    def init(self, key: Any, spec: Any, *, group: str = "nobody") -> State:
        state = super().init(key, spec)
        return state._replace(params={**state.params, "b": state.params["b"] + len(group)})


@dataclass(frozen=True)
class Unknown(Reinforce):
    def init(self, key: Any, spec: Any, group: str, other: int) -> State:  # type: ignore[override]
        return super().init(key, spec)


class Pair(Corridor):
    """Two groups with equal specs, in the same corridor."""

    spec = PAIR

    def reset(self, key: Any) -> Any:
        state, seen = Corridor.reset(self, key)
        return state, self._both(seen)

    def step(self, state: Any, action: Any, key: Any) -> Any:
        state, step = Corridor.step(self, state, action["left"], key)
        return state, step._replace(observation=self._both(step.observation), reward=dict.fromkeys(RANKS, step.reward))

    def _both(self, seen: Any) -> Any:
        return dict.fromkeys(RANKS, seen)


def ranks(states: Any) -> dict[str, int]:
    return {group: state.params["w"].shape[-1] for group, state in states.items()}


@pytest.mark.parametrize("algorithm", [Ranked(), PerGroup({name: Ranked() for name in RANKS})])
def test_groups_with_equal_specs_begin_with_states_of_their_own(algorithm: Any) -> None:
    loop = Loop(trace(algorithm, PAIR, 4))
    assert ranks(loop.graph.states) == RANKS
    assert ranks({group: loop.init_state(jnp.uint32(1), group) for group in RANKS}) == RANKS


def test_the_name_may_be_taken_by_keyword_and_need_not_be_taken() -> None:
    key = jax.random.key(0)
    found = {group: first_state(ByKeyword(), key, ONE, group).params["b"][0] for group in RANKS}
    assert found == {"left": 4, "right": 5}
    assert first_state(Reinforce(), key, ONE, "left").params["b"][0] == 0
    trace(ByKeyword(), PAIR, 4)


def test_any_other_parameter_is_still_refused() -> None:
    with pytest.raises(UserError, match=r"expected init\(key, spec\)"):
        trace(Unknown(), PAIR, 4)


@pytest.mark.parametrize("group", RANKS)
def test_a_stored_policy_is_loaded_as_the_group_that_it_was_trained_as(group: str) -> None:
    _, states, policies = fresh(Ranked(), Pair())
    policy = policies[group]
    assert policy.config.group == group
    again = Policy(policy.algorithm, policy.config, policy.arrays)
    jax.tree.map(np.testing.assert_array_equal, again.params, states[group].params)
    assert again.params["w"].shape == (2, RANKS[group])


def test_a_pool_has_places_for_the_policies_of_the_group_that_plays_there() -> None:
    pool = OpponentPool(Ranked(), Latest(), learner="right")
    params = first_state(pool, jax.random.key(0), ONE, "left").params
    assert params.places["w"].shape[1:] == (2, 3)
    alone = OpponentPool(Ranked(), Latest())
    assert first_state(alone, jax.random.key(0), ONE, "left").params.places["w"].shape[1:] == (2, 1)


def test_a_run_trains_and_its_policies_can_be_loaded(tmp_path: Any) -> None:
    run = runnel.train(Ranked(unroll=4), Pair(), "inline", envs=2, steps=16, seed=1, quiet=True, run_dir=tmp_path / "r")
    assert run.result["updates"] > 0
    loaded = runnel.load(tmp_path / "r")
    assert ranks({group: loaded[group] for group in RANKS}) == RANKS
