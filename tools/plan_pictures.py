"""Draws the graphs and plans that the documentation shows: `python tools/plan_pictures.py` rewrites docs/images/*.svg.

A test fails where a picture differs from what is drawn now.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

DOCS = Path(__file__).resolve().parents[1] / "docs"

PLANS = {
    "staged.svg": "plan q_learning:QLearning CartPole-v1 --distribution staged:Staged --actors 4 --format svg",
    "decoupled.svg": "plan impala CartPole-v1 --distribution decoupled --actors 4 --inference 2 --format svg",
}
"""The arguments of `runnel` that draw each picture. Modules such as `q_learning` are in docs/examples."""

CUTS = ("inline", "fused", "coarse", "fine", "replicated", "central", "async", "decoupled")
"""The distributions under which the concepts page shows one graph."""

GRAPHS = {
    "graph-reinforce.svg": ("reinforce:Reinforce", "gymnax:CartPole-v1", None),
    "graph-replay.svg": ("q_learning:QLearning", "CartPole-v1", None),
    "cut-environments.svg": ("reinforce:Reinforce", "tag:Tag", "environments"),
    **{f"cut-{name}.svg": ("a2c", "gymnax:CartPole-v1", name) for name in CUTS},
}
"""Algorithm, environment and distribution of each picture of a graph; without a distribution it is not cut."""

PICTURES = (*PLANS, *GRAPHS)


def drawn(picture: str) -> str:
    """Returns a picture as it is drawn on a machine of 64 cores, whatever the machine."""
    with _elsewhere():
        return _graph(*GRAPHS[picture]) if picture in GRAPHS else _plan(PLANS[picture])


@contextlib.contextmanager
def _elsewhere() -> Iterator[None]:
    from runnel.planning.machine import Machine

    examples = str(DOCS / "examples")
    with (
        mock.patch.object(Machine, "here", return_value=Machine(64, ("cpu:0",))),
        mock.patch.object(sys, "path", [examples, *sys.path]),
    ):
        yield


def _plan(command: str) -> str:
    from runnel.cli import main as cli

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        cli.main(command.split())
    return out.getvalue()


def _graph(algorithm: str, environment: str, distribution: str | None) -> str:
    import runnel
    from runnel.planning.graph_svg import graph_svg

    built = runnel.build(algorithm, environment, distribution)
    return graph_svg(built.graph, built.plan if distribution else None)


def write(directory: Path) -> None:
    """Draws all pictures into a directory."""
    for picture in PICTURES:
        (directory / picture).write_text(drawn(picture), encoding="utf-8")


def main() -> int:
    write(DOCS / "images")
    return 0


if __name__ == "__main__":
    sys.exit(main())
