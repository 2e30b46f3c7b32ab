"""`--help` teaches, `runnel help` prints pages, and errors name pages that there are."""

from __future__ import annotations

import argparse
import ast
import functools
import importlib.util
import re
import runpy
import shlex
import sys
import tomllib
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import run_command
from paths import ROOT

from runnel.cli import arguments, error_pages, pages
from runnel.cli import main as cli
from runnel.cli.examples import EXAMPLES
from runnel.cli.grammar import grammar
from runnel.errors import EnvironmentFailed, NotInstalled, UserError, WorkerFailed
from runnel.ops.column_blocks import column_block_layout

COMMANDS = next(a for a in grammar()._actions if isinstance(a, argparse._SubParsersAction)).choices


@pytest.fixture
def runnel(capsys: pytest.CaptureFixture[str]) -> Any:
    return partial(run_command, capsys)


def test_every_command_has_examples_that_it_takes() -> None:
    assert set(COMMANDS) == set(cli.COMMANDS)
    assert set(EXAMPLES) == {"runnel", *COMMANDS}
    for examples in EXAMPLES.values():
        for line, _ in examples:
            program, *words = shlex.split(line)
            assert program == "runnel"
            if "--help" not in words:
                arguments.parse(words)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_every_argument_is_in_lines_that_fit(command: str, runnel: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    ended = runnel(command, "--help")
    assert ended.status == 0
    assert max(map(len, ended.out.splitlines())) <= 110
    assert "examples:\n  runnel " in ended.out
    for action in COMMANDS[command]._actions:
        assert action.help, f"{command} {action.dest} is not described"


def test_numbers_have_defaults_in_their_help() -> None:
    """Flags that a run takes without being given: those of which nothing is the default say so."""
    without = {"actors", "inference", "learners", "seeds", "population", "member"}
    for name in ("train", "sweep", "eval", "versus"):
        for action in COMMANDS[name]._actions:
            if (
                action.option_strings
                and action.metavar in ("N", "STEPS", "SECONDS", "Q")
                and action.dest not in without
            ):
                assert re.search(r"\(.+\)", str(action.help)), f"{name} {action.option_strings[0]} has no default"


def test_pages_are_listed_and_printed(runnel: Any) -> None:
    listed = runnel("help")
    assert listed.status == 0
    assert re.search(r"^  faults +When things break$", listed.out, re.M)
    whole, section = runnel("help", "faults").out, runnel("help", "cluster.md#ports").out
    assert re.match(r" *When things break\n", whole)
    assert section.startswith("Ports\n")
    assert len(section) < len(runnel("help", "cluster").out) / 4
    for page in pages.names():
        for anchor in pages.sections(page):
            assert pages.text(f"{page}#{anchor}").startswith("#")
    assert "did you mean 'faults'" in runnel("help", "fault").err
    assert "has no section 'prots'; did you mean 'ports'?" in runnel("help", "cluster#prots").err
    assert runnel("help", "../README").status == 2


def test_pages_are_printed_without_the_signs_of_their_format(runnel: Any) -> None:
    printed = runnel("help", "evaluate").out
    page = (ROOT / "docs" / "evaluate.md").read_text()
    commands = [line for line in page.splitlines() if line.startswith("runnel ")]
    assert commands
    assert all(f"\n    {line}\n" in printed for line in commands), "a command is in one line, to be copied"
    for sign in ("```", "<!--", "](", "|---", "\n## "):
        assert sign in page
        assert sign not in printed
    assert "--eval-every STEPS        evaluate after every" in printed
    linked = re.search(r"\nMore:\n((?:    runnel help \S+\n)+)$", printed)
    assert linked, printed[-500:]
    for line in linked[1].splitlines():
        assert runnel(*line.split()[1:]).status == 0


@functools.cache
def pages_in_source() -> tuple[set[str], set[str]]:
    """What the source gives as `page=`, to an error or as its attribute; and modules that make errors without it."""
    found, without = [], set()
    for path in (ROOT / "runnel").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case (
                    ast.keyword(arg="page", value=value)
                    | ast.Assign(targets=[ast.Name(id="page")], value=value)
                ):  # fmt: skip
                    found += [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
                case ast.Call(func=ast.Name("UserError" | "RunFailed"), keywords=given):
                    if "page" not in {each.arg for each in given}:
                        without.add(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    return {str(each.value) for each in found if isinstance(each, ast.Constant) and each.value}, without


def test_every_error_leads_to_a_page_and_a_section_that_there_are() -> None:
    links, _ = pages_in_source()
    assert len(links) > 40
    assert {EnvironmentFailed.page, NotInstalled.page, WorkerFailed.page} <= links
    for link in links:
        assert pages.text(link)


REFUSED = {  # commands, and the page that explains why
    "plan nothing CartPole-v1": "algorithms",
    "plan nowhere:Nothing CartPole-v1": "command-line#algorithms-and-environments",
    "plan dqn Pendulum-v1": "algorithms",
    "plan ppo CartPol-v1": "add-an-environment#a-gymnasium-id",
    "plan ppo gymnax:CartPol-v1": "add-an-environment#gymnax",
    "plan ppo matrix:rock_paper": "add-an-environment#matrix-games",
    "plan ppo nowhere:Nothing": "command-line#algorithms-and-environments",
    "plan ppo json:JSONDecoder": "command-line#algorithms-and-environments",
    "plan ppo CartPole-v1 --set learning_rat=1": "command-line#settings",
    "plan ppo CartPole-v1 --set unroll=many": "command-line#settings",
    "plan ppo CartPole-v1 --set env.gravity=1": "command-line#settings",
    "plan ppo CartPole-v1 --distribution nothing": "concepts",
    "plan ppo CartPole-v1 --distribution fused": "concepts#one-program",
    "plan ppo CartPole-v1 --distribution inline --actors 2": "command-line#list",
    "plan ppo CartPole-v1 --envs 8 --distribution coarse --actors 3": "performance#what-the-distributions-do",
    "plan ppo pgx:tic_tac_toe --opponents nothing": "self-play#past-opponents",
    "plan ppo CartPole-v1 --address 10.0.0.1:6379": "cluster#run",
    "train ppo CartPole-v1 --run-dir full": "troubleshooting#resume-is-refused",
    "train ppo CartPole-v1 --config nowhere.json": "command-line#a-configuration-from-a-file",
    "train ppo CartPole-v1 --sink nothing": "prometheus#trackers",
    "train ppo CartPole-v1 --metrics-port 9100 --metrics-address 203.0.113.7": "prometheus#from-another-machine",
    "train reinforce gymnax:CartPole-v1 --envs 16777216 --set unroll=65536": "troubleshooting#out-of-memory",
    "sweep ppo CartPole-v1 --over unroll=log": "sweeps#the-space",
    "resume nowhere": "run-directory",
    "resume full": "run-directory",
    "eval nowhere": "use-a-policy#load-it-and-act",
    "dash . --host 203.0.113.7": "command-line#dash",
    "list nothing": "command-line#list",
    "list CartPol-v1": "command-line#list",
    "help nothing": "command-line#help",
    "help faults#nothing": "command-line#help",
    "plan ppo CartPole-v1 --set unroll=0": "reference-algorithms#ppo",
    "plan toys:Reinforce CartPole-v1 --set unroll": "command-line#settings",
    "plan ppo CartPole-v1 --set minibatches=7": "troubleshooting#numbers-that-must-divide",
    "plan ppo CartPole-v1 --opponents pfsp": "self-play",
    "plan ppo CartPole-v1 --machines a=8 --launcher ray": "command-line",
    "train ppo CartPole-v1 --eval-workers 2": "evaluate",
    "train ppo CartPole-v1 --dry-run --seeds 2": "command-line",
    "train ppo CartPole-v1 --pbt-perturb learning_rate=1e-5:1e-3": "populations",
    "train ppo CartPole-v1 --init-from nowhere": "use-a-policy#load-it-and-act",
    "plan ppo matrix:rock_paper_scissors --set env.rounds=0": "add-an-environment#matrix-games",
    "plan ppo CartPole-v1 --set env.frame_stack=0": "add-an-environment#frame-stacking",
    "plot nowhere --out curve.png": "many-runs#draw-and-compare",
    "plot nowhere --payoffs --out table.png": "many-runs#draw-and-compare",
    "dash runs/nowhere": "dash",
    "versus nowhere elsewhere": "use-a-policy#load-it-and-act",
    "policies nowhere": "use-a-policy#load-it-and-act",
    "export nowhere --format onnx --out policy": "use-a-policy#load-it-and-act",
}


@pytest.mark.parametrize("command", REFUSED)
def test_a_command_that_is_refused_says_where_that_is_explained(
    command: str, runnel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "metrics.jsonl").write_text("")
    ended = runnel(*command.split())
    assert ended.status == 2
    found, *link = ended.err.splitlines()
    assert found.startswith(f"runnel {command.split()[0]}: ")
    assert link == [f"see `runnel help {REFUSED[command]}`"], ended.err


def test_every_module_that_raises_has_a_page_that_explains_its_errors() -> None:
    _, modules = pages_in_source()
    assert len(modules) > 100
    for module in modules:
        assert error_pages.area_page(module), module
    for page in {*error_pages.AREAS.values(), *error_pages.KEYWORDS.values()}:
        assert pages.text(page)
    for module in error_pages.AREAS:
        assert importlib.util.find_spec(module), module


def test_an_error_that_is_raised_in_other_words_has_the_page_of_its_first_module() -> None:
    def raised() -> None:
        try:
            column_block_layout(steps=8, columns=2, minibatches=7, sequences=False)
        except UserError as error:
            raise UserError(f"in other words: {error}") from None

    with pytest.raises(UserError) as caught:
        raised()
    assert error_pages.page_of(caught.value) == "troubleshooting#numbers-that-must-divide"
    assert error_pages.page_of(UserError("never raised")) == ""
    assert error_pages.page_of(UserError("", keywords=("keep_every",))) == "evaluate"
    assert error_pages.page_of(UserError("", page="faults", keywords=("keep_every",))) == "faults"


def test_an_error_says_where_it_is_explained(runnel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(error: BaseException) -> Any:
        raise error

    page = "run-directory#whose-code-is-executed"
    monkeypatch.setitem(cli.COMMANDS, "list", lambda _: fail(UserError("one\ntwo", page=page)))
    assert runnel("list") == (2, "", f"runnel list: one\nsee `runnel help {page}`\n")
    monkeypatch.setitem(cli.COMMANDS, "list", lambda _: fail(WorkerFailed("broke")))
    assert runnel("list") == (1, "", "runnel list: broke\nsee `runnel help faults#how-a-worker-is-replaced`\n")


def test_pages_are_part_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    hook = ROOT / build["targets"]["wheel"]["hooks"]["custom"]["path"]
    interface = SimpleNamespace(BuildHookInterface=object)
    monkeypatch.setitem(sys.modules, "hatchling.builders.hooks.plugin.interface", interface)  # of the build alone
    for version, count in (("standard", len(pages.names())), ("editable", 0)):
        data: dict[str, dict[str, str]] = {"force_include": {}}
        builder = runpy.run_path(str(hook))["Pages"]()
        builder.root = str(ROOT)
        builder.initialize(version, data)
        assert len(data["force_include"]) == count
        for source, target in data["force_include"].items():
            assert (ROOT / target).parent == pages.PACKAGED
            assert Path(source).parent == pages.CHECKOUT
