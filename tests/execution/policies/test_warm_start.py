"""Runs that begin with the parameters of stored policies."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from chaos import Chaos
from paths import SUPPORT
from policies import fresh
from toys import Drift, Reinforce

import runnel
from runnel.algorithms.a2c import A2C
from runnel.algorithms.dqn import DQN
from runnel.algorithms.impala import IMPALA
from runnel.algorithms.ppo import PPO
from runnel.algorithms.sac import SAC
from runnel.cli import main as cli
from runnel.errors import UserError
from runnel.execution.policies.warm_start import SHOWN, warm_start
from runnel.recording.evaluation_log import read_evaluations
from runnel.recording.events import read_events
from runnel.recording.parameters import parameter_leaves
from runnel.recording.policy_store import PolicyStore
from runnel.runtime.programs.loop import Loop

PER_ITERATION = 32
SMALL = PPO(unroll=4, epochs=1, minibatches=1, hidden=(8,))


def train(run_dir: Path, distribution: str = "inline", environment: str = "evaluated:Walk", **more: Any) -> runnel.Run:
    given = {"envs": 4, "steps": 6 * PER_ITERATION, "seed": 3, "quiet": True, "run_dir": run_dir, **more}
    return runnel.train(given.pop("algorithm", Reinforce()), environment, distribution, **given)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> runnel.Run:
    run_dir = tmp_path_factory.mktemp("source") / "run"
    return train(
        run_dir, environment="toys:Corridor", eval_every=2 * PER_ITERATION, eval_episodes=3, eval_seed=9, seed=8
    )  # fmt: skip


def bits(run: runnel.Run) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(run.states)]


@pytest.mark.parametrize(
    ("distribution", "more"),
    [
        ("inline", {}), ("fused", {}),
        pytest.param("coarse", {"actors": 2, "eval_workers": 0}, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_run_begins_with_the_parameters_of_another(
    distribution: str, more: dict[str, Any], source: runnel.Run, tmp_path: Path
) -> None:
    run = train(
        tmp_path / "run", distribution, "toys:Corridor", init_from=source.run_dir, eval_every=2 * PER_ITERATION,
        eval_episodes=3, eval_seed=9, keep_every=6 * PER_ITERATION, **more,
    )  # fmt: skip
    first, last = PolicyStore(run.run_dir).query(version=0)[0], PolicyStore(source.run_dir).find("latest")["agent"]
    assert (first.env_steps, first.version) == (0, 0)  # its own count begins anew
    for name, array in last.arrays().items():
        np.testing.assert_array_equal(first.arrays()[name], array, err_msg=name)
    began, ended = read_evaluations(run.run_dir)[0], read_evaluations(source.run_dir)[-1]
    assert (began["env_steps"], began["returns"]) == (0, ended["returns"])
    cold = train(tmp_path / "cold", distribution, "toys:Corridor", **({"actors": 2} if "actors" in more else {}))
    assert bits(run) != bits(cold)


def test_every_distribution_begins_alike(source: runnel.Run, tmp_path: Path) -> None:
    """And a run resumes from its own checkpoint, not from its initial policy."""
    inline = train(tmp_path / "inline", environment="toys:Corridor", init_from=f"{source.run_dir}@best")
    train(tmp_path / "parts", environment="toys:Corridor", init_from=f"{source.run_dir}@best", steps=2 * PER_ITERATION)
    parts = runnel.resume(tmp_path / "parts", steps=6 * PER_ITERATION, quiet=True)
    assert bits(inline) == bits(parts)
    stepped = train(tmp_path / "fused", "fused", "toys:Corridor", init_from=source)  # in Python, also a run
    for one, other in zip(jax.tree.leaves(stepped.params), jax.tree.leaves(inline.params), strict=True):
        assert one.shape == other.shape


def test_tags_snapshots_and_policies_serve_alike(source: runnel.Run) -> None:
    built = runnel.build(Reinforce(), "toys:Corridor", "inline", envs=4)
    store = PolicyStore(source.run_dir)
    latest = store.find("latest")["agent"]
    for given in (
        source.run_dir, str(source.run_dir), f"{source.run_dir}@latest", f"{source.run_dir}@{latest.version}", source,
        latest, latest.path, store, runnel.load(source), {"agent": source.run_dir},
    ):  # fmt: skip
        states, notes, _ = warm_start(built, 3, given)
        np.testing.assert_array_equal(states["agent"].params["w"], latest.arrays()["params/w"])
        assert notes[0].startswith("2 of 2 parameters are those of ")
        assert "the optimiser starts fresh" in notes[0]


def test_the_optimiser_starts_fresh(source: runnel.Run) -> None:
    built = runnel.build(Reinforce(), "toys:Corridor", "inline", envs=4)
    states, *_ = warm_start(built, 3, source)
    new = Loop(built.graph).init_state(jax.numpy.uint32(3), "agent")
    trained = source.states["agent"].optimiser
    for found, wanted in zip(jax.tree.leaves(states["agent"].optimiser), jax.tree.leaves(new.optimiser), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert any(np.any(a != b) for a, b in zip(jax.tree.leaves(trained), jax.tree.leaves(new.optimiser), strict=True))


def test_counters_of_the_learner_start_fresh() -> None:
    """A learning rate that follows the number of updates begins at its beginning."""
    _, _, policies = fresh(SMALL, "CartPole-v1", moved=0.5)
    policy = policies["agent"]
    policy.arrays["updates"] = np.asarray(77, policy.arrays["updates"].dtype)
    policy.arrays["returns/mean"] = np.asarray(5.0, np.float32)
    built = runnel.build(SMALL, "CartPole-v1", "inline", envs=2)
    state = warm_start(built, 0, policy).states["agent"]
    assert int(parameter_leaves(state)["updates"]) == 0
    assert float(parameter_leaves(state)["returns/mean"]) == 5.0  # what was learnt about returns stays


@pytest.mark.parametrize("algorithm", [DQN(hidden=(8,)), SAC(hidden=(8,))], ids=["dqn", "sac"])
def test_counters_that_exploring_follows_start_fresh_too(algorithm: Any) -> None:
    environment = "CartPole-v1" if isinstance(algorithm, DQN) else "Pendulum-v1"
    _, _, policies = fresh(algorithm, environment, moved=0.5)
    policy = policies["agent"]
    policy.arrays["params/updates"] = np.asarray(10**6, np.int32)
    built = runnel.build(algorithm, environment, "inline", envs=2)
    (state,), (note, *_) = warm_start(built, 0, policy)[0].values(), warm_start(built, 0, policy).notes
    assert int(state.params.updates) == 0
    assert note.endswith("the optimiser starts fresh, as does the counter params/updates")


@dataclass(frozen=True)
class Turned(Reinforce):
    """A whole number among its parameters that every action depends on, and one that none does."""

    def init(self, key: Any, spec: Any) -> Any:
        state = super().init(key, spec)
        whole = {"turned": jax.numpy.int32(0), "seen": jax.numpy.int32(0)}
        return state._replace(params={**state.params, **whole})

    def act(self, params: Any, observation: Any, memory: Any, key: Any, explore: bool) -> Any:
        act = super().act(params, observation, memory, key, explore)
        return act._replace(action=(act.action + params["turned"]) % 2)

    def learn(self, state: Any, trajectory: Any, key: Any) -> Any:
        return state, {}


def test_whole_numbers_that_actions_depend_on_are_no_counters() -> None:
    built, _, policies = fresh(Turned(), "CartPole-v1")
    policy = policies["agent"]
    policy.arrays |= {"params/turned": np.asarray(1, np.int32), "params/seen": np.asarray(5, np.int32)}
    params = warm_start(built, 0, policy).states["agent"].params
    assert (int(params["turned"]), int(params["seen"])) == (1, 0)


@pytest.mark.parametrize("other", [A2C(unroll=4, hidden=(8,)), IMPALA(unroll=4, hidden=(8,))], ids=["a2c", "impala"])
def test_another_algorithm_begins_with_what_fits(other: Any) -> None:
    _, states, policies = fresh(SMALL, "CartPole-v1", moved=0.5)
    built = runnel.build(other, "CartPole-v1", "inline", envs=2)
    begun, notes, _ = warm_start(built, 0, policies["agent"])
    ours, theirs = parameter_leaves(begun["agent"]), parameter_leaves(states["agent"])
    taken = [name for name in ours if name.startswith("params/actor_critic")]
    assert taken
    for name in taken:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    assert "parameters are those of the policy" in notes[0]


def test_what_does_not_fit_is_listed_and_starts_fresh() -> None:
    _, states, policies = fresh(SMALL, "CartPole-v1", moved=0.5)
    built = runnel.build(SMALL, "Acrobot-v1", "inline", envs=2)  # six numbers instead of four, three actions
    begun, notes, _ = warm_start(built, 0, policies["agent"])
    new = Loop(built.graph).init_state(jax.numpy.uint32(0), "agent")
    ours = parameter_leaves(begun["agent"])
    (misfits,) = [note for note in notes if note.startswith("they do not fit and start fresh: ")]
    kernel = next(name for name in ours if name.endswith("Dense_0/kernel") and "trunk" in name)
    assert f"{kernel} (float32[2, 4, 8], expected float32[2, 6, 8])" in misfits
    np.testing.assert_array_equal(ours[kernel], parameter_leaves(new)[kernel])
    critic = next(name for name in ours if "critic/" in name.partition("actor_critic/")[2] and name.endswith("kernel"))
    np.testing.assert_array_equal(ours[critic], parameter_leaves(states["agent"])[critic])
    more = runnel.build(replace(SMALL, memory="gru", memory_size=8), "CartPole-v1", "inline", envs=2)
    _, notes, _ = warm_start(more, 0, policies["agent"])
    assert any(note.startswith("not stored, start fresh: ") and "trunk/core" in note for note in notes)


def test_the_event_names_all_leaves_that_the_line_cuts(tmp_path: Path) -> None:
    _, _, policies = fresh(SMALL, "CartPole-v1", moved=0.5)
    policy = policies["agent"]
    kept, *others, gone = (name for name in policy.arrays if name != "updates")
    assert kept.startswith("params")
    for name in others:
        policy.arrays[name] = np.zeros((3, 3, 3), np.float32)
    del policy.arrays[gone]
    run = runnel.train(
        SMALL, "CartPole-v1", "inline", envs=2, steps=8, quiet=True, run_dir=tmp_path / "run", init_from=policy
    )
    (event,) = [event for event in read_events(run.run_dir) if event["event"] == "warm_start"]
    matched = event["groups"]["agent"]
    state = parameter_leaves(run.states["agent"])
    misfits = [text.partition(" (float32[3, 3, 3], expected ")[0] for text in matched["misfits"]]
    assert sorted(misfits) == sorted(others)
    assert len(misfits) > SHOWN
    assert list(matched["stored"]) == [kept]
    assert (matched["missing"], matched["counters"]) == ([gone], ["updates"])
    assert sorted([*misfits, *matched["stored"], gone, "updates"]) == sorted(state)
    assert matched["source"] == "the policy"


@dataclass(frozen=True)
class Wider(Reinforce):
    """Other parameters under the same names."""

    def init(self, key: Any, spec: Any) -> Any:
        state = super().init(key, spec)
        return state._replace(params=jax.tree.map(lambda x: jax.numpy.zeros((7,), x.dtype), state.params))

    def act(self, params: Any, observation: Any, memory: Any, key: Any, explore: bool) -> Any:
        return runnel.Act(jax.numpy.int32(0))

    def learn(self, state: Any, trajectory: Any, key: Any) -> Any:
        return state, {}


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (Wider(), r"params/b \(float32\[2\], expected float32\[7\]\)"),
        (DQN(unroll=4, hidden=(8,), min_size=8, capacity=64, batch=4), "it has params/b, params/w, expected params/"),
    ],
    ids=["shapes", "names"],
)
def test_where_nothing_fits_the_run_is_refused(algorithm: Any, words: str, source: runnel.Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"init_from=: no parameter of .* fits this run: {words}") as caught:
        train(tmp_path / "run", algorithm=algorithm, environment="toys:Corridor", init_from=source)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def hunt(tmp_path_factory: pytest.TempPathFactory) -> runnel.Run:
    return train(tmp_path_factory.mktemp("hunt") / "run", environment="toys:Tag", algorithm=Drift())


def test_groups_begin_with_policies_of_their_own(hunt: runnel.Run, tmp_path: Path) -> None:
    sums = {group: np.asarray(state.params["sum"]) for group, state in hunt.states.items()}
    assert sums["hunter"] != sums["runners"]
    built = runnel.build(Drift(), "toys:Tag", "inline", envs=4)

    def begun(given: Any) -> dict[str, float]:
        states, *_ = warm_start(built, 3, given)
        return {group: float(state.params["sum"]) for group, state in states.items()}

    assert begun(hunt.run_dir) == sums
    assert begun({"hunter": hunt}) == {"hunter": sums["hunter"]}
    one = runnel.load(hunt, group="runners")
    assert begun({"hunter": one}) == {"hunter": sums["runners"]}  # the only policy there serves for any group
    assert begun(one) == {"hunter": sums["runners"], "runners": sums["runners"]}
    with pytest.raises(UserError, match="init_from=: there is no group 'huntr'; did you mean 'hunter'"):
        begun({"huntr": hunt})
    single = runnel.build(Reinforce(), "toys:Corridor", "inline", envs=4)
    with pytest.raises(UserError, match="no policy of group 'agent' among hunter, runners"):
        warm_start(single, 3, hunt)
    _, notes, _ = warm_start(built, 3, hunt)
    assert [note.partition(":")[0] for note in notes] == ["hunter", "runners"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("RUN@bset", "no policy 'bset'; did you mean 'best'"),
        ("nowhere", "there is no directory nowhere"),
        ("RUN@", "expected a tag after the '@'"),
    ],
)
def test_what_is_not_there_is_refused(given: str, words: str, source: runnel.Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        train(
            tmp_path / "run", environment="toys:Corridor", init_from=given.replace("RUN", str(source.run_dir))
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_it_survives_a_learner_that_is_killed_before_the_first_checkpoint(
    source: runnel.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    steps, name = 150 * PER_ITERATION, f"{source.run_dir}@best"
    calm = train(tmp_path / "calm", steps=steps, init_from=name)
    run_dir = tmp_path / "killed"
    command = [
        "train", "toys:Reinforce", "evaluated:Walk", "--distribution", "coarse", "--actors", "2", "--envs", "4",
        "--seed", "3", "--set", "env.slow_s=0.002", "--steps", str(steps), "--run-dir", str(run_dir), "--quiet",
        "--init-from", name, "--checkpoint-every", "1000",
    ]  # fmt: skip
    chaos = Chaos(command, run_dir, ["learner"], pause_s=(0.5, 1.0), signals=[signal.SIGKILL], most=1)
    assert chaos.run() == 0, chaos.output()
    assert chaos.done
    found = PolicyStore(run_dir).find("latest")["agent"].arrays()
    for name, array in PolicyStore(calm.run_dir).find("latest")["agent"].arrays().items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


# On the command line


def command(*argv: Any) -> int:
    try:
        return cli.main([str(word) for word in argv])
    except SystemExit as end:
        return int(end.code or 0)


def test_the_command_line_takes_one_source_or_one_of_each_group(
    hunt: runnel.Run, source: runnel.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tag = ["train", "toys:Drift", "toys:Tag", "--distribution", "inline", "--envs", "4", "--steps", "16"]
    tag += ["--keep-every", "16"]

    def sums(run_dir: Path) -> dict[str, float]:
        return {s.group: float(s.arrays()["params/sum"]) for s in PolicyStore(run_dir).query(version=0)}

    wanted = {group: float(state.params["sum"]) for group, state in hunt.states.items()}
    assert command(*tag, "--run-dir", tmp_path / "all", "--init-from", hunt.run_dir) == 0
    out = capsys.readouterr().out
    assert "hunter: 1 of 1 parameters are those of" in out
    assert sums(tmp_path / "all") == wanted
    assert command(*tag, "--run-dir", tmp_path / "one", "--init-from", f"hunter={hunt.run_dir}@latest") == 0
    assert sums(tmp_path / "one") == {"hunter": wanted["hunter"], "runners": 0.0}
    both = ["--init-from", f"hunter={hunt.run_dir}", "--init-from", f"runners={hunt.run_dir}@latest"]
    assert command(*tag, "--run-dir", tmp_path / "both", *both) == 0
    assert sums(tmp_path / "both") == wanted
    capsys.readouterr()
    for given, words in [
        ([hunt.run_dir, hunt.run_dir], "expected GROUP=RUN_DIR[@TAG]"),
        ([f"huntr={hunt.run_dir}"], "there is no group 'huntr'; did you mean 'hunter'"),
        ([f"{hunt.run_dir}@lates"], "no policy 'lates'; did you mean 'latest'"),
        ([source.run_dir], "no parameter of"),
        ([tmp_path / "nowhere"], "there is no directory"),
    ]:
        flags = [word for each in given for word in ("--init-from", each)]
        assert command(*tag, "--run-dir", tmp_path / "refused", *flags) == 2
        err = capsys.readouterr().err
        assert words in err
        assert len(err.splitlines()) <= 2
    assert not (tmp_path / "refused").exists()


def test_a_directory_with_an_equals_sign_in_its_name_is_a_directory(
    source: runnel.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lr=3").symlink_to(source.run_dir)
    monkeypatch.chdir(tmp_path)
    begin = ["train", "toys:Reinforce", "toys:Corridor", "--envs", "4", "--steps", "32", "--quiet"]
    begin += ["--distribution", "inline"]
    for k, given in enumerate(("lr=3", "lr=3@best")):
        assert command(*begin, "--run-dir", tmp_path / f"run-{k}", "--init-from", given) == 0
