"""Commands of `runnel`, run in the process of a test."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from runnel.cli import main as cli


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str


def run_command(capsys: pytest.CaptureFixture[str], *argv: Any) -> Ended:
    capsys.readouterr()  # what was printed before
    try:
        status = cli.main([str(word) for word in argv])
    except SystemExit as end:
        status = int(end.code or 0)
    return Ended(status, *capsys.readouterr())
