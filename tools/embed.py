"""Writes the examples into the pages that show them, so that they can be read wherever Markdown is shown.

A code block that follows `<!-- the file examples/reinforce.py -->` is that file, as it is. `make format` runs this; a
test fails where a page and a file differ.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(r"(<!-- the file (?P<file>\S+) -->\n+```[^\n]*\n)(?P<shown>.*?)(?=^```$)", re.M | re.S)


def embedded(text: str, directory: Path) -> str:
    """The text of a page with every file that it shows as that file is now."""
    return BLOCK.sub(lambda block: block[1] + (directory / block["file"]).read_text(encoding="utf-8"), text)


def main(docs: Path = DOCS) -> int:
    """Rewrites the pages that differ from what they show, and names them."""
    for page in sorted(docs.glob("*.md")):
        before = page.read_text(encoding="utf-8")
        after = embedded(before, docs)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(f"{page.name}: files written into it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
