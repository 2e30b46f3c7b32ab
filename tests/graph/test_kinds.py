"""What a node kind means stands in one table; other modules read it and do not ask for single kinds."""

import re
from typing import get_args

import pytest
from paths import ROOT
from toys import Corridor, Reinforce

from runnel.algorithms.dqn import DQN
from runnel.graph.flow import trace
from runnel.graph.kinds import KINDS, NodeKind

MAY_ASK = {"graph/builder.py", "graph/flow.py", "runtime/programs/stage.py"}
"""What adds nodes and what runs them: the steps of `docs/extend.md`."""


def test_every_kind_has_a_row():
    assert [*KINDS] == [*get_args(NodeKind)]


def test_rows_are_consistent():
    for kind, traits in KINDS.items():
        assert traits.trains or not (traits.learns or traits.takes_samples or traits.draws_batches), kind
        assert not traits.learns or traits.has_state, kind
        assert not traits.reads_by_name or traits.reads, kind
        assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in traits.colour), kind


@pytest.mark.parametrize(
    ("algorithm", "called"),
    [
        (DQN(), {"rollout": "trajectory", "map": "map", "replay": "batch", "gradient": "gradients"}),
        (Reinforce(), {"rollout": "trajectory", "learn": "learn"}),
    ],
)
def test_errors_call_a_value_by_its_own_name_or_by_its_node(algorithm, called):
    graph = trace(algorithm, Corridor().spec, 8)
    assert {name: node.called for name, node in graph.nodes.items() if name in called} == called


def test_kinds_after_the_rollout_are_named_by_no_other_module():
    kinds = "|".join(kind for kind, traits in KINDS.items() if traits.trains)
    asks = re.compile(rf"""kinds?\b.*["']({kinds})["']|["']({kinds})["'].*\bkinds?\b""")
    package = ROOT / "runnel"
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if name not in MAY_ASK | {"graph/kinds.py"}:
            found = [line for line in path.read_text().splitlines() if asks.search(line)]
            assert not found, f"{name} asks for a kind: {found[0]}; read a trait of `graph/kinds.py`"
