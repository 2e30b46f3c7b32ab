"""Commands of `runnel`, run in the process of a test."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import pytest

from runnel.cli import main as cli

FIRST_LINE: Final = re.compile(r"\A(training|sweeping|resuming) .*\n")
"""What a command that trains prints before it looks at anything."""


class Ended(NamedTuple):
    """How a command ended, and what it printed after its first line."""

    status: int
    out: str
    err: str

    @property
    def said(self) -> list[str]:
        """The lines on standard error, without the one that says where to read more."""
        return [line for line in self.err.splitlines() if not line.startswith("see `runnel help ")]


def run_command(capsys: pytest.CaptureFixture[str], *argv: Any) -> Ended:
    capsys.readouterr()  # what was printed before
    try:
        status = cli.main([str(word) for word in argv])
    except SystemExit as end:
        status = int(end.code or 0)
    out, err = capsys.readouterr()
    return Ended(status, FIRST_LINE.sub("", out), err)
