"""Draws the plans that the documentation shows: `python tools/plan_pictures.py` rewrites docs/images/*.svg.

A test fails where a picture differs from what `runnel plan` draws now.
"""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from unittest import mock

DOCS = Path(__file__).resolve().parents[1] / "docs"

PICTURES = {
    "staged.svg": "plan q_learning:QLearning CartPole-v1 --distribution staged:Staged --actors 4 --format svg",
    "decoupled.svg": "plan impala CartPole-v1 --distribution decoupled --actors 4 --inference 2 --format svg",
}
"""The arguments of `runnel` that draw each picture. Modules such as `q_learning` are in docs/examples."""


def drawn(picture: str) -> str:
    """Returns a picture as `runnel plan` draws it on a machine of 64 cores, whatever the machine."""
    from runnel.cli import main as cli
    from runnel.planning.machine import Machine

    out = io.StringIO()
    examples = str(DOCS / "examples")
    with (
        mock.patch.object(Machine, "here", return_value=Machine(64, ("cpu:0",))),
        mock.patch.object(sys, "path", [examples, *sys.path]),
        contextlib.redirect_stdout(out),
    ):
        cli.main(PICTURES[picture].split())
    return out.getvalue()


def main() -> int:
    for picture in PICTURES:
        (DOCS / "images" / picture).write_text(drawn(picture), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
