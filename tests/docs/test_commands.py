"""Every command that a page shows is one that the command line understands."""

import re
import shlex

import pytest
from paths import ROOT

from runnel.cli import arguments

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = "train|sweep|resume|eval|versus|policies|export|plan|plot|dash|bench|list|doctor|help|completion"
COMMAND = re.compile(rf"^(?:\$ )?(?:[A-Z_]+=\S+ )*runnel ((?:{NAMES})\b(?!:).*)$")


def commands(page):
    """The arguments of `runnel`, of code blocks and between backticks."""
    text = page.read_text().replace("\\\n", " ")
    blocks = re.findall(r"^```\n(.*?)^```", re.sub(r"^```\w.*?^```", "", text, flags=re.M | re.S), re.M | re.S)
    shown = [line for block in blocks for line in block.splitlines()]
    shown += re.findall(r"`(runnel \w+ \w[^`\n]+)`", text)  # not those that only name a command or a flag
    for line in shown:
        found = COMMAND.match(line)
        if found and not re.search(r"\b(ALGORITHM|RUN_DIR|NAME|PORT|SECTION)\b|\.\.\.|\w\|\w", line):
            yield found[1].partition(" > ")[0].partition("  #")[0]


SHOWN = sorted({(page.name, command) for page in PAGES for command in commands(page)})
REFUSED = "--learning-rate"  # shown with the error that answers it


@pytest.mark.parametrize(("page", "command"), SHOWN)
def test_the_command_line_takes_a_command_of_a_page(page, command):
    words = shlex.split(command)
    if REFUSED in words:
        with pytest.raises(SystemExit):
            arguments.parse(words)
    elif "--help" not in words:
        assert arguments.parse(words) is not None


def test_pages_show_commands():
    assert len(SHOWN) > 60
