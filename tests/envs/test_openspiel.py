"""The OpenSpiel adapter: agreement with OpenSpiel itself, turns and simultaneous moves, chance, and mistakes."""

import subprocess
import sys

import jax
import numpy as np
import pytest
from playing import empty, play, same

import runnel
from runnel.algorithms.ppo import PPO
from runnel.environment import episode_seed
from runnel.envs import make
from runnel.errors import UserError
from runnel.observations import view
from runnel.types import Discrete

pyspiel = pytest.importorskip("pyspiel")

SEED = 7


class Table:
    """One environment and where it writes."""

    def __init__(self, name, **settings):
        self.environment = make(f"openspiel:{name}", **settings)
        (self.group,) = self.environment.spec.groups
        self.vector = self.environment.open([0], SEED)
        self.out = empty(self.environment.spec, 1)
        self.vector.reset(self.out.observation)

    @property
    def shown(self):
        return view(self.out.observation[self.group])

    def step(self, *actions):
        self.vector.step({self.group: np.array(actions, np.int32)}, self.out)
        return jax.tree.map(np.copy, self.out)


def begin(game, episode):
    """OpenSpiel's own state at the first decision of an episode: chance drawn as the adapter says it is."""
    rng, state = np.random.default_rng(episode_seed(SEED, 0, episode)), game.new_initial_state()
    draw(state, rng)
    return state, rng


def draw(state, rng):
    while state.is_chance_node():
        outcomes, probabilities = zip(*state.chance_outcomes(), strict=True)
        state.apply_action(outcomes[int(np.searchsorted(np.cumsum(probabilities), rng.random(), side="right"))])


@pytest.mark.parametrize("name", ["kuhn_poker", "leduc_poker", "tic_tac_toe"])
def test_games_are_played_as_openspiel_plays_them(name):
    table, game, choices = Table(name), pyspiel.load_game(name), np.random.default_rng(0)
    tensor = "information_state_tensor" if name != "tic_tac_toe" else "observation_tensor"
    for episode in range(12):
        state, rng = begin(game, episode)
        while not state.is_terminal():
            mover, shown = state.current_player(), table.shown
            assert shown.active.tolist() == [player == mover for player in (0, 1)]
            np.testing.assert_array_equal(shown.action_mask[mover], state.legal_actions_mask())
            assert shown.action_mask[1 - mover].all()
            for player in (0, 1):
                np.testing.assert_array_equal(shown.seen[player].ravel(), getattr(state, tensor)(player))
            actions = [int(choices.integers(game.num_distinct_actions()))] * 2  # of the other: ignored
            actions[mover] = int(choices.choice(state.legal_actions()))
            before = np.array(state.returns())
            state.apply_action(actions[mover])
            draw(state, rng)
            out = table.step(*actions)
            np.testing.assert_allclose(out.reward["player"], np.array(state.returns()) - before)
            assert out.reward["player"].sum() == 0
            assert bool(out.terminated[0]) == state.is_terminal()
            assert not out.truncated[0]
        assert not view(out.last_observation["player"]).active.any()
        (ended,) = table.vector.episode_metrics()
        assert ended.values == {"player_0_return": state.returns()[0]}
    assert table.vector.episode_numbers().tolist() == [12]


def test_cards_differ_between_episodes_and_are_dealt_with_their_probabilities():
    environment = make("openspiel:kuhn_poker")
    first = view(play(environment, 0, indices=range(300)).first["player"]).seen.reshape(300, 2, -1)
    cards = first[:, :, 2:5].argmax(-1)  # the information state has the player, its card and the bets
    assert (cards[:, 0] != cards[:, 1]).all()
    deals, counts = np.unique(cards, axis=0, return_counts=True)
    assert len(deals) == 6
    assert counts.min() > 25


def test_players_that_move_at_the_same_time_are_all_active():
    table = Table("matrix_rps")
    assert table.shown.active.all()
    out = table.step(0, 1)  # rock and paper
    assert out.reward["player"].tolist() == [-1, 1]
    assert out.terminated.all()


def test_simultaneous_games_are_played_as_openspiel_plays_them():
    table, game = Table("goofspiel", num_cards=4), pyspiel.load_game("goofspiel", {"num_cards": 4})
    choices = np.random.default_rng(1)
    state, rng = begin(game, 0)
    while not state.is_terminal():
        for player in (0, 1):
            np.testing.assert_array_equal(table.shown.action_mask[player], state.legal_actions_mask(player))
        actions = [int(choices.choice(state.legal_actions(player))) for player in (0, 1)]
        before = np.array(state.returns())
        state.apply_actions(actions)
        draw(state, rng)
        out = table.step(*actions)
        np.testing.assert_allclose(out.reward["player"], np.array(state.returns()) - before)
    assert out.terminated.all()


def test_games_that_draw_their_chance_themselves_play_an_episode_again():
    environment = make("openspiel:negotiation")
    assert same(play(environment, 20).steps, play(environment, 20).steps)
    assert not same(play(environment, 0).first, play(environment, 0, seed=8).first)


def test_what_players_see_is_a_choice():
    default, now = make("openspiel:kuhn_poker"), make("openspiel:kuhn_poker", observe="observation")
    shapes = [view(one.spec.groups["player"].observation).seen.shape for one in (default, now)]
    assert shapes == [(11,), (7,)]


def test_parameters_of_a_game_are_settings():
    three = make("openspiel:kuhn_poker", players=3).spec
    assert (three.groups["player"].agents, three.max_episode_steps) == (3, 5)


def test_groups_and_one_player():
    assert list(make("openspiel:tic_tac_toe", groups="each").spec.groups) == ["player_0", "player_1"]
    alone = make("openspiel:2048").spec.groups["agent"]
    assert (alone.agents, alone.action) == (1, Discrete(4))
    assert sorted(alone.observation) == ["action_mask", "observation"]


def test_an_illegal_move_ends_the_game_at_its_lowest_utility():
    table = Table("tic_tac_toe")
    table.step(0, 0)
    out = table.step(0, 0)
    assert out.terminated.all()
    assert out.reward["player"].tolist() == [1, -1]  # the second player took a field that was taken
    assert not table.vector.failures()


def test_the_state_is_what_all_players_see():
    table = Table("kuhn_poker", state=True)
    np.testing.assert_array_equal(table.shown.state[0], table.shown.seen.ravel())


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("kuhn_pokr", {}, "no game of OpenSpiel is called 'kuhn_pokr'; did you mean 'kuhn_poker'"),
        ("kuhn_poker(players=3)", {}, r"no game of OpenSpiel is called 'kuhn_poker\(players=3\)'"),
        ("kuhn_poker", {"player": 3}, "openspiel:kuhn_poker has no setting 'player'; did you mean 'players'"),
        ("kuhn_poker", {"players": 2.5}, r"players is 2\.5; expected a whole number, like 2"),
        ("kuhn_poker", {"players": 99}, "players is 99; expected 2 to 10"),
        ("kuhn_poker", {"groups": "both"}, "groups is 'both'; known: each, kind, one"),
        ("kuhn_poker", {"observe": "all"}, "observe is 'all'; this game has information_state and observation"),
        ("tic_tac_toe", {"observe": "information_state"}, "observe is 'information_state'; this game has observation"),
        ("cribbage", {}, "has no tensor that a player could see"),
        ("crossword", {}, "has no tensor that a player could see"),  # though it says that it has one
        ("nfg_game", {}, "openspiel:nfg_game cannot be made with no settings"),
        ("mfg_crowd_modelling", {}, "is a mean-field game; expected a game of one or more players"),
        ("misere", {}, "openspiel:misere cannot be made with no settings: Missing parameter game"),
    ],
)
def test_mistakes_are_reported(name, settings, words):
    with pytest.raises(UserError, match=words) as caught:
        make(f"openspiel:{name}", **settings)
    assert "\n" not in str(caught.value)


def test_jax_is_not_imported():
    code = (
        "import sys, runnel.envs; runnel.envs.make('openspiel:kuhn_poker').open([0], 0);"
        "print('jax' in sys.modules, 'pettingzoo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False False\n"


@pytest.mark.parametrize("distribution", ["inline", "coarse"])
def test_ppo_trains_by_playing_itself(distribution, tmp_path):
    algorithm = PPO(unroll=16, epochs=1, minibatches=1)
    run = runnel.train(algorithm, "openspiel:kuhn_poker", distribution, envs=4, steps=256, run_dir=tmp_path, quiet=True)
    assert (run.result["status"], run.result["mean_return"]) == ("finished", 0)
