"""What a command says on standard error."""

from __future__ import annotations

import contextlib
import sys

from runnel.errors import printable


def complain(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # a closed terminal takes nothing any more
        print(printable(text), file=sys.stderr, flush=True)
