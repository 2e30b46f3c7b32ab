"""The pgx adapter: seats, turns, masks, ends, chance, and agreement with pgx itself move by move."""

import re
import warnings
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import runnel
from runnel.algorithms.ppo import PPO
from runnel.cli.main import main
from runnel.environment import JaxEnvironment
from runnel.envs import make
from runnel.envs.pgx import PgxEnvironment
from runnel.errors import UserError
from runnel.observations import view
from runnel.types import Discrete

pgx = pytest.importorskip("pgx")

FAST = {"2048", "connect_four", "kuhn_poker", "minatar-breakout", "tic_tac_toe"}
LONGEST = {"tic_tac_toe": 9, "connect_four": 42, "kuhn_poker": 3}


@cache
def game(name, **settings):
    """An environment, and its functions compiled."""
    environment = PgxEnvironment(name, **settings)
    return environment, jax.jit(environment.reset), jax.jit(environment.step)


def types(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), tree)


def check_types(environment):
    """A step leaves every type as a reset made it, weak types too, and the spec says which they are."""
    assert isinstance(environment, JaxEnvironment)
    key = jax.eval_shape(jax.random.key, 0)
    ((_, group),) = environment.spec.groups.items()
    rows = (group.agents,) if group.agents > 1 else ()
    state, observation = jax.eval_shape(environment.reset, key)
    action = jax.ShapeDtypeStruct(rows, jnp.int32)
    stepped, timestep = jax.eval_shape(environment.step, state, action, key)
    assert types(stepped) == types(state)
    assert types(timestep.observation) == types(observation)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves((state, observation, timestep)))
    assert timestep.reward.shape == rows
    assert timestep.reward.dtype == jnp.result_type(float)
    assert timestep.terminated.dtype == timestep.truncated.dtype == jnp.bool
    for space, leaf in zip(jax.tree.leaves(group.observation), jax.tree.leaves(observation), strict=True):
        assert (leaf.shape, leaf.dtype) == ((*rows, *space.shape), space.dtype)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in pgx.available_envs()]
)
def test_types_are_stable(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        environment = PgxEnvironment(name)
        check_types(environment)
        with jax.enable_x64(True):
            check_types(environment)


@pytest.mark.filterwarnings("ignore:.*`player_id` in `observe` is deprecated")
@pytest.mark.parametrize("seed", range(4))
def test_tic_tac_toe_is_played_as_pgx_plays_it(seed):
    """Also that agent k is pgx's player k, and that what the player without a turn does has no effect."""
    _, reset, step = game("tic_tac_toe")
    own, rng, key = pgx.make("tic_tac_toe"), np.random.default_rng(seed), jax.random.key(seed)
    theirs, (state, shown) = jax.jit(own.init)(key), reset(key)
    own_step, observe = jax.jit(own.step), jax.jit(own.observe)
    first, ended = int(theirs.current_player), False
    while not ended:
        mover = int(theirs.current_player)
        seen, mask, active, _ = view(shown)
        assert active.tolist() == [player == mover for player in (0, 1)]
        np.testing.assert_array_equal(mask[mover], theirs.legal_action_mask)
        assert mask[1 - mover].all()
        for player in (0, 1):
            np.testing.assert_array_equal(seen[player], observe(theirs, player))
        action = np.zeros(2, np.int32)
        action[mover] = rng.choice(np.flatnonzero(theirs.legal_action_mask))
        action[1 - mover] = rng.integers(9)
        theirs = own_step(theirs, action[mover])
        state, timestep = step(state, action, key)
        np.testing.assert_array_equal(timestep.reward, theirs.rewards)
        assert bool(timestep.terminated) == bool(theirs.terminated)
        assert not timestep.truncated
        shown, ended = timestep.observation, bool(theirs.terminated)
    assert timestep.metrics["first_player"] == first
    assert timestep.metrics["first_player_return"] == theirs.rewards[first]
    assert not view(shown).active.any()
    assert view(shown).action_mask.all()


@pytest.mark.parametrize("name", LONGEST)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31 - 1))
def test_one_player_at_a_time_has_the_turn_and_games_are_zero_sum(name, seed):
    _, reset, step = game(name)
    rng, key = np.random.default_rng(seed), jax.random.key(seed)
    state, shown = reset(key)
    movers, total = [], np.zeros(2)
    for _ in range(LONGEST[name]):
        _, mask, active, _ = jax.device_get(view(shown))
        assert active.sum() == 1
        assert mask.any(axis=-1).all()
        assert mask[~active].all()
        movers.append(int(active.argmax()))
        action = np.array([rng.choice(np.flatnonzero(legal)) for legal in mask], np.int32)
        state, timestep = jax.device_get(step(state, action, key))
        total += timestep.reward
        shown = timestep.observation
        assert timestep.reward.sum() == 0
        if timestep.terminated:
            break
        assert not timestep.reward.any()
    assert timestep.terminated
    assert movers == [(movers[0] + turn) % 2 for turn in range(len(movers))]
    assert timestep.metrics["first_player"] == movers[0]
    assert timestep.metrics["first_player_return"] == total[movers[0]]


def test_either_player_moves_first():
    _, reset, _ = game("tic_tac_toe")
    assert {int(reset(jax.random.key(seed))[0].first) for seed in range(16)} == {0, 1}


def test_an_illegal_move_loses():
    _, reset, step = game("tic_tac_toe")
    state, shown = reset(jax.random.key(0))
    mover = int(view(shown).active.argmax())
    for _ in range(2):
        state, timestep = step(state, jnp.zeros(2, jnp.int32), jax.random.key(0))
    assert timestep.terminated
    assert timestep.reward[1 - mover] == -1
    assert timestep.reward.sum() == 0


def test_each_player_may_have_a_policy_of_its_own():
    environment = PgxEnvironment("kuhn_poker", groups="each")
    assert {name: (group.agents, group.names) for name, group in environment.spec.groups.items()} == {
        "player_0": (1, ("player_0",)),
        "player_1": (1, ("player_1",)),
    }
    together, key = game("kuhn_poker"), jax.random.key(3)
    state, shown = jax.jit(environment.reset)(key)
    other_state, rows = together[1](key)
    action = {"player_0": jnp.int32(1), "player_1": jnp.int32(0)}
    for _ in range(3):
        for player, name in enumerate(environment.spec.groups):
            row = jax.tree.map(lambda leaf, player=player: leaf[player], rows)
            jax.tree.map(np.testing.assert_array_equal, shown[name], row)
        state, one = jax.jit(environment.step)(state, action, key)
        other_state, other = together[2](other_state, jnp.array([1, 0]), key)
        assert [float(one.reward[name]) for name in environment.spec.groups] == other.reward.tolist()
        assert bool(one.terminated) == bool(other.terminated)
        shown, rows = one.observation, other.observation


def test_games_of_one_player_have_one_agent():
    alone = PgxEnvironment("2048").spec.groups["agent"]
    assert (alone.agents, alone.action) == (1, Discrete(4))
    assert sorted(alone.observation) == ["action_mask", "observation"]
    assert PgxEnvironment("minatar-breakout").spec.groups["agent"].observation.shape == (10, 10, 4)  # nothing is masked


def test_chance_is_drawn_from_the_key_of_the_step():
    _, reset, step = game("2048")
    state, shown = reset(jax.random.key(0))
    action = jnp.argmax(view(shown).action_mask)
    boards = {step(state, action, jax.random.key(key))[0].inner._board.tobytes() for key in (1, 1, 2, 3, 4)}
    assert len(boards) > 1
    assert step(state, action, jax.random.key(1))[0].inner._board.tobytes() in boards


def test_a_limit_is_a_truncation_and_leaves_no_player_to_move():
    environment, reset, step = game("tic_tac_toe", max_steps=2)
    assert environment.spec.max_episode_steps == 2
    state, _ = reset(jax.random.key(0))
    for action in ([0, 0], [1, 1]):
        state, timestep = step(state, jnp.array(action), jax.random.key(0))
    assert (bool(timestep.terminated), bool(timestep.truncated)) == (False, True)
    assert not view(timestep.observation).active.any()


def test_settings_are_those_of_the_class_in_pgx():
    board = PgxEnvironment("go_9x9", history_length=2).spec.groups["player"]
    assert (board.action, board.observation["observation"].shape) == (Discrete(82), (9, 9, 5))
    assert PgxEnvironment("minatar-breakout", use_minimal_action_set=False).spec.groups["agent"].action == Discrete(6)


@pytest.mark.slow
def test_the_longest_game_of_go_has_a_result():
    _, reset, step = game("go_9x9", max_terminal_steps=4)
    state, _ = reset(jax.random.key(0))
    for point in range(4):
        state, timestep = step(state, jnp.array([point, point]), jax.random.key(0))
    assert (bool(timestep.terminated), bool(timestep.truncated)) == (True, False)
    assert sorted(timestep.reward.tolist()) == [-1, 1]


@pytest.mark.parametrize(
    ("name", "given_settings", "words"),
    [
        ("tictactoe", {}, "no game of pgx is called 'tictactoe'; did you mean 'tic_tac_toe'"),
        ("bridge_bidding", {}, "no game of pgx is called 'bridge_bidding'"),
        ("go_9x9", {"koomi": 1}, "pgx:go_9x9 has no setting 'koomi'; did you mean 'komi'"),
        ("chess", {"size": 1}, "pgx:chess has no setting 'size'; known: groups, max_steps"),
        ("hex", {"size": 2.5}, r"pgx:hex cannot be made with size=2\.5"),
        ("chess", {"groups": "both"}, "pgx:chess: groups is 'both'; expected kind, each or one"),
        ("chess", {"max_steps": 0}, "pgx:chess: max_steps is 0; expected a whole number of 1 or more"),
    ],
)
def test_mistakes_are_reported(name, given_settings, words):
    with pytest.raises(UserError, match=words):
        make(f"pgx:{name}", **given_settings)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in pgx.available_envs() if name not in {*LONGEST, *FAST}])
def test_every_game_has_one_player_to_move_and_is_zero_sum(name):
    """Sixteen games of random legal moves each, or their first 400 moves."""
    environment = PgxEnvironment(name)
    actions = next(iter(environment.spec.groups.values())).action.n

    def moves(now, key):
        state, seen, over = now
        legal = view(seen).action_mask
        legal = jnp.ones(actions, jnp.bool) if legal is None else legal
        state, timestep = environment.step(state, jax.random.categorical(key, jnp.where(legal, 0.0, -jnp.inf)), key)
        return (state, timestep.observation, over | timestep.terminated), (seen, timestep.reward, over)

    def episode(key):
        return jax.lax.scan(moves, (*environment.reset(key), jnp.bool_(False)), jax.random.split(key, 400))[1]

    seen, reward, over = jax.device_get(jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), 16)))
    _, mask, active, _ = view(seen)
    assert mask is None or mask[~over].any(-1).all()
    if active is not None:
        assert (active[~over].sum(-1) == 1).all()
        assert not active[over].any()
        assert mask[~active].all()
        np.testing.assert_allclose(reward.sum((1, 2)), 0, atol=1e-6)
        assert not reward[over].any()


def test_ppo_trains_by_playing_itself(tmp_path, capsys):
    algorithm = PPO(unroll=16, epochs=1, minibatches=1)
    run = runnel.train(algorithm, "pgx:tic_tac_toe", "fused", envs=4, steps=256, run_dir=tmp_path, quiet=True)
    assert (run.result["status"], run.result["env_steps"]) == ("finished", 256)
    assert run.result["mean_return"] == 0  # what one player wins, the other loses
    assert main(["eval", str(tmp_path), "--episodes", "2"]) == 0
    assert re.search(r"env/first_player_return -?\d", capsys.readouterr().out)
