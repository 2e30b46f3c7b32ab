"""Text as it may be shown on a terminal, whoever wrote it.

Names, settings and counters of a run directory, and what workers and environments say, may contain anything: an escape
sequence can change a terminal's title, hide what follows, or answer for the user.
"""

from __future__ import annotations

import unicodedata
from typing import Final

UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode's categories of what controls a terminal, reverses or hides text, or cannot be printed at all."""


def printable(text: str) -> str:
    r"""The text with every character that is not seen as an escape, such as `\x1b`; line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in UNSEEN else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
