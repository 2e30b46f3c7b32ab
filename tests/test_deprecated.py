"""Old names work for one release, and warn with the old name and the new one."""

import dataclasses
import importlib
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel import deprecated
from runnel.cli.main import main
from runnel.config import serialization, settings
from runnel.deprecated import Renamed
from runnel.distributions.decoupled import Decoupled
from runnel.distributions.environments import Environments
from runnel.distributions.fine import Fine
from runnel.execution import trust
from runnel.launch import host_launcher
from runnel.planning.distribution import BoundedStaleness, Distribution, Fragment

SPLIT = (Fine, Environments, Decoupled)


def fresh(module: str) -> Any:
    """A module, imported as if for the first time."""
    sys.modules.pop(module, None)
    return importlib.import_module(module)


# Modules and names


@pytest.mark.parametrize(("old", "new"), [row for row in deprecated.MODULES.items() if row[0] != "runnel.graph"])
def test_a_module_that_moved_is_imported_by_its_old_name(old: str, new: str) -> None:
    with pytest.warns(Renamed, match=f"^{old} is now {new};") as warned:
        alias = fresh(old)
    assert warned[0].filename == __file__
    target = importlib.import_module(new)
    for name in [name for name in vars(target) if not name.startswith("_")]:
        assert getattr(alias, name) is getattr(target, name)
        assert name in dir(alias) or name not in getattr(target, "__all__", [name])
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = alias.nothing


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        (module, old, f"{now}.{new}")
        for module, now in {"runnel": "runnel", **deprecated.MODULES}.items()
        for old, new in deprecated.NAMES.get(now, {}).items()
    ],
)
def test_a_name_that_changed_is_found_by_its_old_name(module: str, old: str, new: str) -> None:
    with pytest.warns(Renamed, match=rf"{module}\.{old} is now {new};"):
        found = runnel.Free if module == "runnel" else deprecated.attribute(module, old)  # type: ignore[attr-defined]
    home, _, name = new.rpartition(".")
    assert found is getattr(importlib.import_module(home), name)


def test_a_name_that_changed_is_found_in_the_module_that_has_it_now() -> None:
    with pytest.warns(Renamed, match=r"host_launcher\.tell is now runnel\.launch\.host_launcher\.agent_arguments;"):
        assert host_launcher.tell is host_launcher.agent_arguments  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = host_launcher.nothing  # type: ignore[attr-defined]


def test_what_the_documentation_showed_still_runs() -> None:
    """The imports of the pages before the modules moved, as a script has them: each line warns once, at that line."""
    script = textwrap.dedent("""\
        import runnel, runnel.training, sys; assert "jax" not in sys.modules
        from runnel.plan import REST, Barrier, Distribution, Fragment, Layout
        from runnel.plan import Free
        from runnel.layout import Free as Same
        from runnel.views import parted
        from runnel.machine import Machine
        from runnel.launch.hosts import LocalHosts
        from runnel.graph import Graph
        assert runnel.Free is Free is Same
        """)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    lines = [line for line in ended.stderr.splitlines() if "Renamed" in line]
    assert [line.partition(": ")[0] for line in lines] == [f"<string>:{n}" for n in (1, 2, 3, 4, 4, 5, 6, 7, 7, 8, 9)]
    assert "runnel.graph.Graph is now runnel.graph.nodes.Graph" in lines[-2]


def test_modules_are_attributes_of_the_package() -> None:
    runnel.__dict__.pop("views", None)
    sys.modules.pop("runnel.views", None)
    with pytest.warns(Renamed, match=r"^runnel\.views is now runnel\.observations"):
        assert runnel.views.parted is importlib.import_module("runnel.observations").parted  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="module 'runnel' has no attribute 'nothing'"):
        _ = runnel.nothing  # type: ignore[attr-defined]
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("runnel.nothing")


def test_old_names_are_not_offered() -> None:
    assert "Free" not in dir(runnel)
    assert runnel.REST == "*"
    moved = {module.removeprefix("runnel.") for module in deprecated.MODULES}
    assert moved & set(dir(runnel)) == {"evaluate"}  # a function now


# Fields


@pytest.mark.parametrize("cls", SPLIT)
def test_the_old_field_of_a_distribution_is_taken_as_a_keyword(cls: Any) -> None:
    with pytest.warns(Renamed, match=rf"{cls.__name__}\(ring=...\) is now {cls.__name__}\(env_splits=...\)"):
        made = cls(actors=3, ring=4)
    assert made == cls(actors=3, env_splits=4)
    with pytest.warns(Renamed, match=f"{cls.__name__}.ring is now {cls.__name__}.env_splits"):
        assert made.ring == 4
    with pytest.warns(Renamed):
        assert dataclasses.replace(made, ring=2).env_splits == 2
    with pytest.raises(AttributeError, match="no attribute 'rong'"):
        _ = made.rong


def test_the_old_field_of_a_fragment_is_taken_as_a_keyword() -> None:
    with pytest.warns(Renamed):
        assert Fragment("a", ("act",), ring=2) == Fragment("a", ("act",), env_splits=2)  # type: ignore[call-arg]
    with pytest.warns(Renamed), pytest.raises(runnel.UserError, match="found env_splits=0"):
        Fragment("a", ("act",), ring=0)  # type: ignore[call-arg]


def test_build_takes_the_old_field() -> None:
    with pytest.warns(Renamed):
        built = runnel.build("reinforce", "gymnax:CartPole-v1", "fine", ring=2)
    assert built.distribution == Fine(env_splits=2)
    assert built.plan.json()["fragments"][0]["env_splits"] == 2
    assert "each worker's in 2 splits" in built.plan.text()
    with pytest.warns(Renamed):
        assert built.plan.fragments[0].ring == 2  # type: ignore[attr-defined]
    with pytest.warns(Renamed):
        assert runnel.build("reinforce", "gymnax:CartPole-v1", Fine(), ring=4).distribution == Fine(env_splits=4)
    with pytest.raises(runnel.UserError, match="coarse has no 'ring'; those that have: fine, environments, decoupled"):
        runnel.build("reinforce", "gymnax:CartPole-v1", "coarse", ring=2)


@dataclasses.dataclass(frozen=True)
class Own(Fine):
    """A distribution of the user's, with a field that happens to have the old name."""

    ring: str = "mine"


def test_a_field_of_the_users_own_that_has_an_old_name_is_left_alone() -> None:
    assert Own(ring="his").ring == "his"
    assert settings.parse(Own, ["ring=hers"]) == {"ring": "hers"}
    assert settings.parse(Own, ["env_splits=3"]) == {"env_splits": 3}


def test_settings_on_the_command_line_take_the_old_name() -> None:
    with pytest.warns(Renamed, match="setting 'ring' of fine is now 'env_splits'"):
        assert settings.parse(Fine, ["ring=2"], "fine") == {"env_splits": 2}


def test_the_command_line_prints_what_is_old(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "plan reinforce gymnax:CartPole-v1 --distribution fine --set distribution.ring=2"
    assert main(asked.split()) == 0
    printed = capsys.readouterr()
    assert "each worker's in 2 splits" in printed.out
    assert "runnel plan: setting 'ring' of fine is now 'env_splits'; the next release does not know" in printed.err


def test_the_command_line_says_where_a_users_module_uses_an_old_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "older.py").write_text(
        "import runnel.algorithms.reinforce as r\nfrom runnel import Free\nA = r.Reinforce\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "older:A", "gymnax:CartPole-v1"]) == 0
    printed = capsys.readouterr().err
    assert "runnel plan: runnel.Free is now runnel.BoundedStaleness" in printed
    assert f"({tmp_path / 'older.py'}, line 2)" in printed


# What was stored


def test_a_stored_configuration_is_read_by_its_old_names() -> None:
    stored = {"class": "runnel.distributions.fine:Fine", "settings": {"actors": 2, "ring": 3}}
    with pytest.warns(Renamed, match="ring"):
        assert serialization.from_json(stored, Distribution) == Fine(2, 3)
    with pytest.warns(Renamed, match="runnel.layout:Free is now runnel.planning.distribution:BoundedStaleness"):
        assert serialization.import_object("runnel.layout:Free") is BoundedStaleness


def test_what_moved_within_runnel_needs_no_trust() -> None:
    config = {"algorithm": {"class": "runnel.algorithms.ppo:PPO", "settings": {"a": {"object": "runnel.layout:Free"}}}}
    assert all(trust.is_registered(name) for name in trust.names_in(config))
    assert trust.Name("runnel.layout:Free", "setting") in trust.names_in(config)


@pytest.mark.parametrize(
    ("path", "now"),
    [
        ("runnel.layout:Free", "runnel.planning.distribution:BoundedStaleness"),
        ("runnel.views:parted", "runnel.observations:parted"),
        ("runnel.planning.plan:Cut", "runnel.planning.plan:CutEdge"),
        ("runnel.layout:Free.max_staleness", "runnel.planning.distribution:BoundedStaleness.max_staleness"),
        ("mine:Free", "mine:Free"),
        ("/home/me/plan.py:Free", "/home/me/plan.py:Free"),
        ("CartPole-v1", "CartPole-v1"),
    ],
)
def test_paths(path: str, now: str) -> None:
    assert deprecated.current_path(path) == now
