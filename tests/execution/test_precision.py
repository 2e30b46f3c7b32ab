"""Runs with `precision=bf16`: what they store, and that whatever acts with their policies acts alike."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from exports import VECTOR, policy_of
from toys import Drift

import runnel
from runnel.algorithms.ppo import PPO
from runnel.cli.main import main
from runnel.config.policy_config import from_json
from runnel.errors import UserError
from runnel.evaluation.acting_function import acting_function
from runnel.evaluation.evaluate import evaluate
from runnel.evaluation.export import in_float32
from runnel.execution.building import build
from runnel.execution.snapshots.evaluation_task import EvaluationTask, task_of
from runnel.policy import Policy
from runnel.types import AgentSpec, Discrete

SMALL = PPO(unroll=8, epochs=1, minibatches=2, hidden=(8,))
GIVEN: dict[str, Any] = dict(envs=4, seed=1, quiet=True)
SEEN = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)


def train(directory: Path, precision: str, **more: Any) -> Any:
    return runnel.train(
        SMALL, "CartPole-v1", **{"steps": 96, "run_dir": directory, "precision": precision, **GIVEN, **more}
    )


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return train(tmp_path_factory.mktemp("runs") / "bf16", "bf16")


def distance(a: Any, b: Any) -> float:
    pairs = zip(jax.tree.leaves(a.params), jax.tree.leaves(b.params), strict=True)
    return max(float(np.abs(np.asarray(x, np.float64) - y).max()) for x, y in pairs)


def logits_are_rounded(policy: Policy) -> bool:
    """Whether the last layer's outputs have no more than the eight bits of bfloat16."""
    return "bf16" in str(jax.make_jaxpr(policy.step)(policy.initial_memory(), SEEN[0], jax.random.key(0)))


def test_a_run_trains_in_bf16_and_keeps_it_in_its_configuration(narrow: Any, tmp_path: Path) -> None:
    assert json.loads((narrow.run_dir / "config.json").read_text())["precision"] == "bf16"
    plain = train(tmp_path / "run", "float32")
    assert json.loads((plain.run_dir / "config.json").read_text())["precision"] == "float32"
    assert 0 < distance(narrow, plain) < 0.1
    assert {x.dtype for x in jax.tree.leaves(narrow.params)} == {np.dtype(np.float32)}


def test_a_resumed_run_is_that_which_was_not_stopped(narrow: Any, tmp_path: Path) -> None:
    stopped = train(tmp_path / "run", "bf16", steps=32)
    assert distance(runnel.resume(stopped.run_dir, steps=96, quiet=True), narrow) == 0


def test_workers_compute_in_bf16(narrow: Any, tmp_path: Path) -> None:
    """Their first updates are those of one process, except for what batches of another size round differently."""
    plain = train(tmp_path / "float32", "float32", steps=32)
    alone = train(tmp_path / "alone", "bf16", steps=32)
    spread = train(tmp_path / "coarse", "bf16", steps=32, distribution="coarse", actors=2)
    assert distance(spread, alone) < distance(plain, alone) / 3


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_loaded_policy_acts_with_the_precision_it_was_trained_with(
    precision: str, narrow: Any, tmp_path: Path
) -> None:
    run = narrow if precision == "bf16" else train(tmp_path / "run", "float32", steps=32, keep_every=32)
    policy: Any = runnel.load(run)
    assert policy.config.precision == precision
    assert logits_are_rounded(policy) == (precision == "bf16")
    again: Any = runnel.load(policy.save(tmp_path / "saved"))
    assert again.config.precision == precision
    assert again.act(SEEN).tolist() == policy.act(SEEN).tolist()


def test_a_policy_of_an_older_version_has_float32(narrow: Any) -> None:
    found: Any = runnel.load(narrow)
    config = {**found.config.to_json(), "digest": ""}
    assert from_json(config, "there").precision == "bf16"
    del config["precision"]
    assert from_json(config, "there").precision == "float32"
    with pytest.raises(UserError, match="there: 'precision' is 'half', expected float32 or bf16"):
        from_json({**config, "precision": "half"}, "there")


def test_an_evaluation_acts_in_bf16(narrow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[str] = []
    monkeypatch.setattr("runnel.graph.builder.with_precision", lambda f, precision: traced.append(precision) or f)
    evaluate(narrow.run_dir, episodes=1)
    assert set(traced) == {"bf16"}


def test_a_stablehlo_file_acts_like_the_policy_and_an_onnx_file_computes_in_float32(tmp_path: Path) -> None:
    plain = policy_of(PPO(hidden=(16,)), AgentSpec(VECTOR, Discrete(3)))
    policy = Policy(plain.algorithm, replace(plain.config, precision="bf16"), plain.arrays)
    found = jax.jit(acting_function(policy).__call__)(SEEN)[0]
    np.testing.assert_array_equal(found, policy.act(SEEN))
    described = json.loads((runnel.export(policy, tmp_path / "out") / "model.json").read_text())
    assert described["precision"] == "bf16"
    assert logits_are_rounded(policy)
    assert not logits_are_rounded(in_float32(policy))
    assert in_float32(plain) is plain


def test_a_frozen_policy_of_another_precision_is_refused(tmp_path: Path) -> None:
    one = runnel.train(Drift(), "toys:Tag", envs=2, steps=16, run_dir=tmp_path / "run", quiet=True)
    with pytest.raises(UserError, match="was trained with precision=float32, found precision=bf16"):
        runnel.train(
            Drift(), "toys:Tag", envs=2, steps=16, run_dir=tmp_path / "other", quiet=True, precision="bf16",
            frozen={"hunter": str(one.run_dir)},
        )  # fmt: skip


def test_members_share_a_program_in_bf16(tmp_path: Path) -> None:
    found = runnel.train_members(
        SMALL, "toys:Corridor", seeds=2, envs=4, steps=64, run_dir=tmp_path / "runs", quiet=True, precision="bf16"
    )
    first, second = (runnel.load(directory) for directory in found.members)
    assert [first.config.precision, second.config.precision] == ["bf16"] * 2
    alone = runnel.train(
        SMALL, "toys:Corridor", seed=0, envs=4, steps=64, run_dir=tmp_path / "alone", quiet=True, precision="bf16"
    )
    plain = runnel.train(SMALL, "toys:Corridor", seed=0, envs=4, steps=64, run_dir=tmp_path / "plain", quiet=True)
    assert distance(first, alone) < distance(plain, alone) / 3


def test_another_precision_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"precision='half'.*expected 'float32' or 'bf16'"):
        train(tmp_path / "run", "half")
    with pytest.raises(SystemExit):
        main(["train", "ppo", "CartPole-v1", "--precision", "half"])
    assert "--precision" in capsys.readouterr().err
    with x64(), pytest.raises(UserError, match="precision=bf16: found jax_enable_x64"):
        build(SMALL, "toys:Corridor", precision="bf16")


@contextmanager
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def test_evaluations_in_training_act_in_the_precision_of_the_run() -> None:
    for precision in ("bf16", "float32"):
        built = build(SMALL, "CartPole-v1", "inline", envs=4, precision=precision)
        task = task_of(built, {}, episodes=2, seed=1, explore=False)
        for asked in (task, EvaluationTask.from_json(json.loads(json.dumps(task.to_json())))):
            evaluator, graph = asked.make({0: 1})
            evaluator.close()
            assert graph.precision == precision
