"""The pages of the documentation, which are part of the package: `runnel help faults#when-an-environment-fails`."""

from __future__ import annotations

import argparse
import functools
import re
from pathlib import Path
from typing import Final

from runnel.cli import error_pages
from runnel.errors import UserError, nearest

PACKAGED: Final = Path(__file__).resolve().parents[1] / "pages"
"""In an installed package."""

CHECKOUT: Final = Path(__file__).resolve().parents[2] / "docs"


def help_command(args: argparse.Namespace) -> int:
    if args.page is None:
        width = max(map(len, names()))
        print("\n".join(f"  {name.ljust(width)}  {title(name)}" for name in names()))
        print("\n`runnel help PAGE` prints one, `runnel help PAGE#SECTION` a section; `runnel --help` has the commands")
        return 0
    from runnel.cli import page_text

    page_text.show(args.page.replace(".md", "").partition("#")[0], text(args.page))
    return 0


def link(error: BaseException) -> list[str]:
    """The line that says where an error is explained; none where it is nowhere."""
    page = error_pages.page_of(error)
    return [f"see `runnel help {page}`"] if page else []


def names() -> list[str]:
    return sorted(path.stem for path in _directory().glob("*.md"))


def title(name: str) -> str:
    """The first heading of a page."""
    lines = (_directory() / f"{name}.md").read_text(encoding="utf-8").splitlines()
    return next((line[2:] for line in lines if line.startswith("# ")), "")


def text(page: str) -> str:
    """A page, or the section of it that is named after a `#`, with those below it."""
    name, _, section = page.replace(".md", "").partition("#")
    if name not in names():
        raise UserError(f"there is no page '{name}'{nearest(name, names())}")
    lines = _lines(name)
    if not section:
        return "\n".join(lines) + "\n"
    found = sections(name)
    if section not in found:
        raise UserError(
            f"the page {name} has no section '{section}'{nearest(section, found)}", page="command-line#help"
        )
    first, depth = found[section]
    after = (line for line, below in found.values() if line > first and below <= depth)
    return "\n".join(lines[first : min(after, default=len(lines))]) + "\n"


def sections(name: str) -> dict[str, tuple[int, int]]:
    """By anchor, as on the site: the line of a heading, and how deep it is."""
    found: dict[str, tuple[int, int]] = {}
    in_code = False
    for number, line in enumerate(_lines(name)):
        in_code ^= line.startswith("```")
        heading = re.match(r"(#+) (.*)", line)
        if heading and not in_code:
            anchor = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading[2]).strip().lower())
            found.setdefault(anchor, (number, len(heading[1])))
    return found


def _lines(name: str) -> list[str]:
    """Of a page, with the code's own lists where it asks for them."""
    return _expanded(_directory() / f"{name}.md").splitlines()


@functools.lru_cache(maxsize=64)
def _expanded(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    if not re.search(r"^(<!-- generated: |::: )", text, re.M):
        return text
    from runnel.cli import reference

    return reference.for_terminal(text, sorted(page.parent.glob("*.md")))


def _directory() -> Path:
    return PACKAGED if PACKAGED.is_dir() else CHECKOUT
