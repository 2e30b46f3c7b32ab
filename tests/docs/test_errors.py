"""Errors that pages quote are those that are printed."""

import ast
import contextlib
import functools
import re
import sys

import pytest
from paths import EXAMPLES, ROOT

from runnel.cli import main as cli

CLUSTER = (ROOT / "docs" / "cluster.md").read_text().partition("## When it does not start")[2]
ALGORITHM = (ROOT / "docs" / "write-an-algorithm.md").read_text().partition("## Errors")[2]

BAD = '''from dataclasses import dataclass
import jax, jax.numpy as jnp
from runnel import Act, UniformReplay
from reinforce import Reinforce, State
@dataclass(frozen=True)
class Mistaken(Reinforce):
    """Wrong."""
    def {wrong}
'''

MISTAKES = {  # what is wrong, and how the algorithm and its environment are named
    "learn fails": ("learn(self, state, trajectory, key):\n        return state, trajectory.extras.log_prob", ()),
    "returns a state": (
        "init(self, key, spec):\n        return State({'w': jnp.zeros(3), 'b': jnp.zeros(2, jnp.float32)}, ())\n"
        "    def act(self, params, observation, memory, key, explore):\n        return Act(jnp.int32(0))\n"
        "    def learn(self, state, trajectory, key):\n"
        "        return State({**state.params, 'b': state.params['b'].astype(jnp.float16)}, ()), {}",
        (),
    ),
    "returns actions": (
        "act(self, params, observation, memory, key, explore):\n        return Act(jnp.zeros(1, jnp.int32))",
        (),
    ),
    "never calls": ("loop(self, flow):\n        flow.rollout(self.act, steps=4)", ()),
    "a replay with room": (
        "loop(self, flow):\n        items = flow.map(lambda t: t.reward.ravel(), flow.rollout(self.act, steps=4))\n"
        "        replay = flow.replay(UniformReplay(capacity=100))\n        replay.insert(items)\n"
        "        flow.learn(self.learn, replay.sample(batch=8, min_size=1000, samples_per_insert=1.0))",
        (),
    ),
    "DQN: found": (None, ("dqn", "Pendulum-v1")),
    "SAC: found": (None, ("sac", "CartPole-v1")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_error_of_an_algorithm_is_the_one_that_the_page_quotes(mistake, tmp_path, monkeypatch, capsys):
    (quote,) = [line for line in ALGORITHM.splitlines() if mistake in line]
    wrong, named = MISTAKES[mistake]
    (tmp_path / "bad.py").write_text(BAD.format(wrong=wrong))
    for folder in (EXAMPLES, tmp_path):
        monkeypatch.syspath_prepend(folder)
    with contextlib.suppress(SystemExit):
        cli.main(["plan", *(named or ("bad:Mistaken", "CartPole-v1"))])
    for module in ("bad", "reinforce"):
        sys.modules.pop(module, None)
    *_, printed = (line for line in capsys.readouterr().err.splitlines() if not line.startswith("see `runnel help "))
    assert printed.replace(f"{tmp_path}/", "") == f"runnel plan: {quote}"


@functools.cache
def texts():
    """All texts of the source, with a NUL wherever something is filled in."""
    nodes = [node for path in (ROOT / "runnel").rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    whole = [str(node.value) for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    parted = [
        "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)
        for node in nodes
        if isinstance(node, ast.JoinedStr)
    ]
    return "\n".join([*whole, *parted])


@pytest.mark.parametrize("quote", re.findall(r"^\| `([^`]+)` \|", CLUSTER, re.M))
def test_an_error_of_a_cluster_is_worded_as_in_the_source(quote):
    """Most of these need several machines to be seen."""
    pieces = [piece.strip(" ,.") for piece in re.split(r"\S*\d\S*|\.\.\.|\b[A-Z]\w*", quote)]
    missing = [piece for piece in pieces if len(piece) > 3 and piece not in texts()]
    assert not missing, f"no error says {missing}"
