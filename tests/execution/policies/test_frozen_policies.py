"""Stored policies that act for groups which do not learn."""

from __future__ import annotations

import json
import shutil
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from chaos import Chaos
from paths import ROOT, SUPPORT
from toys import Drift, GradientDrift, Tag

import runnel
from runnel.algorithm import Algorithm
from runnel.algorithms.dqn import DQN
from runnel.algorithms.ppo import PPO
from runnel.cli import main as cli
from runnel.config import serialization
from runnel.errors import UserError
from runnel.evaluation.evaluate import evaluate
from runnel.execution.policies.frozen_policies import settings_that_change_acting
from runnel.execution.policies.warm_start import warm_start
from runnel.graph.flow import Value, trace
from runnel.policy import Policies
from runnel.recording.evaluation_log import read_evaluations
from runnel.recording.policy_store import PolicyStore

PER_ITERATION = 16
STEPS = 8 * PER_ITERATION


def train(run_dir: Path, distribution: str = "inline", algorithm: Algorithm | None = None, **more: Any) -> runnel.Run:
    given = {"envs": 4, "steps": STEPS, "seed": 3, "quiet": True, "run_dir": run_dir, **more}
    return runnel.train(algorithm or Drift(), "toys:Tag", distribution, **given)


@pytest.fixture(scope="module")
def hunt(tmp_path_factory: pytest.TempPathFactory) -> runnel.Run:
    """Both groups have learnt."""
    return train(tmp_path_factory.mktemp("hunt") / "run", seed=8)


@pytest.fixture(scope="module")
def hunted(hunt: runnel.Run, tmp_path_factory: pytest.TempPathFactory) -> runnel.Run:
    """The runners have learnt, against the hunter of `hunt`."""
    return train(
        tmp_path_factory.mktemp("hunted") / "run", frozen={"hunter": hunt.run_dir}, keep_every=2 * PER_ITERATION,
        eval_every=4 * PER_ITERATION, eval_episodes=2, eval_metric="return/runners",
    )  # fmt: skip


def sums(run: runnel.Run) -> dict[str, float]:
    return {group: float(state.params["sum"]) for group, state in run.states.items()}


@pytest.mark.parametrize(
    ("distribution", "algorithm", "more"),
    [
        ("fused", Drift(), {}),
        ("coarse", Drift(), {"actors": 2}),
        ("environments", GradientDrift(), {"actors": 2}),
        pytest.param("replicated", GradientDrift(), {"learners": 2}, marks=pytest.mark.slow),
        pytest.param("fine", Drift(), {"actors": 2}, marks=pytest.mark.slow),
    ],
    ids=["fused", "coarse", "environments", "replicated", "fine"],
)
def test_a_frozen_group_keeps_its_parameters_while_the_other_learns(
    distribution: str, algorithm: Algorithm, more: dict[str, Any], hunt: runnel.Run, hunted: runnel.Run, tmp_path: Path
) -> None:
    stored = runnel.load(hunt, group="hunter")
    stored.config = replace(stored.config, algorithm=serialization.to_json(algorithm))
    run = train(tmp_path / "run", distribution, algorithm, frozen={"hunter": stored}, **more)
    assert sums(run)["hunter"] == sums(hunt)["hunter"]
    assert sums(run)["runners"] == pytest.approx(sums(hunted)["runners"], rel=1e-5)
    assert sums(hunted)["hunter"] == sums(hunt)["hunter"]
    assert sums(run)["runners"] != sums(hunt)["runners"]


def test_a_frozen_group_learns_by_the_same_kinds_of_node() -> None:
    """A distribution that cuts gradients apart finds them in a frozen group, too."""
    for algorithm, kinds in ((Drift(), {"learn"}), (GradientDrift(), {"gradient", "apply"})):
        graph = trace(algorithm, Tag.spec, 4, frozen=["hunter"])
        for group in Tag.spec.groups:
            found = {node.kind for node in graph.nodes.values() if node.group == group and node.traits.trains}
            assert found == kinds


def test_it_is_resumed_without_the_directory_that_the_policy_came_from(
    hunt: runnel.Run, hunted: runnel.Run, tmp_path: Path
) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(hunt.run_dir, copied)
    train(tmp_path / "run", frozen={"hunter": copied}, steps=3 * PER_ITERATION)
    shutil.rmtree(copied)
    run = runnel.resume(tmp_path / "run", steps=STEPS, quiet=True)
    assert sums(run) == sums(hunted)


@pytest.mark.slow
@pytest.mark.parametrize("worker", ["learner", "actor-0"])
def test_it_survives_a_killed_worker(
    worker: str, hunt: runnel.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    steps = 5_000 * PER_ITERATION
    calm = train(tmp_path / "calm", "coarse", actors=2, frozen={"hunter": hunt.run_dir}, steps=steps)
    command = [
        "train", "toys:Drift", "toys:Tag", "--distribution", "coarse", "--actors", "2", "--envs", "4", "--seed", "3",
        "--steps", str(steps), "--run-dir", str(tmp_path / "killed"), "--quiet", "--checkpoint-every", "1",
        "--frozen", f"hunter={hunt.run_dir}",
    ]  # fmt: skip
    chaos = Chaos(command, tmp_path / "killed", [worker], pause_s=(0.5, 1.0), signals=[signal.SIGKILL], most=1)
    assert chaos.run() == 0, chaos.output()
    assert chaos.done
    found = {g: float(s.arrays()["params/sum"]) for g, s in PolicyStore(tmp_path / "killed").find("latest").items()}
    assert found == sums(calm)


# What is stored


def test_its_policy_is_stored_with_those_of_the_others(hunt: runnel.Run, hunted: runnel.Run) -> None:
    store = PolicyStore(hunted.run_dir)
    by_group = {
        group: [(s.version, s.env_steps, s.tags, s.score) for s in store.query(group)] for group in Tag.spec.groups
    }
    assert by_group["hunter"] == by_group["runners"]
    assert [env_steps for _, env_steps, *_ in by_group["hunter"]] == list(range(0, STEPS + 1, 2 * PER_ITERATION))
    assert {tag for _, _, tags, _ in by_group["hunter"] for tag in tags} == {"best", "latest"}
    for snapshot in store.query("hunter"):
        assert float(snapshot.arrays()["params/sum"]) == sums(hunt)["hunter"]


def test_the_run_is_evaluated_loaded_and_exported_without_the_source(
    hunt: runnel.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(hunt.run_dir, copied)
    run = train(
        tmp_path / "run", frozen={"hunter": copied}, eval_every=STEPS, eval_episodes=3, eval_seed=5,
        eval_metric="return",
    )  # fmt: skip
    shutil.rmtree(copied)
    last = read_evaluations(run.run_dir)[-1]
    assert evaluate(run.run_dir, episodes=3, seed=5)["returns"] == last["returns"]
    policies = runnel.load(run.run_dir)
    assert isinstance(policies, Policies)
    seen = {"hunter": np.zeros(3, np.float32), "runners": np.zeros((2, 2), np.float32)}
    assert {group: np.shape(action) for group, action in policies.act(seen).items()} == {
        "hunter": (),
        "runners": (2, 1),
    }
    assert cli.main(["eval", str(run.run_dir), "--episodes", "2"]) == 0
    assert cli.main(["policies", str(run.run_dir)]) == 0
    assert "hunter" in capsys.readouterr().out
    out = tmp_path / "hunter.stablehlo"
    flags = ["--group", "hunter", "--format", "stablehlo", "--out", str(out)]
    assert cli.main(["export", str(run.run_dir), *flags]) == 0
    assert out.exists()


# Refusals


@dataclass(frozen=True)
class OtherDrift(Drift):
    """An algorithm of another class with the same parameters."""


@dataclass(frozen=True)
class WideDrift(Drift):
    """Parameters of a size that is a setting."""

    size: int = 2

    def init(self, key: Any, spec: Any) -> Any:
        state = super().init(key, spec)
        return state._replace(params={"sum": state.params["sum"], "more": jax.numpy.zeros(self.size)})

    def learn(self, state: Any, trajectory: Any, key: Any) -> Any:
        return state, {}


@pytest.mark.parametrize(
    ("frozen", "more", "words"),
    [
        ({"huntr": "RUN"}, {}, "frozen=: there is no group 'huntr'; did you mean 'hunter'"),
        ({"hunter": "RUN", "runners": "RUN"}, {}, "frozen=: all groups are frozen, expected one that learns"),
        ({"hunter": "RUN"}, {"algorithm": OtherDrift()}, "expected one of .*OtherDrift, .*; hunter=RUN_DIR@TAG in"),
        ({"hunter": "RUN@bset"}, {}, "has no policy 'bset'"),
        (
            {"hunter": "RUN"}, {"init_from": {"hunter": "RUN"}},
            "frozen=, init_from=: found both for group 'hunter', expected one of them",
        ),
    ],
    ids=["unknown group", "all groups", "another class", "unknown tag", "both"],
)  # fmt: skip
def test_what_cannot_be_frozen_is_refused(
    frozen: dict[str, str], more: dict[str, Any], words: str, hunt: runnel.Run, tmp_path: Path
) -> None:
    frozen = {group: source.replace("RUN", str(hunt.run_dir)) for group, source in frozen.items()}
    with pytest.raises(UserError, match=words) as caught:
        train(tmp_path / "run", frozen=frozen, **more)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_parameters_of_other_shapes_are_refused(tmp_path: Path) -> None:
    train(tmp_path / "wide", algorithm=WideDrift(), steps=PER_ITERATION)
    with pytest.raises(UserError, match=r"params/more.*\[2\].*\[3\]"):
        train(tmp_path / "run", algorithm=WideDrift(size=3), frozen={"hunter": tmp_path / "wide"})
    assert not (tmp_path / "run").exists()


def test_a_group_whose_updates_train_another_cannot_be_frozen() -> None:
    class Crossed(Drift):
        def loop(self, flow: Any) -> None:
            hunter, runners = flow.agents("hunter"), flow.agents("runners")
            near = hunter.map(lambda trajectory: trajectory.reward, hunter.rollout(self.act, steps=4))
            hunter.learn(lambda state, reward, key: (state, {}), near)
            also = Value({"runners": near.ref("hunter")})
            runners.learn(lambda state, own, reward, key: (state, {}), runners.rollout(self.act, steps=4), also)

    with pytest.raises(UserError) as caught:
        trace(Crossed(), Tag.spec, 4, frozen=["hunter"])
    assert str(caught.value).replace("frozen=:", "--frozen:") in (ROOT / "docs" / "use-a-policy.md").read_text()
    trace(Crossed(), Tag.spec, 4, frozen=["runners"])


@dataclass(frozen=True)
class SettledDrift(Drift):
    """Settings that change greedy actions, exploring ones, and learning alone."""

    scale: float = 1.0
    noise: float = 0.0
    learning_rate: float = 1.0

    def act(self, params: Any, observation: Any, memory: Any, key: Any, explore: bool, index: Any) -> Any:
        act = super().act(params, observation, memory, key, explore, index)
        if observation.shape == (3,):
            return act
        scaled = act.action * self.scale
        return act._replace(action=(scaled + self.noise if explore else scaled).astype(jax.numpy.float32))


def test_settings_with_which_it_would_act_otherwise_are_refused(tmp_path: Path) -> None:
    source = train(tmp_path / "source", algorithm=SettledDrift(), steps=PER_ITERATION)

    def begin(**settings: Any) -> tuple[str, ...]:
        built = runnel.build(SettledDrift(**settings), "toys:Tag", "inline", envs=4, frozen=["runners"])
        return warm_start(built, 3, None, {"runners": source}).notes

    (alone,) = begin(learning_rate=0.1)
    assert alone.endswith("and does not learn")
    with pytest.raises(UserError, match=r"would choose other actions: scale \(found 0.5, trained with 1.0\)$"):
        begin(scale=0.5, noise=0.25, learning_rate=0.1)
    _, explores = begin(noise=0.25, learning_rate=0.1)
    assert (
        explores == "runners: explores as this run does, not as it was trained to: noise (found 0.25, trained with 0.0)"
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"scale": {"float": "many"}},
            r"would choose other actions: scale \(found 1.0, trained with \{'float': 'many'\}",
        ),
        ({"scale": {"object": "os:system"}}, "would choose other actions: scale"),
        ({"scale": "wide"}, "would choose other actions: scale"),
        ({"unroll": {"list": 3}}, "would choose other actions: unroll"),
    ],
    ids=["no number", "code", "text", "no list"],
)
def test_settings_that_no_run_has_written_are_refused(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    source = train(tmp_path / "source", algorithm=SettledDrift(), steps=PER_ITERATION)
    file = PolicyStore(source.run_dir).find("latest")["runners"].path / "config.json"
    config = json.loads(file.read_text())
    config["algorithm"]["settings"] |= settings
    file.write_text(json.dumps(config))
    with pytest.raises(UserError, match=words) as caught:
        train(tmp_path / "run", algorithm=SettledDrift(), frozen={"runners": source.run_dir})
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_it_explores_in_training_and_acts_greedily_in_evaluations(tmp_path: Path) -> None:
    source = train(tmp_path / "source", algorithm=SettledDrift(), steps=PER_ITERATION)
    given = {"frozen": {"runners": source}, "eval_every": STEPS, "eval_episodes": 2, "eval_metric": "return"}
    calm = train(tmp_path / "calm", algorithm=SettledDrift(), **given)
    noisy = train(tmp_path / "noisy", algorithm=SettledDrift(noise=0.5), **given)
    assert sums(noisy)["hunter"] != sums(calm)["hunter"]  # it met other runners
    returns = [[found["returns"] for found in read_evaluations(run.run_dir)] for run in (calm, noisy)]
    assert returns[0][0] == returns[1][0]


@pytest.mark.parametrize(
    ("algorithm", "harmless", "explores"),
    [
        (PPO(hidden=(8,)), {"learning_rate": 0.1, "epochs": 3, "clip": 0.4}, {}),
        (DQN(hidden=(8,)), {"learning_rate": 0.1, "max_grad_norm": 1.0}, {"epsilon_end": 0.3}),
    ],
    ids=["ppo", "dqn"],
)
def test_settings_of_learning_may_differ(algorithm: Any, harmless: dict[str, Any], explores: dict[str, Any]) -> None:
    built = runnel.build(algorithm, "CartPole-v1", "inline", envs=2)
    for explore in (False, True):
        assert settings_that_change_acting(built, "agent", harmless, explore) == []
    found = [
        settings_that_change_acting(built, "agent", {**harmless, **explores}, explore) for explore in (False, True)
    ]
    assert found == [[], list(explores)]


# On the command line


def test_the_command_line_freezes_a_group(
    hunt: runnel.Run, hunted: runnel.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = ["train", "toys:Drift", "toys:Tag", "--distribution", "inline", "--envs", "4", "--steps", str(STEPS)]
    begin += ["--seed", "3", "--run-dir", str(tmp_path / "run")]
    assert cli.main([*begin, "--frozen", f"hunter={hunt.run_dir}@latest"]) == 0
    assert "hunter: acts with " in capsys.readouterr().out
    found = {g: float(s.arrays()["params/sum"]) for g, s in PolicyStore(tmp_path / "run").find("latest").items()}
    assert found == sums(hunted)
    begin[-1] = str(tmp_path / "refused")
    for flags, words in [
        (["--frozen", str(hunt.run_dir)], "expected GROUP=RUN_DIR[@TAG]"),
        (["--frozen", f"huntr={hunt.run_dir}"], "there is no group 'huntr'; did you mean 'hunter'"),
        (
            ["--frozen", f"hunter={hunt.run_dir}", "--init-from", f"hunter={hunt.run_dir}"],
            "--frozen, --init-from: found both for group 'hunter'",
        ),
    ]:
        assert cli.main([*begin, *flags]) == 2
        err = capsys.readouterr().err
        assert words in err
        assert len(err.splitlines()) <= 2
    assert not (tmp_path / "refused").exists()
