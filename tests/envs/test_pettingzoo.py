"""The PettingZoo adapter: groups, agents that die and arrive, turns, masks, states, and what is said of mistakes."""

import subprocess
import sys

import jax
import numpy as np
import pytest
from own_zoo import END, Caravan
from playing import empty, play, random_actions, same

import runnel
from runnel.algorithms.ppo import PPO
from runnel.environment import Episode, episode_seed
from runnel.envs import make
from runnel.envs.recovery import MOST_IN_A_ROW
from runnel.errors import EnvironmentFailed, UserError
from runnel.observations import view
from runnel.types import Box, Discrete

SEED = 7
SPREAD, TAG = "pettingzoo:mpe2.simple_spread_v3", "pettingzoo:mpe2.simple_tag_v3"
TICTACTOE = "pettingzoo:classic.tictactoe_v3"


class Table:
    """A vector of environments and where it writes."""

    def __init__(self, name, indices=(0,), **settings):
        self.environment = make(name, **settings)
        self.vector = self.environment.open(list(indices), SEED)
        self.out = empty(self.environment.spec, len(indices))
        self.vector.reset(self.out.observation)

    def step(self, *actions):
        """The arrays of the only group; returns a copy of everything written."""
        (group,) = self.environment.spec.groups
        self.vector.step({group: np.array(actions, np.int32)}, self.out)
        return jax.tree.map(np.copy, self.out)


# Agents that are all there from first to last


def test_agents_of_one_kind_form_a_group():
    spec = make(TAG).spec
    assert {name: group.agents for name, group in spec.groups.items()} == {"adversary": 3, "agent": 1}
    assert isinstance(spec.groups["agent"].observation, Box)  # they never die: nothing needs to be said of that
    assert spec.groups["adversary"].action == Discrete(5)


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("mpe2.simple_adversary_v3", {"adversary": 1, "agent": 2}),
        ("classic.tictactoe_v3", {"player": 2}),
        ("classic.connect_four_v3", {"player": 2}),
        ("classic.rps_v2", {"player": 2}),
    ],
)
def test_players_of_a_game_form_a_group_by_their_role(name, groups):
    found = make(f"pettingzoo:{name}").spec.groups
    assert {group: spec.agents for group, spec in found.items()} == groups


def test_each_agent_may_have_its_own_policy():
    assert list(make(TAG, groups="each").spec.groups) == ["adversary_0", "adversary_1", "adversary_2", "agent_0"]


def test_all_agents_may_share_one():
    assert make("pettingzoo:classic.go_v5", groups="one", board_size=3).spec.groups["agent"].agents == 2
    with pytest.raises(UserError, match=r"adversary_0 sees .*\(16,\).*agent_0 sees .*\(14,\).*Use 'kind'"):
        make(TAG, groups="one")


def test_the_vector_plays_as_a_plain_loop_does():
    from mpe2 import simple_tag_v3

    environment, plain, index, episode = make(TAG, state=True), simple_tag_v3.parallel_env(), 5, 0
    vector, out, rng = environment.open([index], SEED), empty(environment.spec, 1), np.random.default_rng(0)
    vector.reset(out.observation)
    observations, _ = plain.reset(seed=episode_seed(SEED, index, 0))
    agents = {"adversary": plain.possible_agents[:3], "agent": plain.possible_agents[3:]}
    for _ in range(60):
        action = random_actions(environment.spec, 1, rng)
        chosen = {name: act for group, names in agents.items() for name, act in zip(names, action[group], strict=True)}
        observations, rewards, terminations, truncations, _ = plain.step(chosen)
        state = plain.state()
        vector.step(action, out)
        over = any(truncations.values())
        assert (out.terminated[0], out.truncated[0]) == (any(terminations.values()), over)
        if over:
            episode += 1
        for group, names in agents.items():
            shown = view((out.last_observation if over else out.observation)[group])
            np.testing.assert_array_equal(shown.seen, [observations[name] for name in names])
            np.testing.assert_array_equal(shown.state, [state] * len(names))
            np.testing.assert_array_equal(out.reward[group], np.float32([rewards[name] for name in names]))
        if over:
            observations, _ = plain.reset(seed=episode_seed(SEED, index, episode))
            for group, names in agents.items():
                np.testing.assert_array_equal(view(out.observation[group]).seen, [observations[n] for n in names])
    assert episode == 2


# Agents that die and arrive


def test_agents_that_die_and_arrive_are_active_while_they_are_there():
    table = Table("pettingzoo:own_zoo")
    first = view(jax.tree.map(np.copy, table.out.observation["walker"]))
    assert first.active.tolist() == [True, True, False]
    assert not first.seen[2].any()  # not yet there
    steps = [table.step(1, 1, 1) for _ in range(END)]
    shown = [view(step.observation["walker"]) for step in steps]
    assert [one.active.tolist() for one in shown[:4]] == [
        [True, True, False],
        [False, True, False],  # the first died with this step
        [False, True, True],  # the third arrives
        [False, True, True],
    ]
    assert [one.seen[0, 0] for one in shown[:4]] == [1, 2, 0, 0]  # a dead one sees its last once, then nothing
    assert [one.seen[2, 1] for one in shown[:4]] == [0, 0, 3, 3]
    assert [step.reward["walker"].tolist() for step in steps] == [
        [1, 2, 0],
        [-9, 2, 0],
        [0, 2, 0],
        [0, 2, 3],
        [0, 2, 3],
    ]
    assert [bool(step.terminated[0]) for step in steps] == [False, False, False, False, True]
    last = view(steps[-1].last_observation["walker"])
    assert last.seen[:, 0].tolist() == [0, END, END]
    assert not last.active.any()  # nobody acts after the end
    assert view(steps[-1].observation["walker"]).active.tolist() == [True, True, False]  # the next episode


@pytest.mark.parametrize(("end", "terminated"), [("terminated", True), ("truncated", False), ("mixed", False)])
def test_an_episode_terminates_where_all_that_were_left_did(end, terminated):
    table = Table("pettingzoo:own_zoo", end=end)
    step = [table.step(1, 1, 1) for _ in range(END)][-1]
    assert (step.terminated[0], step.truncated[0]) == (terminated, not terminated)


def test_masks_in_infos_are_shown_and_allow_everything_to_those_that_do_not_act():
    table = Table("pettingzoo:own_zoo", masked=True)
    assert table.environment.spec.groups["walker"].observation["action_mask"].shape == (4,)
    for _ in range(3):
        masks = view(table.step(2, 2, 3).observation["walker"]).action_mask
    assert masks.tolist() == [[True] * 4, [True, False, True, True], [True, True, False, True]]


def test_an_observation_need_not_say_who_acts():
    assert isinstance(make("pettingzoo:own_zoo", active=False).spec.groups["walker"].observation, Box)
    assert view(make(SPREAD, active=True).spec.groups["agent"].observation).active.dtype == np.bool_


def test_without_a_state_of_its_own_it_is_what_all_agents_see():
    table = Table("pettingzoo:own_zoo", state=True)
    shown = view(table.step(1, 1, 1).observation["walker"])
    assert shown.state.shape == (3, 9)
    np.testing.assert_array_equal(shown.state, [shown.seen.reshape(-1)] * 3)


# Turns


def test_the_end_of_a_game_reaches_winner_and_loser_at_once():
    table = Table(TICTACTOE)
    assert view(table.out.observation["player"]).active.tolist() == [True, False]
    for turn, place in enumerate([0, 3, 1, 4]):  # the one whose turn it is places; what the other does is ignored
        step = table.step(*((place, 8) if turn % 2 == 0 else (8, place)))
        shown = view(step.observation["player"])
        assert shown.active.tolist() == [turn % 2 == 1, turn % 2 == 0]
        assert shown.action_mask[turn % 2].all()  # has no turn: anything may be said
        assert shown.action_mask[1 - turn % 2].sum() == 8 - turn
        assert step.reward["player"].tolist() == [0, 0]
    step = table.step(2, 8)
    assert step.reward["player"].tolist() == [1, -1]
    assert (step.terminated[0], step.truncated[0]) == (True, False)
    last = view(step.last_observation["player"]).seen
    assert last[0, :, :, 0].sum() == 3  # the winner's marks, seen by itself
    np.testing.assert_array_equal(last[0], last[1, :, :, ::-1])
    assert not view(step.observation["player"]).seen.any()  # an empty board again


def test_who_is_knocked_out_of_a_game_leaves_and_the_others_go_on():
    table = Table("pettingzoo:own_turns")
    spec = table.environment.spec.groups["player"]
    assert spec.agents == 3
    assert view(spec.observation).seen.keys() == {"me", "turns"}
    assert view(table.out.observation["player"]).action_mask[0].tolist() == [False, True]  # must not pass at first
    step = table.step(1, 0, 0)  # the first knocks out the second; the third has the turn
    shown = view(step.observation["player"])
    assert step.reward["player"].tolist() == [1, -1, 0]
    assert shown.active.tolist() == [False, False, True]
    assert shown.seen["me"].tolist() == [0, 1, 2]
    step = table.step(1, 1, 0)  # the third passes
    shown = view(step.observation["player"])
    assert shown.active.tolist() == [True, False, False]
    assert shown.seen["turns"][:, 0].tolist() == [2, 0, 2]  # nothing is left of the second
    step = table.step(1, 1, 0)
    assert step.reward["player"].tolist() == [6, 0, -1]
    assert step.terminated[0]


def test_a_game_that_is_cut_is_truncated():
    table = Table("pettingzoo:own_turns", limit=2)
    table.step(1, 0, 0)
    assert table.step(0, 0, 0).truncated[0]


# Failures


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ("raise", "step raised ValueError: the well is dry"),
        ("nan", "step returned NaN in its observation, for walker_2"),
        (
            "shape",
            "step returned an observation 'observation' of shape (2,), its observation_space expects (3,), for walker",
        ),
        ("reward", "step returned NaN as its reward, for walker_1"),
        ("huge", "step returned 1e+300 as its reward, which is infinite as float32, for walker_1"),
        ("complex", "step returned an observation 'observation' of complex64, its observation_space expects float32"),
        ("exit", "step raised SystemExit: 0"),
        ("missing", "step returned no observation for walker_1, which is one of its agents"),
        ("stranger", "step has an agent 'bandit_0', which is not in possible_agents"),
    ],
)
def test_an_environment_that_fails_is_cut_at_its_last_good_step_and_its_neighbour_plays_on(fault, what, monkeypatch):
    alone = play(make("pettingzoo:own_zoo"), 8, indices=[1])
    monkeypatch.setattr(Caravan, "reset", _failing_only_first(Caravan.reset, fault))
    both = play(make("pettingzoo:own_zoo"), 8, indices=[0, 1])
    for one, two in zip(alone.steps, both.steps, strict=True):
        assert same(jax.tree.map(lambda rows: rows[3:], two.observation), one.observation)
        assert same(two.reward["walker"][3:], one.reward["walker"])
    failed = both.steps[3]
    assert failed.truncated.tolist() == [True, False]
    assert failed.reward["walker"][:3].tolist() == [0, 0, 0]
    last = view(failed.last_observation["walker"])
    assert last.seen[:3, 0].tolist() == [0, 3, 3]
    assert last.active[:3].tolist() == [False, True, True]
    table = Table("pettingzoo:own_zoo", indices=(0, 1))
    for _ in range(4):
        table.step(*[1] * 6)
    (failure,) = table.vector.failures()
    assert (failure.row, failure.index, failure.episode) == (0, 0, 0)
    assert failure.what.startswith(what)


def _failing_only_first(reset, fault):
    """Environment 0's first episode goes wrong, and no other."""

    def wrapped(self, seed=None, options=None):
        self.fault = fault if seed == episode_seed(SEED, 0, 0) else ""
        return reset(self, seed, options)

    return wrapped


def test_an_environment_that_fails_always_ends_the_run():
    table = Table("pettingzoo:own_zoo")

    def fail():
        table.vector.condemn(0, int(table.vector.episode_numbers()[0]), "it hangs")
        table.step(1, 1, 1)

    for _ in range(MOST_IN_A_ROW - 1):
        fail()
    with pytest.raises(EnvironmentFailed, match="it hangs"):
        fail()


def test_an_environment_that_cannot_be_reset_is_reported_with_its_own_traceback(monkeypatch):
    monkeypatch.setattr(Caravan, "reset", lambda self, seed=None: self.horses)
    with pytest.raises(EnvironmentFailed, match=r"(?s)own_zoo: reset raised AttributeError.*traceback.*self\.horses"):
        make("pettingzoo:own_zoo")


def test_the_watch_is_called_with_the_row_that_is_stepped():
    table, told = Table("pettingzoo:own_zoo", indices=(0, 1)), []
    table.vector.watch = told.append
    table.step(*[1] * 6)
    assert told == [0, 1, -1]


def test_an_episode_that_ends_early_when_played_again_is_cut():
    environment = make("pettingzoo:own_zoo")
    vector, out = environment.open([0], SEED), empty(environment.spec, 1)
    cut = vector.restore([Episode(3, {"walker": np.ones((END + 1, 3), np.int32)})], out.observation)
    assert cut.tolist() == [True]
    assert vector.episode_numbers().tolist() == [4]
    assert "ended after 5: the environment is not deterministic" in vector.failures()[0].what


# Names, settings and pictures


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("mpe2.simple_spred_v3", {}, "did you mean 'mpe2.simple_spread_v3'"),
        ("classic.tictactoe_v2", {}, "did you mean 'classic.tictactoe_v3'"),
        ("simple_tag_v3", {}, "did you mean 'mpe2.simple_tag_v3'"),
        ("os.path", {}, "of Python's standard library"),
        ("own_envs", {}, "'own_envs' has neither `parallel_env` nor `env`"),
        ("mpe2.simple_tag_v3", {"groups": "two"}, "groups is 'two'; known: each, kind, one"),
        ("mpe2.simple_tag_v3", {"foxes": 1}, "has no setting 'foxes'; leave it out"),
    ],
)
def test_mistakes_are_reported(name, settings, words):
    with pytest.raises(UserError, match=words):
        make(f"pettingzoo:{name}", **settings)


@pytest.mark.parametrize(("name", "size"), [(SPREAD, (700, 700, 3)), ("pettingzoo:own_zoo", (4, 6, 3))])
def test_it_can_be_filmed(name, size):
    environment = make(name)
    vector, out = environment.open([0], SEED, render=True), empty(environment.spec, 1)
    vector.reset(out.observation)
    picture = vector.render(0)
    assert (picture.shape, picture.dtype) == (size, np.uint8)
    vector.close()


def test_what_renders_no_pictures_says_so():
    with pytest.raises(UserError, match="cannot be rendered"):
        make("pettingzoo:own_turns").open([0], SEED, render=True)


def test_workers_do_without_jax():
    code = f"import sys; from runnel.envs import make; make({SPREAD!r}).open([0], 1); assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize("name", [TAG, TICTACTOE, "pettingzoo:own_zoo"])
def test_stopped_and_resumed_equals_never_stopped(name, tmp_path):
    algorithm = PPO(unroll=16, minibatches=2, epochs=2, hidden=(16,))

    def train(run_dir, steps):
        return runnel.train(algorithm, name, "inline", envs=4, steps=steps, seed=3, run_dir=run_dir, quiet=True)

    whole = train(tmp_path / "whole", 512)
    train(tmp_path / "parts", 192)
    last = runnel.resume(tmp_path / "parts", steps=512, quiet=True)
    assert same(*[jax.tree.map(np.asarray, run.states) for run in (last, whole)])
    assert last.result["mean_return"] == whole.result["mean_return"]
