"""Every code block of every page runs, in the order of the page. `support/pages.py` says how."""

import re
import shutil
import sys

import pytest
from pages import FAST, LANGUAGES, NOTEBOOKS, PAGES, Reader, assert_printed, blocks
from paths import EXAMPLES, ROOT

ALL = [page for page in (*PAGES, *NOTEBOOKS) if any(block.runs for block in blocks(page))]


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """Someone who stands in a copy of docs/examples, from which the whole documentation can be seen."""
    for example in EXAMPLES.glob("*.*"):
        shutil.copy(example, tmp_path)
    for folder in ("docs", "tools"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield Reader(tmp_path, monkeypatch)
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith((f"{tmp_path}/", f"{EXAMPLES}/")):
            del sys.modules[name]


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.name, marks=() if page.name in FAST else pytest.mark.slow) for page in ALL]
)
def test_every_block_runs(page, reader):
    for block in blocks(page):
        reader.do(block)


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.name) for page in ALL if any(block.quick for block in blocks(page))]
)
def test_plans_and_errors_are_as_shown(page, reader):
    for block in blocks(page):
        if block.quick or "the file" in block.said:
            reader.do(block)


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=lambda page: page.name)
def test_every_block_has_a_language_and_every_exception_a_reason(page):
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{block}: found '{block.language}', expected one of {', '.join(LANGUAGES)}"
        assert len(block.said.get("not run", "a reason")) > 5, f"{block}: say why it is not run"
        if block.language == "python":
            compile(block.text, str(block), "exec", dont_inherit=True)
        assert not (block.language == "text" and shows_a_command(block.text)), (
            f"{block}: found a command in a block of text; expected `sh`, with a comment where it cannot run"
        )
        assert not (block.language == "sh" and re.search(r"^runnel \w+: ", block.text, re.M)), (
            f"{block}: found an error in a block of commands; expected `text`, or `console` with its command"
        )
    fences = re.findall(r"^ *```", page.read_text(), re.M)
    assert page.suffix != ".md" or len(fences) == 2 * len(blocks(page)), f"{page.name}: a block was not understood"


def shows_a_command(text):
    """Whether a line is a command as it is typed: no synopsis with words in capitals, and no error."""
    lines = re.findall(r"^(?:\$ )?(?:runnel|curl) +(?!\w+:)\S.*", text, re.M)
    return any(not re.search(r"\b[A-Z]{2,}\b|[\[|]", line) for line in lines)


def test_commands_do_not_hide_in_blocks_of_text():
    assert shows_a_command("runnel train ppo CartPole-v1 --metrics-port 9100\n")
    assert shows_a_command("first\n$ runnel resume runs/mine\n")
    assert shows_a_command("curl -o runnel.json http://127.0.0.1:9100/grafana.json\n")
    assert not shows_a_command("runnel train ALGORITHM ENVIRONMENT\nrunnel list  [NAME] [--json]\n")
    assert not shows_a_command("runnel train: found 'pp', expected an algorithm\n")


def test_the_pages_that_run_always_exist():
    assert {page.name for page in ALL} >= FAST
    said = re.findall(r"`make test` runs (.+?) whole", (ROOT / "CONTRIBUTING.md").read_text(), re.S)
    assert [set(re.findall(r"`([\w-]+\.md)`", words)) for words in said] == [FAST]


def test_what_a_page_shows_wrongly_is_found(reader, tmp_path):
    page = tmp_path / "page.md"

    def read(text):
        page.write_text(text)
        for block in blocks(page):
            reader.do(block)

    with pytest.raises(NameError):
        read("```python\nnever_defined\n```\n")
    with pytest.raises(AssertionError, match="ended with 2"):
        read("```sh\nrunnel plan nothing CartPole-v1\n```\n")
    with pytest.raises(AssertionError, match="ended with 3"):
        read("```sh\nexit 3\n```\n")
    with pytest.raises(AssertionError, match="is printed"):
        read("```python\nprint(1)\n```\n\nIt prints:\n\n<!-- prints -->\n```text\n2\n```\n")
    with pytest.raises(AssertionError, match="is printed"):
        read("```console\n$ runnel plan nothing CartPole-v1\nrunnel plan: another error\n```\n")
    with pytest.raises(AssertionError, match="begins with one of"):
        read("<!-- nut run: a typing mistake -->\n```python\n1\n```\n")
    with pytest.raises(AssertionError, match="import of runnel halted"):
        read("<!-- without runnel -->\n```python\nimport runnel\n```\n")
    read("```python\nx = 1\n```\n\n```python\nprint(x + 1)\n```\n\n<!-- prints -->\n```text\n2\n```\n")
    read("<!-- needs: there_is_no_such_module -->\n```python\nimport there_is_no_such_module\n```\n")
    read("<!-- not run: needs hours -->\n```sh\nexit 3\n```\n")
    read('```python title="docs/mine.py"\nVALUE = 7\n```\n\n```python\nimport mine\nassert mine.VALUE == 7\n```\n')


def test_dots_stand_for_any_text():
    assert_printed("step ...\nthe end", "step 1\nstep 2\nthe  end", "here")
    with pytest.raises(AssertionError, match="is printed"):
        assert_printed("step ...\nthe end", "step 1\nno end", "here")
