"""Requirements of every environment that a worker steps, whatever its family."""

from functools import cache

import jax
import numpy as np
import pytest
from playing import empty, play, random_actions, same

from runnel.environment import HostEnvironment, is_traceable
from runnel.envs import make
from runnel.envs.stepped import Stepped
from runnel.types import Box, Discrete, MultiDiscrete

STEPS = 60
NAMES = [
    "CartPole-v1",
    "Pendulum-v1",
    "FrozenLake-v1",
    "HalfCheetah-v5",
    "ALE/Pong-v5",
    "envpool:CartPole-v1",
    "own_envs:Camera",
    "own_envs:Drunkard",
    "own_envs:Countdown",
    "own_envs:limited",
    "gymnax:CartPole-v1",
    "gymnax:Catch-bsuite",
    "jaxmarl:switch_riddle",
    pytest.param("jaxmarl:MPE_simple_tag_v3", marks=pytest.mark.slow),
    pytest.param("jaxmarl:3m", marks=pytest.mark.slow),
    pytest.param("jaxmarl:hanabi", marks=pytest.mark.slow),
    pytest.param("brax:reacher", marks=pytest.mark.slow),
    "pgx:tic_tac_toe",
    pytest.param("pgx:backgammon", marks=pytest.mark.slow),
    pytest.param("pgx:2048", marks=pytest.mark.slow),
    "matrix:rock_paper_scissors",
    "matrix:matching_pennies",
    "openspiel:leduc_poker",
    "openspiel:goofspiel",
    "toys:Corridor",
    "toys:Tag",
    "pettingzoo:mpe2.simple_tag_v3",
    "pettingzoo:classic.tictactoe_v3",
    "pettingzoo:own_zoo",
    "pettingzoo:own_turns",
    "own_vectors:cartpoles",
    "own_envs:Camera x3",
    "own_envs:Drunkard x4",
    "envpool:CartPole-v1 x2",
    "own_vectors:cartpoles x2",
    "toys:Tag x3",
    "pettingzoo:own_zoo x3",
]
"""`x3`: three frames are stacked."""
FEW_STARTS = {
    "FrozenLake-v1",
    "own_envs:Countdown",
    "toys:Corridor",
    "gymnax:Catch-bsuite",
    "ALE/Pong-v5",
    "pettingzoo:classic.tictactoe_v3",
    "pettingzoo:own_turns",
    "jaxmarl:switch_riddle",
    "pgx:tic_tac_toe",
    "matrix:rock_paper_scissors",
    "matrix:matching_pennies",
    "openspiel:leduc_poker",
    "openspiel:goofspiel",
}
"""Environments whose episodes often begin alike."""
PLAYED_ONCE = {"envpool:CartPole-v1", "own_vectors:cartpoles", "envpool:CartPole-v1 x2", "own_vectors:cartpoles x2"}
"""Environments whose episodes cannot be played again."""


@cache
def environment_of(name: str) -> HostEnvironment:
    name, _, frames = name.partition(" x")
    environment = make(name, **({"frame_stack": int(frames)} if frames else {}))
    return Stepped(environment) if is_traceable(environment) else environment


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def environment(name):
    return environment_of(name)


@cache
def played(name):
    return play(environment_of(name), STEPS)


def test_it_is_a_host_environment(environment):
    assert isinstance(environment, HostEnvironment)
    assert not is_traceable(environment)


def test_arrays_are_as_the_spec_says(environment, name):
    spec = environment.spec
    first, steps, _ = played(name)
    for observation in [first, *(step.observation for step in steps)]:
        for group, agents in spec.groups.items():
            leaves = jax.tree.leaves(agents.observation)
            for leaf, rows in zip(leaves, jax.tree.leaves(observation[group]), strict=True):
                assert rows.dtype == leaf.dtype
                assert rows.shape == (4 * agents.agents, *leaf.shape)
                assert within(leaf, rows)


def within(leaf, rows):
    match leaf:
        case Discrete():
            return ((rows >= 0) & (rows < leaf.n)).all()
        case MultiDiscrete():
            return ((rows >= 0) & (rows < leaf.sizes)).all()
        case Box():
            return ((rows >= leaf.low) & (rows <= leaf.high)).all()  # false of NaN, which marks what was not written


def test_every_step_is_written_and_nothing_ends_twice(name):
    for step in played(name).steps:
        assert all(np.isfinite(reward).all() for reward in step.reward.values())
        assert not (step.terminated & step.truncated).any()


def test_only_the_last_observations_of_ended_episodes_are_written(environment, name):
    untouched = empty(environment.spec, 4).last_observation
    _, steps, _ = played(name)
    written = np.zeros(4, bool)
    for step in steps:
        written |= step.terminated | step.truncated
        for group, agents in environment.spec.groups.items():
            mask = written.repeat(agents.agents)
            for rows, poison in zip(
                jax.tree.leaves(step.last_observation[group]), jax.tree.leaves(untouched[group]), strict=True
            ):
                assert same(rows[~mask], poison[~mask])


def test_episodes_end_at_the_limit(environment, name):
    limit = environment.spec.max_episode_steps
    _, steps, _ = played(name)
    lengths = np.zeros(4, int)
    for step in steps:
        lengths += 1
        assert limit is None or (lengths <= limit).all()
        lengths[step.terminated | step.truncated] = 0


def test_the_same_seed_plays_the_same(environment, name):
    assert same(play(environment, STEPS)[:2], played(name)[:2])


def test_another_seed_plays_another(environment, name):
    if name not in FEW_STARTS:
        assert not same(play(environment, 0, seed=8).first, played(name).first)


def test_each_environment_plays_its_own_episodes(environment, name):
    if name not in FEW_STARTS:
        for group, agents in environment.spec.groups.items():
            rows = [leaf.reshape(4, agents.agents, -1) for leaf in jax.tree.leaves(played(name).first[group])]
            starts = {tuple(leaf[i].tobytes() for leaf in rows) for i in range(4)}
            assert len(starts) == 4


def test_an_environment_does_not_depend_on_its_neighbours(environment, name):
    alone = play(environment, STEPS, indices=[2])
    together = played(name)
    for group, agents in environment.spec.groups.items():
        mine = slice(2 * agents.agents, 3 * agents.agents)
        for one, all_ in zip(alone.steps, together.steps, strict=True):
            chosen = jax.tree.map(lambda rows, mine=mine: rows[mine], all_.observation[group])
            assert same(one.observation[group], chosen)
            assert same(one.reward[group], all_.reward[group][mine])


@pytest.mark.parametrize("steps", [0, 5, 37])
def test_a_restored_vector_goes_on_as_if_nothing_had_happened(environment, name, steps):
    if name in PLAYED_ONCE:
        return
    before = play(environment, steps)
    arguments = {"step": steps} if isinstance(environment, Stepped) else {}
    on = play(environment, 20, restore=before.episodes, actions_seed=1, **arguments)
    # The same without a break: the second part's actions are drawn from a stream of their own.
    whole = _play_on(environment, steps, 20)
    assert same(on.first, whole[0])
    for a, b in zip(on.steps, whole[1], strict=True):
        assert same(a._replace(last_observation=None), b._replace(last_observation=None))
        for group, agents in environment.spec.groups.items():
            ended = (a.terminated | a.truncated).repeat(agents.agents)
            picked = [
                jax.tree.map(lambda rows, ended=ended: rows[ended], step.last_observation[group]) for step in (a, b)
            ]
            assert same(*picked)
    assert [episode.number for episode in on.episodes] == whole[2].tolist()


@pytest.mark.parametrize("name", sorted(PLAYED_ONCE))
def test_what_cannot_be_played_again_is_cut(environment, name):
    before = play(environment, 5)
    vector, out = environment.open(range(4), 7), empty(environment.spec, 4)
    assert vector.restore(before.episodes, out.observation).all()
    assert vector.episode_numbers().tolist() == [episode.number + 1 for episode in before.episodes]
    assert not same(out.observation, played(name).first)  # other episodes, and not the first ones again
    vector.step(random_actions(environment.spec, 4, np.random.default_rng(0)), out)
    assert not (out.terminated | out.truncated).any()
    vector.close()


def test_a_vector_can_be_closed_at_any_time(environment):
    """Before its reset, after it, and again; the next one begins in the same way."""
    environment.open(range(2), 0).close()
    begun = []
    for _ in range(2):
        vector, out = environment.open(range(2), 0), empty(environment.spec, 2)
        vector.reset(out.observation)
        vector.close()
        vector.close()
        begun.append(out.observation)
    assert same(*begun)


def _play_on(environment, steps, more):
    vector, out = environment.open(range(4), 7), empty(environment.spec, 4)
    vector.reset(out.observation)
    seen, at_break = [], jax.tree.map(np.copy, out.observation)
    for part, count in ((0, steps), (1, more)):
        rngs = [np.random.default_rng((part, index)) for index in range(4)]
        for _ in range(count):
            each = [random_actions(environment.spec, 1, rng) for rng in rngs]
            vector.step({g: np.concatenate([one[g] for one in each]) for g in environment.spec.groups}, out)
            if part == 0:
                at_break = jax.tree.map(np.copy, out.observation)
            else:
                seen.append(jax.tree.map(np.copy, out))
    numbers = vector.episode_numbers()
    vector.close()
    return at_break, seen, numbers
