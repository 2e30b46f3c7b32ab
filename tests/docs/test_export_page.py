"""The page about exports: its programs act alike, its loop keeps a memory, its table has what tests export."""

import importlib.util
import re

import numpy as np
import pytest
from exports import CASES, MORE, VECTOR, policy_of
from pages import Reader, blocks
from paths import ROOT

from runnel import algorithms
from runnel.evaluation.export import export
from runnel.types import AgentSpec, Discrete

PAGE = ROOT / "docs" / "export.md"
LOOP = [block for block in blocks(PAGE) if "without runnel" in block.said][-1]
needs_onnx = pytest.mark.skipif(importlib.util.find_spec("jax2onnx") is None, reason="the extra onnx is not installed")


@needs_onnx
def test_the_loop_keeps_the_memory_of_a_recurrent_policy(tmp_path, monkeypatch):
    policy = policy_of(algorithms.load("ppo")(memory="lstm"), AgentSpec(VECTOR, Discrete(50)))
    export(policy, tmp_path / "cartpole-onnx", "onnx")
    zeros = np.zeros((3, 4), np.float32)
    policy.act(zeros)
    reader = Reader(tmp_path, monkeypatch)
    reader.do(LOOP)
    assert reader.printed.strip() == str(policy.act(zeros))


def test_the_table_has_exactly_what_tests_export():
    rows = re.findall(r"^\| (.*) \| yes \| yes \|$", PAGE.read_text(), re.M)
    assert rows == [*CASES, *MORE]
