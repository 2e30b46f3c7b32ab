"""Fills in the reference pages while the documentation is built, from the code itself: see `runnel/cli/reference.py`.

MkDocs calls `on_page_markdown` for every page.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

if str(ROOT) not in sys.path:  # MkDocs loads this file alone
    sys.path.insert(0, str(ROOT))


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A page with the code's own lists in the places that ask for them."""
    from runnel.cli import reference

    return reference.for_site(markdown, sorted((ROOT / "docs").glob("*.md")))
