"""A page of the documentation for a terminal."""

from __future__ import annotations

import re
import sys
from typing import Any, ClassVar, Final, TextIO

COMMENT: Final = re.compile(r"^ *<!--.*?-->\n", re.M)
IMAGE: Final = re.compile(r"^ *!\[[^\]]*\]\([^)]*\)\n", re.M)
LINK: Final = re.compile(r"\[([^\]]+)\]\((?!https?:)(?:([\w-]+)\.md)?(?:#([\w-]+))?[^)]*\)")
WIDEST: Final = 100


def show(page: str, text: str, out: TextIO | None = None) -> None:
    """Prints a page that is written in Markdown. `page`: its name, for links within it."""
    from rich.console import Console
    from rich.markdown import Markdown, TextElement
    from rich.text import Text

    class Code(TextElement):
        """Commands in one line however long they are: they are there to be copied."""

        def __rich_console__(self, console: Any, options: Any) -> Any:
            for line in str(self.text).rstrip("\n").split("\n"):
                yield Text("    " + line, style="cyan", no_wrap=True, overflow="ignore")

    class Page(Markdown):
        elements: ClassVar = {**Markdown.elements, "fence": Code, "code_block": Code}

    console = Console(file=out or sys.stdout, highlight=False)
    console.width = min(console.width, WIDEST) if console.is_terminal else WIDEST
    body, linked = without_links(page, IMAGE.sub("", COMMENT.sub("", text)))
    with console.capture() as printed:
        console.print(Page(body, hyperlinks=False), crop=False)
    lines = [line.rstrip() for line in printed.get().splitlines()]
    if linked:
        lines += ["", "More:", *(f"    runnel help {name}" for name in linked)]
    print("\n".join(lines), file=out)


def without_links(page: str, text: str) -> tuple[str, list[str]]:
    """A page whose links to others are plain words, and what they lead to, in order."""
    linked: list[str] = []

    def words(link: re.Match[str]) -> str:
        name, section = link[2] or page, link[3]
        target = f"{name}#{section}" if section else name
        if (link[2] or section) and target not in linked:
            linked.append(target)
        return link[1]

    parts = re.split(r"(^ *```.*?^ *```$)", text, flags=re.M | re.S)  # code stays as it is
    return "".join(part if number % 2 else LINK.sub(words, part) for number, part in enumerate(parts)), linked
