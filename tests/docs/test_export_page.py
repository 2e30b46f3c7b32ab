"""Every code block of the page about exports runs: those without Runnel in processes that cannot import it."""

import importlib.util
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest
from exports import CASES, MORE, VECTOR, policy_of
from paths import ROOT

from runnel import algorithms
from runnel.cli.main import main
from runnel.evaluation.export import export
from runnel.types import AgentSpec, Discrete

PAGE = (ROOT / "docs" / "export.md").read_text()
BLOCKS = re.findall(r"^```(python|)\n(.*?)^```", PAGE, re.M | re.S)
ALONE = [block for language, block in BLOCKS if language == "python" and "import runnel" not in block]
needs_onnx = pytest.mark.skipif(importlib.util.find_spec("jax2onnx") is None, reason="the extra onnx is not installed")


def run_alone(block, directory):
    """What a block prints where there is no Runnel, and no JAX unless it imports it."""
    hidden = ["runnel"] if "import jax" in block else ["runnel", "jax"]
    code = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in hidden) + block
    ended = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=directory, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@needs_onnx
def test_every_block_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    printed = []
    for language, block in BLOCKS:
        if language == "python":
            if block in ALONE:
                printed.append(run_alone(block, tmp_path).strip())
            else:
                exec(compile(block, "export.md", "exec"), {})
            continue
        for line in block.splitlines():
            program, *words = shlex.split(line)
            assert program == "runnel"
            assert main([*words, *(["--quiet"] if words[0] == "train" else [])]) == 0, line
    assert capsys.readouterr().out.split() == ["exported-stablehlo", "cartpole-onnx", "policies/exported"]
    by_jax, by_onnxruntime, in_a_loop = printed
    assert by_jax == by_onnxruntime == in_a_loop
    assert re.fullmatch(r"\[([01]) \1 \1\]", by_jax)


@needs_onnx
def test_the_loop_keeps_the_memory_of_a_recurrent_policy(tmp_path):
    policy = policy_of(algorithms.load("ppo")(memory="lstm"), AgentSpec(VECTOR, Discrete(50)))
    export(policy, tmp_path / "cartpole-onnx", "onnx")
    zeros = np.zeros((3, 4), np.float32)
    policy.act(zeros)
    assert run_alone(ALONE[-1], tmp_path).strip() == str(policy.act(zeros))


def test_the_table_has_exactly_what_tests_export():
    rows = re.findall(r"^\| (.*) \| yes \| yes \|$", PAGE, re.M)
    assert rows == [*CASES, *MORE]
