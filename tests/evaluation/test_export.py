"""Exported policies act like the policy, in processes without Runnel; and what cannot be exported is refused."""

import importlib.util
import json
import os
import re
import sys
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import exports
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from exports import CASES, MORE, TURNS, VECTOR, policy_of
from flax import linen
from toys import Tag

import runnel
from runnel import algorithms
from runnel.algorithm import Algorithm
from runnel.cli import main as cli
from runnel.config import serialization
from runnel.config.jax_config import configure_jax
from runnel.errors import UserError
from runnel.evaluation import onnx_file
from runnel.evaluation.acting_function import acting_function
from runnel.recording.policy_store import PolicyStore
from runnel.system import startup
from runnel.types import Act, AgentSpec, Box, Discrete

FORMATS = ["stablehlo", "onnx"]
needs_onnx = pytest.mark.skipif(importlib.util.find_spec("jax2onnx") is None, reason="the extra onnx is not installed")
BY_FORMAT = ["stablehlo", pytest.param("onnx", marks=needs_onnx)]


@pytest.fixture(scope="module", autouse=True)
def _configured():
    configure_jax()


# What an exported policy does


@pytest.fixture(scope="module", params=BY_FORMAT)
def few(request, tmp_path_factory):
    return exports.exported(CASES, request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module", params=BY_FORMAT)
def many(request, tmp_path_factory):
    return exports.exported(MORE, request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("name", CASES)
def test_an_exported_policy_acts_like_the_policy_where_there_is_no_runnel(name, few):
    _check_alike(*few[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_so_does_every_other_kind(name, many):
    _check_alike(*many[name])


def _check_alike(trial, directory):
    """In batches of 1, 3 and 64 rows; the memory of some rows is reset after two steps."""
    found = np.load(directory / "found.npz")
    native = np.dtype(json.loads((directory / "model.json").read_text())["action"]["dtype"])
    for step, wanted in enumerate(trial.actions):
        given = found[f"{step}/action"].astype(native)
        assert given.dtype == wanted.dtype
        np.testing.assert_allclose(given, wanted, rtol=1e-4, atol=1e-5)
    flat = np.concatenate([np.ravel(x) for x in trial.actions])
    assert len(np.unique(flat)) > 1, "a policy that always does the same shows nothing"


# model.json


def test_the_description_names_inputs_outputs_and_the_first_memory(tmp_path):
    spec = AgentSpec({"b": VECTOR, "a": (Discrete(3), VECTOR)}, Discrete(4), native=exports.FROM_3)
    policy = policy_of(algorithms.load("ppo")(memory="lstm", memory_size=3), spec)
    described = json.loads((runnel.export(policy, tmp_path / "out") / "model.json").read_text())
    named = [(port["name"], port["role"], port["path"], port["shape"], port["dtype"]) for port in described["inputs"]]
    assert named == [
        ("observation_a_0", "observation", ["a", 0], ["batch"], "int32"),
        ("observation_a_1", "observation", ["a", 1], ["batch", 4], "float32"),
        ("observation_b", "observation", ["b"], ["batch", 4], "float32"),
        ("memory_hidden", "memory", ["hidden"], ["batch", 2, 3], "float32"),
        ("memory_cell", "memory", ["cell"], ["batch", 2, 3], "float32"),
    ]
    assert [port["name"] for port in described["outputs"]] == ["action", "next_memory_hidden", "next_memory_cell"]
    assert described["inputs"][3]["initial"] == [[0.0] * 3] * 2
    assert described["inputs"][3]["next"] == "next_memory_hidden"
    assert described["inputs"][0]["space"] == {"kind": "discrete", "n": 3, "shape": [], "dtype": "int32"}
    assert described["action"]["dtype"] == "int64"  # what Gymnasium wants; JAX has 32 bits by default
    assert described["action"]["space"]["n"] == 4
    assert described["action"]["space"]["start"] == 3
    assert (described["format"], described["file"]) == ("stablehlo", "model.stablehlo")
    assert (described["algorithm"], described["group"]) == ("PPO", "agent")
    assert (described["runnel_version"], described["jax_version"]) == (runnel.__version__, jax.__version__)


def test_only_what_actions_depend_on_is_an_input():
    class Half(NamedTuple):
        """A network that looks at one of two vectors."""

        def init(self, key, observation):
            return {"w": jnp.zeros((4, 2))}

        def apply(self, params, observation):
            return observation["seen"] @ params["w"]

    policy = policy_of(
        algorithms.load("ppo")(network=Half(), normalise_observations=False),
        AgentSpec({"seen": VECTOR, "unseen": VECTOR}, Discrete(2)),
    )
    assert [port.name for port in acting_function(policy).inputs] == ["observation_seen"]
    turns = policy_of(algorithms.load("dqn")(), AgentSpec(TURNS, Discrete(3)))
    assert [port.name for port in acting_function(turns).inputs] == ["observation", "action_mask"]
    team = policy_of(algorithms.load("vdn")(), AgentSpec(VECTOR, Discrete(3), agents=2, names=("x", "y")))
    assert [port.name for port in acting_function(team).inputs] == ["observation", "agent"]


def test_the_value_is_not_part_of_an_export():
    function = acting_function(policy_of(algorithms.load("ppo")(hidden=(64, 64)), AgentSpec(VECTOR, Discrete(2))))
    constants = sum(np.size(x) for step in function.one.steps for x in step.inputs if hasattr(x, "shape"))
    policy_alone = 2 * 4 + 4 * 64 + 64 + 64 * 64 + 64 + 64 * 2 + 2
    assert 0.9 * policy_alone < constants < 1.1 * policy_alone


# StableHLO


class ChannelsFirst(linen.Module):
    """A convolution in the layout that is slow on CPUs."""

    @linen.compact
    def __call__(self, x):
        kernel = self.param("kernel", linen.initializers.normal(), (3, 2, 3, 3))
        x = jax.lax.conv_general_dilated(x[None].astype(jnp.float32), kernel, (2, 2), "VALID")
        return jnp.ravel(jax.nn.relu(x))


def test_an_export_is_plain_stablehlo_for_every_kind_of_device(tmp_path):
    spec = AgentSpec(Box((2, 12, 12), np.dtype(np.uint8), 0, 255), Discrete(3))
    policy = policy_of(algorithms.load("ppo")(network=ChannelsFirst(), memory="gru"), spec)
    content = (runnel.export(policy, tmp_path / "out") / "model.stablehlo").read_bytes()
    exported = jax.export.deserialize(bytearray(content))
    text = exported.mlir_module()
    assert set(re.findall(r"custom_call @(\w+)", text)) == {"shape_assertion"}
    layouts = set(re.findall(r"convolution\(.*dim_numbers = (.*), window", text))
    assert layouts == {"[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]"}  # as the network has it
    inputs = [jax.ShapeDtypeStruct((5, *port.shape), port.dtype) for port in acting_function(policy).inputs]
    for platform in ("cuda", "tpu"):
        assert jax.jit(exported.call).trace(*inputs).lower(lowering_platforms=(platform,)).as_text()


def test_convolutions_are_fast_again_after_an_export(tmp_path):
    test_an_export_is_plain_stablehlo_for_every_kind_of_device(tmp_path)
    x, kernel = jnp.zeros((1, 2, 9, 9)), jnp.zeros((3, 2, 3, 3))
    text = jax.jit(lambda x, k: jax.lax.conv_general_dilated(x, k, (1, 1), "VALID")).lower(x, kernel).as_text()
    assert "[b, 0, 1, f]x[0, 1, i, o]" in text


# ONNX


@needs_onnx
def test_a_model_can_have_older_operators(tmp_path):
    policy = exports.made("PPO, GRU, normalised observations, continuous")
    made = runnel.export(policy, tmp_path / "out", "onnx", opset=21)
    assert json.loads((made / "model.json").read_text())["opset"] == 21
    np.savez(made / "trial.npz", **(trial := exports.Trial(policy)).given)
    exports.run([made])
    _check_alike(trial, made)


@needs_onnx
def test_a_conversion_that_acts_otherwise_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "REPLACED", {"tanh": lambda x, **settings: [-x]})
    policy = policy_of(algorithms.load("ppo")(), AgentSpec(VECTOR, Discrete(4)))
    with pytest.raises(UserError, match=r"cannot be exported as ONNX: 'action' .* differs from the policy's own"):
        runnel.export(policy, tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()


@needs_onnx
def test_a_conversion_leaves_jax_as_it_was(tmp_path):
    modules = (jnp, jax.lax, jax.nn, jax.random, linen)
    before = [dict(vars(module)) for module in modules]
    runnel.export(policy_of(algorithms.load("ppo")(), AgentSpec(VECTOR, Discrete(2))), tmp_path / "out", "onnx")
    for module, had in zip(modules, before, strict=True):
        assert [name for name, value in had.items() if vars(module).get(name) is not value] == []
    assert jnp.cumsum(jnp.ones((2, 3)), -1)[0, -1] == 3  # which jax2onnx replaces


@needs_onnx
@pytest.mark.parametrize("opset", [3, 100])
def test_operators_too_old_or_too_new_are_refused(opset, tmp_path):
    policy = exports.made("DQN, MLP, discrete, masks, turns and a global state")
    with pytest.raises(UserError, match=f"cannot be exported as ONNX: .* try another than opset={opset}"):
        runnel.export(policy, tmp_path / "out", "onnx", opset=opset)
    assert not (tmp_path / "out").exists()


class State(NamedTuple):
    params: Any


@dataclass(frozen=True)
class Draws(Algorithm):
    """Acts at random by a key that it remembers."""

    def init(self, key, spec):
        return State(jnp.zeros(3))

    def initial_memory(self, spec):
        return {"key": jax.random.key(3), "unchanged": jnp.float32(jnp.inf)}

    def act(self, params, observation, memory, key, explore):
        draw, after = jax.random.split(memory["key"])
        action = jnp.argmax(jax.random.normal(draw, (3,)) + observation.sum() + params).astype(jnp.int32)
        return Act(action, memory | {"key": after})

    def loop(self, flow):
        raise NotImplementedError


def test_any_memory_goes_in_and_comes_out(tmp_path):
    policy = policy_of(Draws(), AgentSpec(VECTOR, Discrete(3)))
    made = runnel.export(policy, tmp_path / "out")
    np.savez(made / "trial.npz", **(trial := exports.Trial(policy)).given)
    exports.run([made])
    _check_alike(trial, made)
    assert json.loads((made / "model.json").read_text())["inputs"][2]["initial"] == "inf"


@pytest.mark.parametrize("format", BY_FORMAT)
def test_an_export_names_no_file_and_no_directory_of_this_machine(format, tmp_path):
    made = runnel.export(exports.made("PPO, CNN, discrete"), tmp_path / "out", format)
    for file in made.iterdir():
        content = file.read_bytes()
        for path in (str(tmp_path), os.getcwd(), sys.prefix, jax.__path__[0], os.path.expanduser("~") + "/"):
            assert path.encode() not in content, (file.name, path)
        assert not re.search(rb"[\w/]+\.py\b", content), file.name


@dataclass(frozen=True)
class DrawsAnyway(Draws):
    """Acts at random also where it does not explore."""

    def initial_memory(self, spec):
        return ()

    def act(self, params, observation, memory, key, explore):
        return Act(jax.random.normal(key, (2,)) + 0 * observation[:2])


def test_what_an_export_draws_is_the_same_at_every_call(tmp_path):
    made = runnel.export(policy_of(DrawsAnyway(), AgentSpec(VECTOR, Box((2,)))), tmp_path / "out")
    exported = jax.export.deserialize(bytearray((made / "model.stablehlo").read_bytes()))
    (one,), (other,) = (exported.call(np.full((5, 4), value, np.float32)) for value in (1.0, 2.0))
    np.testing.assert_array_equal(one, other)
    assert np.abs(one).max() > 0


# What cannot be exported


@needs_onnx
def test_a_policy_that_onnx_cannot_express_is_refused_by_the_name_of_what_it_lacks(tmp_path):
    policy = policy_of(Draws(), AgentSpec(VECTOR, Discrete(3)))
    with pytest.raises(UserError, match=r"cannot be exported as ONNX: .*'random_\w+'.*format='stablehlo'"):
        runnel.export(policy, tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()


@dataclass(frozen=True)
class CallsPython(Draws):
    """Asks Python for its action."""

    def initial_memory(self, spec):
        return ()

    def act(self, params, observation, memory, key, explore):
        def called(x):
            raise AssertionError("exporting must not call it")

        return Act(jax.pure_callback(called, jax.ShapeDtypeStruct((), jnp.int32), observation))


@pytest.mark.parametrize("format", BY_FORMAT)
def test_a_policy_that_needs_python_is_refused_and_not_run(format, tmp_path):
    policy = policy_of(CallsPython(), AgentSpec(VECTOR, Discrete(3)))
    with pytest.raises(UserError, match=r"cannot be exported as (StableHLO|ONNX): .*callback"):
        runnel.export(policy, tmp_path / "out", format)
    assert not (tmp_path / "out").exists()


@dataclass(frozen=True)
class Solves(CallsPython):
    """Uses a routine of LAPACK."""

    def act(self, params, observation, memory, key, explore):
        values, _ = jnp.linalg.eigh(jnp.outer(observation, observation))
        return Act(jnp.argmax(values).astype(jnp.int32))


def test_a_kernel_that_is_not_stablehlo_is_refused(tmp_path):
    policy = policy_of(Solves(), AgentSpec(VECTOR, Discrete(4)))
    with pytest.raises(UserError, match=r"cannot be exported as StableHLO: it calls 'lapack_\w+'"):
        runnel.export(policy, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_jax2onnx_the_error_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    policy = policy_of(algorithms.load("ppo")(), AgentSpec(VECTOR, Discrete(2)))
    with pytest.raises(UserError, match=r"needs 'jax2onnx'.*pip install 'runnel\[onnx\]'"):
        runnel.export(policy, tmp_path / "out", "onnx")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run with stored policies of two groups."""
    path = tmp_path_factory.mktemp("run") / "tag"
    path.mkdir()
    for group, spec in Tag.spec.groups.items():
        policy = policy_of(algorithms.load("ppo")(), spec)
        made = serialization.to_json(policy.algorithm)
        config = replace(policy.config, group=group, algorithm=made, version=3, env_steps=100)
        PolicyStore(path).add(config, policy.arrays)
    return path


def test_of_several_loaded_policies_one_is_named(run_dir, tmp_path):
    policies = runnel.load(run_dir)
    with pytest.raises(UserError, match="groups hunter, runners, expected one"):
        runnel.export(policies, tmp_path / "out")
    made = runnel.export(policies, tmp_path / "out", group="hunter")
    assert json.loads((made / "model.json").read_text())["group"] == "hunter"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["@beste", "--format", "stablehlo"], "has no policy 'beste'"),
        (["@latest", "--format", "stablehlo"], "found policies of the groups hunter, runners, expected one: .*--group"),
        (["@latest", "--format", "stablehlo", "--group", "hunters"], "did you mean 'hunter'"),
        (["", "--format", "stablehlo", "--group", "hunter", "--opset", "21"], "--opset 21 is for --format onnx"),
        (["", "--format", "stablehlo", "--group", "hunter", "--out", "full"], "full is there already.*with --out"),
        (["", "--format", "tflite"], "invalid choice: 'tflite'"),
        (["", "--out", "x"], "arguments are required: --format"),
        (["-none", "--format", "stablehlo"], "there is no directory"),
    ],
)
def test_mistakes_are_reported_in_a_line_or_two_and_nothing_is_written(
    words, said, run_dir, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("kept")
    try:
        status = cli.main(["export", f"{run_dir}{words[0]}", *words[1:]])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.strip().splitlines()) <= 2
    assert re.search(said, printed.err), printed.err
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "mine"]


def test_the_command_writes_a_new_directory_named_after_run_group_and_format(run_dir, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(startup, "EVERY_S", 0.001)
    assert cli.main(["export", str(run_dir), "--format", "stablehlo", "--group", "runners"]) == 0
    said = capsys.readouterr()
    assert said.out.strip() == "tag-runners-stablehlo"
    assert "exporting to stablehlo (" in said.err
    assert sorted(path.name for path in (tmp_path / "tag-runners-stablehlo").iterdir()) == [
        "model.json", "model.stablehlo",
    ]  # fmt: skip
    described = json.loads((tmp_path / "tag-runners-stablehlo" / "model.json").read_text())
    assert described["group"] == "runners"
    assert (described["version"], described["env_steps"]) == (3, 100)
    assert cli.main(["export", str(run_dir), "--format", "stablehlo", "--group", "runners"]) == 2  # now it is there
