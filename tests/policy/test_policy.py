"""A policy outside of any run: it does what the run would do, on observations as the environment gives them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import spaces_of_gymnasium
from alternating import Alternates
from paths import ROOT
from policies import fresh
from toys import Reinforce

import runnel
from runnel.algorithm import act_one
from runnel.algorithms.mappo import MAPPO
from runnel.algorithms.ppo import PPO
from runnel.algorithms.sac import SAC
from runnel.environment import episode_seed
from runnel.errors import UserError
from runnel.evaluation.acting_function import acting_function
from runnel.evaluation.evaluate import evaluate
from runnel.policy import Policies, Policy
from runnel.runtime.single_process.evaluation import make_evaluator
from runnel.types import Act

SMALL = PPO(unroll=4, epochs=1, minibatches=1, hidden=(8,))
GRU = PPO(unroll=4, epochs=1, minibatches=1, hidden=(8,), memory="gru", memory_size=4)
OLD = Path(__file__).parents[1] / "support" / "run_of_0_1_0"


def own(algorithm: Any, params: Any, observation: Any, memory: Any = ()) -> Any:
    """The actions of the algorithm itself, without exploring."""
    return act_one(algorithm.act, params, observation, memory, jax.random.key(0), False, jnp.int32(0))


# As in evaluation


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("observation", "action", "algorithm"),
    [
        ("tree", "five", SMALL), ("started", "grid", SMALL), ("pair", "binary", SMALL), ("bytes", "wide", SMALL),
        ("tree", "whole", GRU), slow("box", "two", SMALL), slow("wide box", "many", SMALL),
        slow("bytes", "started", SMALL), slow("box", "box", SMALL), slow("box", "five", GRU),
        ("wide box", "box", PPO(unroll=4, epochs=1, minibatches=1, hidden=(8,), normalise_observations=True)),
    ],
    ids=lambda value: value if isinstance(value, str) else ("gru" if value is GRU else ""),
)  # fmt: skip
def test_it_plays_an_episode_as_evaluation_plays_it(observation: str, action: str, algorithm: PPO) -> None:
    settings = {"observation": observation, "action": action}
    built, states, policies = fresh(algorithm, "spaces_of_gymnasium:Anything", 3, 0.5, **settings)
    evaluator = make_evaluator(built.graph, built.environment, 5, {0: 1})
    spaces_of_gymnasium.DONE.clear()
    evaluator.play({group: state.params for group, state in states.items()})
    evaluator.close()
    wanted = list(spaces_of_gymnasium.DONE)
    assert len(wanted) == 6

    policy, env = policies["agent"], spaces_of_gymnasium.Anything(**settings)
    seen, _ = env.reset(seed=episode_seed(5, 0, 0))
    done, actions = False, []
    while not done:
        actions.append(policy.act(seen))
        seen, _, done, _, _ = env.step(actions[-1])  # which refuses what is not in its space
    for found, expected in zip(actions, wanted, strict=True):
        assert np.asarray(found).dtype == env.action_space.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_policy_trained_on_stacked_frames_takes_them_stacked(tmp_path: Path) -> None:
    import gymnasium

    run = runnel.train(
        SMALL, "CartPole-v1", "inline", envs=4, steps=64, env_settings={"frame_stack": 3}, quiet=True,
        run_dir=tmp_path / "run",
    )  # fmt: skip
    policy, env = runnel.load(run), gymnasium.make("CartPole-v1")
    seen, _ = env.reset(seed=episode_seed(5, 0, 0))
    frames, done, total = [seen] * 3, False, 0.0
    while not done:
        seen, reward, terminated, truncated, _ = env.step(policy.act(np.concatenate(frames)))
        frames, done, total = [*frames[1:], seen], terminated or truncated, total + float(reward)
    assert evaluate(run.run_dir, 1, seed=5)["returns"] == [total]
    with pytest.raises(UserError, match=r"\(4,\)"):
        policy.act(seen)


def test_a_gymnasium_loop_takes_five_lines(run: Any) -> None:
    import gymnasium

    env, policy = gymnasium.make("CartPole-v1"), runnel.load(run)
    observation, _ = env.reset(seed=1)
    over = False
    while not over:
        observation, _, terminated, truncated, _ = env.step(policy.act(observation))
        over = terminated or truncated
    env.close()


# One, and many


def test_a_batch_is_what_each_row_is_alone() -> None:
    _, states, policies = fresh(SMALL, "CartPole-v1", moved=0.3)
    policy, rng = policies["agent"], np.random.default_rng(0)
    batch = rng.standard_normal((16, 4)).astype(np.float32)
    actions = policy.act(batch)
    assert (actions.shape, actions.dtype) == ((16,), np.int64)
    wanted = [int(own(SMALL, states["agent"].params, row).action) for row in batch]
    assert actions.tolist() == wanted == [int(policy.act(row)) for row in batch]
    assert len(set(wanted)) == 2
    assert policy.act(batch[0].tolist()).shape == ()  # plain lists and other types serve too
    assert policy.act(batch.astype(np.float64)).tolist() == wanted
    assert policy(batch).tolist() == wanted
    assert policy.act(batch[:1]).shape == (1,)


@dataclass(frozen=True)
class Contrary(Reinforce):
    """Acts with another function than `act`: with the least likely action, and without the bias."""

    def other_act(self, params: Any, observation: Any, memory: Any, key: Any, explore: bool) -> Any:
        return Act((observation @ params["w"]).argmin().astype(jnp.int32))

    def loop(self, flow: Any) -> None:
        for group in flow.groups:
            agents = flow.agents(group)
            agents.learn(self.learn, agents.rollout(self.other_act, steps=self.unroll))


def test_it_acts_with_what_the_loop_passes_to_the_rollout(tmp_path: Path) -> None:
    _, states, policies = fresh(Contrary(), "CartPole-v1", moved=0.3)
    batch = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)
    wanted = (batch @ np.asarray(states["agent"].params["w"])).argmin(-1)
    assert len(set(wanted.tolist())) == 2
    policy = policies["agent"]
    assert policy.config.acting == ("params/w",)
    policy.save(tmp_path / "saved")
    loaded = runnel.load(tmp_path / "saved", algorithm=Contrary())
    exported = acting_function(loaded)
    assert [port.name for port in exported.inputs] == ["observation"]
    for actions in (policy.act(batch), loaded.act(batch), exported(jnp.asarray(batch))[0]):
        assert np.asarray(actions).tolist() == wanted.tolist()
    action, _ = loaded.step(loaded.initial_memory(), batch[0], jax.random.key(0))
    assert int(action) == wanted[0]


def test_memory_is_the_policy_s_own_and_resets_where_an_episode_begins() -> None:
    _, states, policies = fresh(GRU, "CartPole-v1", moved=0.5)
    policy, params, rng = policies["agent"], states["agent"].params, np.random.default_rng(1)
    initial = policy.initial_memory()
    memories = [initial] * 3
    differs = False
    for step in range(8):
        seen = rng.standard_normal((3, 4)).astype(np.float32)
        first = [False, step in (2, 5), step == 0]
        acts = [
            own(GRU, params, seen[row], initial if first[row] else memories[row]) for row in range(3)
        ]  # fmt: skip
        memories = [act.memory for act in acts]
        differs |= any(
            int(act.action) != int(own(GRU, params, seen[row], initial).action) for row, act in enumerate(acts)
        )
        given = None if not any(first) else np.array(first)
        assert policy.act(seen, first=given).tolist() == [int(act.action) for act in acts]
    assert differs  # its memory matters
    with pytest.raises(UserError, match=r"batch of 2, expected 3 as before.*call reset\(\)"):
        policy.act(seen[:2])
    policy.reset()
    assert policy.act(seen[:2]).tolist() == [int(own(GRU, params, row, initial).action) for row in seen[:2]]


def test_memory_resets_in_rows_where_first_is_true_and_in_no_other() -> None:
    _, _, policies = fresh(Alternates(), "CartPole-v1")
    policy, rng = policies["agent"], np.random.default_rng(2)
    steps = np.zeros(5, int)  # since the last beginning
    for _ in range(20):
        first = rng.random(5) < 0.3
        steps = np.where(first, 0, steps)
        assert policy.act(np.zeros((5, 4), np.float32), first=first).tolist() == (steps % 2).tolist()
        steps += 1


def test_one_row_is_reset_by_a_single_first() -> None:
    _, states, policies = fresh(GRU, "CartPole-v1", moved=0.5)
    policy, params = policies["agent"], states["agent"].params
    seen = np.ones(4, np.float32)
    for _ in range(3):
        policy.act(seen)
    after = policy.act(seen, first=True)
    assert int(after) == int(own(GRU, params, seen, policy.initial_memory()).action)
    for wrong in ([True], np.ones(3, bool)):
        with pytest.raises(UserError, match="first: found shape"):
            policy.act(seen, first=wrong)


# Pure


@pytest.mark.parametrize("algorithm", [pytest.param(SMALL, marks=pytest.mark.slow), GRU], ids=["mlp", "gru"])
def test_step_can_be_traced_and_batched_and_agrees_with_act(algorithm: PPO) -> None:
    _, _, policies = fresh(
        algorithm, "spaces_of_gymnasium:Anything", moved=0.5, observation="tree", action="started"
    )  # fmt: skip
    policy, space = policies["agent"], spaces_of_gymnasium.OBSERVATIONS["tree"]
    space.seed(3)
    seen = [space.sample() for _ in range(5)]
    batch = jax.tree.map(lambda *rows: np.stack(rows), *seen)
    key, memory = jax.random.key(0), policy.initial_memory()
    acted = policy.act(batch)
    step = jax.jit(policy.step)
    for row, one in enumerate(seen):
        action, after = step(memory, one, key)
        np.testing.assert_array_equal(action, acted[row])
        assert jax.tree.structure(after) == jax.tree.structure(memory)
    many = jax.tree.map(lambda x: jnp.broadcast_to(x, (5, *x.shape)), memory)
    actions, _ = jax.jit(jax.vmap(policy.step, in_axes=(0, 0, None)))(many, batch, key)
    np.testing.assert_array_equal(actions, acted)
    eager, _ = policy.step(memory, seen[0], key)
    np.testing.assert_array_equal(eager, acted[0])


@pytest.mark.slow
def test_step_is_differentiable_and_scales_actions_like_act() -> None:
    _, _, policies = fresh(SMALL, "spaces_of_gymnasium:Anything", moved=0.2, action="box")
    policy = policies["agent"]
    seen = jnp.array([0.1, -0.2, 0.3])
    action, _ = policy.step((), seen, jax.random.key(0))
    np.testing.assert_allclose(action, policy.act(np.asarray(seen)), rtol=1e-6)
    gradient = jax.jacobian(lambda x: policy.step((), x, jax.random.key(0))[0])(seen)
    assert gradient.shape == (2, 3)
    assert np.isfinite(gradient).all()


def test_exploring_draws_by_seed(tmp_path: Path) -> None:
    _, _, policies = fresh(SMALL, "CartPole-v1")
    policies["agent"].save(tmp_path / "policy")
    seen = np.zeros((64, 4), np.float32)

    def drawn(seed: int) -> list[Any]:
        policy = runnel.load(tmp_path / "policy", seed=seed)
        return [policy.act(seen, explore=True).tolist() for _ in range(3)]

    first = drawn(1)
    assert first == drawn(1)
    assert first != drawn(2)
    assert first[0] != first[1]  # and anew at each call
    assert len(set(first[0])) == 2
    greedy = runnel.load(tmp_path / "policy").act(seen)
    assert len(set(greedy.tolist())) == 1


# Masks and several agents


def test_illegal_actions_are_not_taken() -> None:
    _, _, policies = fresh(MAPPO(unroll=4, epochs=1, minibatches=1, hidden=(8,)), "teams:Meeting", moved=0.5)
    walkers = policies["walkers"]
    seen = np.random.default_rng(0).standard_normal((6, 2)).astype(np.float32)
    free = walkers.act(seen)
    for chosen in range(3):
        mask = np.zeros((6, 3), bool)
        mask[:, chosen] = True
        assert walkers.act(seen, mask=mask).tolist() == [chosen] * 6
        assert int(walkers.act(seen[0], mask=mask[0])) == chosen
    assert walkers.act(seen, mask=np.ones((6, 3), bool)).tolist() == free.tolist()
    whole = {
        "observation": seen, "action_mask": np.ones((6, 3), bool), "active": np.ones(6, bool),
        "state": np.full((6, 3), 7.0, np.float32),
    }  # fmt: skip
    assert walkers.act(whole).tolist() == free.tolist()
    del whole["state"]
    assert walkers.act(whole).tolist() == free.tolist()  # at the state no policy looks
    with pytest.raises(UserError, match=r"\['action_mask'\]: found shape"):
        walkers.act(seen, mask=np.ones((6, 4), bool))
    with pytest.raises(UserError, match="trained without masks"):
        policies["watcher"].act(seen[0], mask=np.ones(2, bool))


def test_a_game_of_turns_is_played_with_masks() -> None:
    pytest.importorskip("pettingzoo.classic")
    from pettingzoo.classic.tictactoe import tictactoe

    built, _, policies = fresh(
        MAPPO(unroll=4, epochs=1, minibatches=1, hidden=(8,)), "pettingzoo:classic.tictactoe_v3", moved=0.5
    )  # fmt: skip
    players: Any = Policies(policies) if len(policies) > 1 else next(iter(policies.values()))
    env = tictactoe.env()
    env.reset(seed=1)
    moves = []
    for agent in env.agent_iter():
        seen, _, terminated, truncated, _ = env.last()
        action = None if terminated or truncated else players.act({agent: seen})[agent]
        if action is not None:
            assert seen["action_mask"][action]
            moves.append(int(action))
        env.step(action)
    assert 5 <= len(moves) == len(set(moves)) <= 9
    assert built.plan.workers == 1


def test_agents_by_name_are_rows_of_one_policy() -> None:
    pytest.importorskip("mpe2")
    from mpe2 import simple_spread_v3

    _, states, policies = fresh(SMALL, "pettingzoo:mpe2.simple_spread_v3", moved=0.5)
    ((group, policy),) = policies.items()
    env = simple_spread_v3.parallel_env()
    seen, _ = env.reset(seed=3)
    actions = policy.act(seen)
    assert list(actions) == list(seen) == list(policy.spec.names)
    for name, action in actions.items():
        assert action in env.action_space(name)
        assert int(action) == int(own(SMALL, states[group].params, seen[name]).action)
    env.step(actions)
    some = dict(list(seen.items())[1:])
    assert policy.act(some) == {name: actions[name] for name in some}
    with pytest.raises(UserError, match="found a batch of observations for agent"):
        policy.act({name: np.stack([value] * 2) for name, value in seen.items()})


def test_the_memory_of_an_agent_that_does_not_act_waits() -> None:
    _, states, policies = fresh(GRU, "pettingzoo:own_zoo", moved=0.5)
    ((group, policy),) = policies.items()
    params, rng = states[group].params, np.random.default_rng(2)
    names = policy.spec.names
    memories = dict.fromkeys(names, policy.initial_memory())
    for there in (names[:2], names[:1], names[1:], names, names[2:], names):
        seen = {name: rng.standard_normal(3).astype(np.float32) for name in there}
        acts = {name: own(GRU, params, value, memories[name]) for name, value in seen.items()}
        memories |= {name: act.memory for name, act in acts.items()}
        assert {n: int(a) for n, a in policy.act(seen).items()} == {n: int(a.action) for n, a in acts.items()}
    began = {names[0]: True}
    seen = {name: rng.standard_normal(3).astype(np.float32) for name in names}
    memories[names[0]] = policy.initial_memory()
    wanted = {name: int(own(GRU, params, value, memories[name]).action) for name, value in seen.items()}
    assert {n: int(a) for n, a in policy.act(seen, first=began).items()} == wanted


def test_several_groups_act_together() -> None:
    _, _, made = fresh(PPO(unroll=4, epochs=1, minibatches=1, hidden=(8,)), "toys:Tag", moved=0.5)
    policies = Policies(made)
    rng = np.random.default_rng(0)
    seen = {
        "hunter": rng.standard_normal(3).astype(np.float32),
        "runners": rng.standard_normal((2, 2)).astype(np.float32),
    }
    actions = policies.act(seen)
    assert actions["hunter"].shape == ()
    assert actions["runners"].shape == (2, 1)
    for group, value in seen.items():
        np.testing.assert_allclose(actions[group], policies[group].act(value), rtol=1e-6)
    assert list(policies.act({"hunter": seen["hunter"]})) == ["hunter"]
    with pytest.raises(UserError, match=r"no agent or group is called 'huntr'; did you mean 'hunter'"):
        policies.act({"huntr": seen["hunter"]})
    with pytest.raises(UserError, match="there is no group 'runner'; did you mean 'runners'"):
        policies["runner"]
    with pytest.raises(UserError, match="expected observations by agent"):
        policies.act(seen["hunter"])  # type: ignore[arg-type]
    policies.reset()


def test_policies_of_several_groups_are_saved_and_loaded_together(tmp_path: Path) -> None:
    _, _, made = fresh(PPO(unroll=4, epochs=1, minibatches=1, hidden=(8,)), "toys:Tag", moved=0.5)
    directory = Policies(made).save(tmp_path / "both")
    assert sorted(path.name for path in directory.iterdir()) == ["group-hunter", "group-runners"]
    again = runnel.load(directory)
    assert isinstance(again, Policies)
    for group, policy in made.items():
        for name, array in policy.arrays.items():
            np.testing.assert_array_equal(again[group].arrays[name], array)
    hunter = runnel.load(directory, group="hunter")
    assert isinstance(hunter, Policy)
    assert hunter.config.group == runnel.load(directory / "group-hunter").config.group == "hunter"  # type: ignore[union-attr]
    with pytest.raises(UserError, match="has no policy of group 'runner'; did you mean 'runners'"):
        runnel.load(directory, group="runner")
    with pytest.raises(UserError, match="not empty; nothing was written"):
        Policies(made).save(directory)
    (directory / "notes.txt").write_text("not a policy")
    assert isinstance(runnel.load(directory), Policies)


@pytest.mark.slow
def test_two_teams_of_named_agents_act_together() -> None:
    pytest.importorskip("mpe2")
    from mpe2 import simple_tag_v3

    _, _, made = fresh(SMALL, "pettingzoo:mpe2.simple_tag_v3", moved=0.5)
    assert len(made) == 2
    env = simple_tag_v3.parallel_env()
    seen, _ = env.reset(seed=3)
    policies = Policies(made)
    for _ in range(3):
        actions = policies.act(seen)
        assert list(actions) == list(seen)
        assert all(action in env.action_space(name) for name, action in actions.items())
        seen, *_ = env.step(actions)


# Saved and loaded


@dataclass(frozen=True)
class OfTheSession(Reinforce):
    """A class that no other process can import, as in a notebook."""

    learning_rate: float = 5e-3


OfTheSession.__module__ = "__main__"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return runnel.train(
        GRU, "CartPole-v1", envs=2, steps=32, eval_every=16, eval_episodes=2, quiet=True,
        run_dir=tmp_path_factory.mktemp("runs") / "run",
    )  # fmt: skip


def test_what_is_saved_is_loaded(run: Any, tmp_path: Path) -> None:
    policy = runnel.load(run.run_dir)
    assert isinstance(policy, Policy)
    assert policy.save(tmp_path / "a" / "policy") == tmp_path / "a" / "policy"
    assert sorted(p.name for p in (tmp_path / "a" / "policy").iterdir()) == ["config.json", "model.safetensors"]
    again = runnel.load(tmp_path / "a" / "policy")
    assert isinstance(again, Policy)
    assert again.arrays.keys() == policy.arrays.keys()
    for name, array in policy.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array)
    jax.tree.map(np.testing.assert_array_equal, again.params, run.params)
    seen = np.random.default_rng(0).standard_normal((5, 4))
    for _ in range(3):
        assert again.act(seen).tolist() == policy.act(seen).tolist()
    assert repr(again) == repr(policy)
    assert (again.config.env_steps, again.config.trained_on) == (32, "CartPole-v1")
    config = json.loads((tmp_path / "a" / "policy" / "config.json").read_text())
    assert set(config["acting"]) < set(policy.arrays)  # statistics of returns, for one, are not needed to act


def test_what_acting_needs_is_marked() -> None:
    _, _, policies = fresh(SAC(hidden=(8,), min_size=8, capacity=64, batch=4), "Pendulum-v1")
    config, arrays = policies["agent"].config, policies["agent"].arrays
    assert config.acting
    assert set(config.acting) == {name for name in arrays if name.startswith("params/")}
    assert {"critics", "target"} <= {name.partition("/")[0] for name in arrays}


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_the_head_of_a_critic_is_not_among_what_acting_needs(memory: str) -> None:
    """Acting may compute actor and critic in one operation; the action does not depend on the critic all the same."""
    _, _, policies = fresh(PPO(hidden=(8,), memory=memory, memory_size=8, minibatches=1), "CartPole-v1")
    config, arrays = policies["agent"].config, policies["agent"].arrays
    head = {name for name in arrays if name.startswith("params/actor_critic/critic/")}
    assert head
    assert set(config.acting) == {name for name in arrays if name.startswith("params/actor_critic/")} - head


def test_parameters_that_acting_does_not_need_do_not_matter(run: Any) -> None:
    policy = runnel.load(run.run_dir)
    needed = set(policy.config.acting)
    others = {n: a if n in needed else np.zeros_like(a) for n, a in policy.arrays.items()}
    without = Policy(policy.algorithm, policy.config, others, device="cpu")
    seen = np.random.default_rng(0).standard_normal((9, 4))
    for _ in range(3):
        assert without.act(seen).tolist() == policy.act(seen).tolist()
        assert without.act(seen, explore=True).tolist() == policy.act(seen, explore=True).tolist()


def test_it_is_named_in_every_way(run: Any) -> None:
    store = runnel.policies(run.run_dir)
    best = store.find("best")["agent"]
    for loaded in (
        runnel.load(f"{run.run_dir}@best"), runnel.load(run.run_dir, "best"), runnel.load(run, tag="best"),
        runnel.load(best), runnel.load(f"{run.run_dir}@{best.version}"), runnel.load(best.path),
        runnel.load(str(run.run_dir), tag="best", group="agent", device="cpu:0"),
        runnel.load(run.run_dir, best.version), runnel.load(f"{run.run_dir}@best", "best"),
    ):  # fmt: skip
        assert isinstance(loaded, Policy)
        assert loaded.config.version == best.version
        np.testing.assert_array_equal(jax.tree.leaves(loaded.params)[0], jax.tree.leaves(runnel.load(best).params)[0])
    assert runnel.load(runnel.load(run)).config.version == runnel.load(run).config.version


BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("gymnasium", "gymnax", "pettingzoo", "ale_py", "brax"):
            raise ImportError(name + " is not here")
sys.meta_path.insert(0, Blocked())
import numpy, runnel
policy = runnel.load(sys.argv[1])
print(policy.act(numpy.arange(12).reshape(3, 4) / 6 - 1).tolist())
assert "gymnasium" not in sys.modules
"""


@pytest.mark.parametrize("which", ["saved", pytest.param("run", marks=pytest.mark.slow)])
def test_it_loads_without_the_environment_s_package(which: str, run: Any, tmp_path: Path) -> None:
    policy = runnel.load(run)
    source = policy.save(tmp_path / "policy") if which == "saved" else run.run_dir
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, str(source)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == policy.act(np.arange(12).reshape(3, 4) / 6 - 1).tolist()


def test_a_run_of_0_1_0_is_loaded_from_its_checkpoint(tmp_path: Path) -> None:
    old = Path(shutil.copytree(OLD, tmp_path / "run"))
    policy = runnel.load(old)
    assert isinstance(policy, Policy)
    assert policy.config.env_steps == json.loads((old / "result.json").read_text())["env_steps"]
    assert policy.act(np.zeros((3, 4))).shape == (3,)
    again = runnel.load(policy.save(tmp_path / "policy"))
    seen = np.random.default_rng(0).standard_normal((9, 4))
    assert policy.act(seen).tolist() == again.act(seen).tolist()
    assert not (old / "policies").exists()
    for tag in ("best", "2"):
        with pytest.raises(UserError, match="no stored policy yet"):
            runnel.load(old, tag)
    with pytest.raises(UserError, match="no policy of group 'agents'; did you mean 'agent'"):
        runnel.load(old, group="agents")


def test_a_class_of_a_session_is_given_again(tmp_path: Path) -> None:
    run = runnel.train(
        OfTheSession(), "toys:Corridor", "inline", envs=2, steps=32, run_dir=tmp_path / "run", quiet=True
    )  # fmt: skip
    seen = np.random.default_rng(0).standard_normal((9, 2))
    held = runnel.load(run).act(seen).tolist()
    assert runnel.load(run.run_dir, algorithm=OfTheSession()).act(seen).tolist() == held
    with pytest.raises(UserError) as caught:
        runnel.load(run.run_dir)
    assert len(str(caught.value).splitlines()) <= 2
    assert "OfTheSession" in str(caught.value)


# Mistakes


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (np.zeros(5), r"observation: found shape \(5,\), expected float32 of shape \(4,\), or a batch"),
        (np.zeros((2, 3, 4)), r"found shape \(2, 3, 4\)"),
        (np.zeros(4, np.complex64), "found complex64, expected float32"),
        (["a"] * 4, "found <U1"),
        (None, "found object"),
        ([[1.0], [1.0, 2.0]], "found what is no array"),
        ({"x": np.zeros(4)}, "found object"),
    ],
)  # fmt: skip
def test_observations_of_other_shapes_are_refused(seen: Any, words: str, run: Any) -> None:
    with pytest.raises(UserError, match=words):
        runnel.load(run).act(seen)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tag": "bset"}, "no policy 'bset'; did you mean 'best'"),
        ({"group": "agnt"}, "no policy of group 'agnt'; did you mean 'agent'"),
        ({"device": "tpu"}, "device='tpu': found no such device; expected one of cpu"),
        ({"device": "cpu:9"}, "device='cpu:9': found 1 devices of cpu"),
        ({"device": "cpu:x"}, "device='cpu:x'"),
        ({"device": "cpu:-1"}, "device='cpu:-1'"),
    ],
)
def test_what_is_not_there_is_refused_in_words(given: dict[str, Any], words: str, run: Any) -> None:
    with pytest.raises(UserError, match=words) as caught:
        runnel.load(run.run_dir, **given)
    assert len(str(caught.value).splitlines()) <= 2


def test_directories_that_hold_no_policy_are_refused(tmp_path: Path, run: Any) -> None:
    for source, words in [
        (tmp_path / "nowhere", "there is no directory"),
        (f"{tmp_path / 'nowhere'}@best", "there is no directory"),
        (f"{run.run_dir}@", "expected a tag after the '@'"),
        (f"{run.run_dir}@nothing", "no policy 'nothing'"),
        (tmp_path, "holds no run"),
        (__file__, "is no directory|not a directory|holds no|cannot be read"),
    ]:
        with pytest.raises(UserError, match=words):
            runnel.load(source)
    with pytest.raises(UserError, match="@best' beside tag='mine', expected one of them"):
        runnel.load(f"{run.run_dir}@best", tag="mine")
    policy = runnel.load(run)
    saved = policy.save(tmp_path / "policy")
    with pytest.raises(UserError, match="not empty; nothing was written"):
        policy.save(saved)
    with pytest.raises(UserError, match="not empty"):
        policy.save(saved / "config.json")
    with pytest.raises(UserError, match="holds one policy for each group, and no 'best'"):
        runnel.load(f"{saved}@best")
    with pytest.raises(UserError, match="has no policy of group 'x'"):
        runnel.load(saved, group="x")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert policy.save(empty) == empty


def test_fractions_where_the_environment_gives_whole_numbers_are_refused() -> None:
    _, _, policies = fresh(SMALL, "spaces_of_gymnasium:Anything", observation="bytes")
    seen = np.array([0, 5, 100, 255], np.uint8)
    for same in (seen.astype(np.int64), seen.astype(np.float32), seen.tolist()):
        assert policies["agent"].act(same) == policies["agent"].act(seen)
    with pytest.raises(UserError, match=r"found fractions, expected uint8 of shape .*, as the environment gives it"):
        policies["agent"].act(seen / 255)


def test_observations_that_lack_a_part_are_refused() -> None:
    _, _, policies = fresh(SMALL, "spaces_of_gymnasium:Anything", observation="tree")
    space = spaces_of_gymnasium.OBSERVATIONS["tree"]
    whole = space.sample()
    for wrong, words in [
        ({key: value for key, value in whole.items() if key != "z"}, "found no 'z' in it"),
        ({**whole, "a": whole["a"][:1]}, r"observation\['a'\]: found no 1 in it"),
        (3, "found no"),
        ({**whole, "z": "three"}, r"observation\['z'\]: found str, expected whole numbers"),
        ({**whole, "z": None}, r"observation\['z'\]: found NoneType, expected whole numbers"),
        ({**whole, "b": np.stack([whole["b"]] * 2)}, "some parts are batches and others are not"),
    ]:
        with pytest.raises(UserError, match=words):
            policies["agent"].act(wrong)
