"""The pages of the documentation as something to run: their code blocks, what is said about each, and how to run them.

A block is run by its language:

| language | what happens |
|---|---|
| `python` | it is executed; the blocks of a page share their names, like the cells of a notebook |
| `sh` | every command is executed and must end well |
| `console` | a session: lines that begin with `$` are executed, and must print the lines below them |
| others: `text`, `toml`, `yaml` | it is shown, and not run |

A comment before a block, invisible on the page, says what else there is to know:

| comment | meaning |
|---|---|
| `<!-- the file NAME -->` | the block is a file, written for the blocks after it; `title="NAME"` says the same |
| `<!-- first: COMMAND -->` | a command that the page takes for granted, such as one that trains `runs/mine` |
| `<!-- prints -->` | the block is what the block before it prints, with `...` for what differs from run to run |
| `<!-- run with: FLAGS -->` | the block's training commands get these flags too, so that they end sooner |
| `<!-- needs: MODULE -->` | the block runs only where this module is installed |
| `<!-- own process -->` | each command of the block is a process, as a run that hangs must be |
| `<!-- without runnel -->` | the block runs in a process of its own that cannot import Runnel |
| `<!-- not run: REASON -->` | the block cannot be run by a test, and why |

A notebook is a page whose cells are `python` blocks.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

from runnel.cli import main as cli
from runnel.planning.machine import Machine

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs" / "examples").glob("*.ipynb"))
FAST = {
    "concepts.md", "evaluate.md", "export.md", "quick-start.md", "run-directory.md", "use-a-policy.md",
}  # fmt: skip
"""The pages whose commands end soon. The others run with the slow tests, except for plans and errors."""

LANGUAGES = ("python", "sh", "console", "text", "toml", "yaml")
SAID = ("the file", "first", "prints", "run with", "needs", "own process", "without runnel", "not run")
TRAINING = ("train", "sweep", "resume")

BLOCK = re.compile(
    r"(?P<said>(?:^ *<!-- [^\n]* -->\n+)*)"
    r"^(?P<indent> *)```(?P<language>\w*)(?P<rest>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.M | re.S,
)


@dataclass(frozen=True)
class Block:
    """One code block of a page."""

    page: str
    line: int
    language: str
    text: str
    said: Mapping[str, str] = field(default_factory=dict)  # the comments before it

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def runs(self) -> bool:
        """Whether this block is there to be run, and nothing says that it cannot be."""
        return self.language != "text" and "not run" not in self.said and "the file" not in self.said

    @property
    def steps(self) -> list[tuple[str, str]]:
        """Commands and what the page shows below them, which is nothing except in a session."""
        text = self.text.replace("\\\n", " ")
        if self.language == "sh":
            return [(line, "") for line in text.splitlines() if line.strip() and not line.startswith("#")]
        parts = re.split(r"^\$ ", text, flags=re.M)[1:]
        return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts)]

    @property
    def quick(self) -> bool:
        """Whether it is a session that starts no training: plans, and commands that are refused."""
        return (
            self.runs and self.language == "console" and "needs" not in self.said
            and all(command.startswith("runnel plan ") or _refused(shown) for command, shown in self.steps)
        )  # fmt: skip


def blocks(page: Path) -> list[Block]:
    """The code blocks of a page or a notebook, in order."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        return [Block(page.name, number, "python", "".join(cell["source"])) for number, cell in enumerate(cells, 1)]
    found = []
    for match in BLOCK.finditer(text):
        said: dict[str, str] = {}
        for word, rest in _said(match["said"]):
            said[word] = f"{said[word]}\n{rest}" if word in said else rest
        title = re.search(r'title="([^"]+)"', match["rest"])
        if title:
            said.setdefault("the file", title[1])
        line = text.count("\n", 0, match.start("indent")) + 1
        found.append(Block(page.name, line, match["language"], textwrap.dedent(match["text"]), said))
    return found


def _said(comments: str) -> Iterator[tuple[str, str]]:
    for comment in re.findall(r"<!-- (.*) -->", comments):
        word = next((word for word in SAID if comment.startswith(word)), None)
        assert word is not None, f"'{comment}': a comment before a block begins with one of {', '.join(SAID)}"
        yield word, comment.removeprefix(word).lstrip(": ")


def commands(page: Path) -> Iterator[str]:
    """The `runnel` commands that the blocks of a page show, whether they are run or not."""
    for block in blocks(page):
        if block.language in ("sh", "console"):
            for command, _ in block.steps:
                words = re.match(r"(?:[A-Z_]+=\S+ )*runnel (.*)$", command)
                if words:
                    yield words[1].partition(" > ")[0].partition("  #")[0]


class Reader:
    """Someone who reads a page from its beginning and does what it says, in one directory."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        main = types.ModuleType("__main__")  # of a session: it has no file
        monkeypatch.setitem(sys.modules, "__main__", main)
        self.names: dict[str, Any] = vars(main)
        self.printed = ""
        self._patch = monkeypatch

    def do(self, block: Block) -> None:
        """Runs a block, and checks what it prints if the page shows it."""
        if "the file" in block.said:
            file = self.directory / Path(block.said["the file"]).name
            file.write_text(block.text, encoding="utf-8")
        elif "prints" in block.said:
            assert_printed(block.text, self.printed, str(block))
        if not block.runs or not installed(block):
            return
        for command in block.said.get("first", "").splitlines():
            status, printed = self._run(command, "", quiet=True)
            assert status == 0, f"{block}: '{command}' ended with {status}:\n{printed}"
        if block.language == "python":
            alone = "without runnel" in block.said
            self.printed = self._alone(block.text) if alone else self._execute(block)
            return
        self.printed = ""
        for command, shown in block.steps:
            if "own process" in block.said:
                trains = command.split()[:1] == ["runnel"] and command.split()[1] in TRAINING
                longer = f"{command.strip()} {block.said.get('run with', '')}" if trains else command
                status, printed = self._process(["bash", "-euo", "pipefail", "-c", longer])
            else:
                status, printed = self._run(command, block.said.get("run with", ""), quiet=not shown)
            assert (status != 0) == _fails(shown), f"{block}: '{command}' ended with {status}:\n{printed}"
            if shown:
                assert_printed(shown, printed, str(block))
            self.printed += printed

    def _execute(self, block: Block) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(block.text, str(block), "exec", dont_inherit=True), self.names)
        return out.getvalue()

    def _alone(self, text: str) -> str:
        """What a block prints where there is no Runnel, and no JAX unless it imports it."""
        hidden = ["runnel"] if "import jax" in text else ["runnel", "jax"]
        code = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in hidden) + text
        return self._process([sys.executable, "-I", "-c", code])[1]

    def _run(self, command: str, flags: str, quiet: bool) -> tuple[int, str]:
        """The exit status of a command, and what it prints."""
        plain, _, file = command.partition(" > ")
        words = shlex.split(plain, comments=True)
        if words[0] != "runnel" or set("|;&<") & set(plain):
            return self._process(["bash", "-euo", "pipefail", "-c", command])
        if words[1] in TRAINING:
            words += [*shlex.split(flags), *(["--quiet"] if quiet else [])]
        out, err = io.StringIO(), io.StringIO()
        with (
            self._patch.context() as patch, contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err if file else out),
        ):  # fmt: skip
            if words[1] == "plan":  # the same on every machine
                patch.setattr(Machine, "here", lambda: Machine(64, ("cpu:0",)))
            try:
                status = cli.main(words[1:])
            except SystemExit as end:
                status = int(end.code or 0)
        if file:
            (self.directory / file.strip()).write_text(out.getvalue(), encoding="utf-8")
        return status, (err if file else out).getvalue()

    def _process(self, words: list[str]) -> tuple[int, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        ended = subprocess.run(
            words, cwd=self.directory, env={**os.environ, "PATH": path}, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert words[0] == "bash" or ended.returncode == 0, ended.stdout
        return ended.returncode, ended.stdout


def installed(block: Block) -> bool:
    """Whether everything that a block says that it needs can be imported."""
    return all(importlib.util.find_spec(name) is not None for name in block.said.get("needs", "").split())


def assert_printed(shown: str, printed: str, where: str) -> None:
    """Fails where what is printed is not what is shown; `...` stands for any text."""
    if "..." in shown:
        options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        same = doctest.OutputChecker().check_output(shown.strip() + "\n", printed.strip() + "\n", options)
    else:
        same = shown.strip() == printed.strip()
    assert same, f"{where} shows:\n{shown}\nand this is printed:\n{printed}"


def _refused(shown: str) -> bool:
    """Whether what is shown is an error of a user, before anything has started."""
    return re.match(r"runnel \w+: ", shown) is not None


def _fails(shown: str) -> bool:
    """Whether what is shown has the error of a command in it."""
    return re.search(r"^runnel \w+: ", shown, re.M) is not None
