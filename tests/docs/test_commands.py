"""Every command that a page shows is one that the command line understands, whether a test runs it or not."""

import re
import shlex

import pytest
from pages import PAGES, commands

from runnel.cli import arguments
from runnel.cli.main import COMMANDS

NAMES = "|".join(COMMANDS)
PLACEHOLDER = re.compile(r"\b(ALGORITHM|RUN_DIR|NAME|PORT|SECTION)\b|\.\.\.|\w\|\w")


def shown(page):
    """The arguments of `runnel`, of code blocks and between backticks."""
    yield from commands(page)
    between = re.findall(rf"`runnel ((?:{NAMES}) \w[^`\n]+)`", page.read_text())  # not a command's or a flag's name
    yield from (command.partition(" > ")[0] for command in between)


SHOWN = sorted({(page.name, command) for page in PAGES for command in shown(page)})
COMPLETE = [
    (page, command) for page, command in SHOWN
    if re.match(rf"({NAMES})\b(?!:)", command) and not PLACEHOLDER.search(command)
]  # fmt: skip
REFUSED = "--learning-rate"  # shown with the error that answers it


@pytest.mark.parametrize(("page", "command"), COMPLETE)
def test_the_command_line_takes_a_command_of_a_page(page, command):
    words = shlex.split(command)
    if REFUSED in words:
        with pytest.raises(SystemExit):
            arguments.parse(words)
    elif "--help" not in words:
        assert arguments.parse(words) is not None


def test_pages_show_commands():
    assert len(COMPLETE) > 60
