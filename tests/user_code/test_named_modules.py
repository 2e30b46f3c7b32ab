"""The working directory serves the modules that a user named, and nothing else that lies there."""

import contextlib
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import runnel
import runnel.launch.ray_launcher
from runnel.config import serialization
from runnel.envs import FAMILIES, make
from runnel.errors import UserError
from runnel.launch import LocalLauncher
from runnel.launch.host_launcher import AGENT
from runnel.launch.local_launcher import WorkerCommand
from runnel.user_code import named_modules
from runnel.user_code.named_modules import NamedModules

RUNNEL = [sys.executable, "-P", "-c", "import sys; from runnel.cli.main import main; sys.exit(main())"]

OPTIONAL = [
    "jax_plugins/evil/__init__", "jax_plugins/__init__", "jax_cuda12_plugin/__init__", "jax_cuda13_plugin/__init__",
    "libtpu", "mpl_toolkits/__init__", "orbax", "tensorflow", "torch", "IPython", "wandb", "ray", "zmq", "lz4",
    "pygame", "shimmy", "sitecustomize", "usercustomize", *{family.package for family in FAMILIES if family.package},
]  # fmt: skip
"""Modules that Runnel and its libraries import if they exist."""


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """A finder of the test's own, and none of the modules that it serves after it."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "meta_path", [each for each in sys.meta_path if not isinstance(each, NamedModules)])
    yield
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and "pytest-of" in str(sys.modules[name].__file__):
            del sys.modules[name]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(root, **sources):
    for name, source in sources.items():
        file = root / f"{name.replace('__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    importlib.invalidate_caches()


def plant(root, canary):
    """A module under every name that something tries to import; each leaves a line where it is executed."""
    for name in OPTIONAL:
        file = root / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"with open({str(canary)!r}, 'a') as file:\n    file.write(__file__ + chr(10))\n")
    importlib.invalidate_caches()


def run_directory(path):
    (path / "checkpoints").mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"algorithm": {}, "distribution": {}}))
    return path


# The finder


def test_only_what_was_named_is_found(here):
    write(here, mine_a="x = 1", mine_b="x = 2")
    assert serialization.import_object("mine_a:x") == 1
    assert importlib.util.find_spec("mine_b") is None
    with pytest.raises(ModuleNotFoundError):
        import mine_b  # noqa: F401
    assert str(here) not in sys.path


def test_what_a_named_module_imports_beside_it_is_found(here):
    write(
        here,
        mine_a="import beside_a\nfrom package_a import inner\ndef later():\n    import beside_b\n    return beside_b.x",
        beside_a="import importlib\nfar = importlib.import_module('beside_c')",
        beside_b="x = 7",
        beside_c="",
        package_a__inner="from . import sibling\nimport beside_c",
        package_a__sibling="",
    )
    assert serialization.import_object("mine_a:later")() == 7
    assert sys.modules["beside_c"].__file__ == str(here / "beside_c.py")


def test_what_a_library_imports_for_a_named_module_is_not(here):
    asks = "import runnel.envs\nfound = runnel.envs.Family('', '', 'beside_a', '', '').installed"
    write(here, mine_a=asks, beside_a="")
    assert serialization.import_object("mine_a:found") is False


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.extra], ids=lambda family: family.extra)
def test_an_optional_package_is_not_found_in_the_working_directory(family, here, monkeypatch):
    write(here, **{family.package: "raise SystemExit", f"mine_{family.package}": "x = 1"})
    monkeypatch.delitem(sys.modules, family.package, raising=False)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "site-packages" not in entry])
    named_modules.name(f"mine_{family.package}")
    assert not family.installed


def test_what_is_installed_goes_first(here):
    write(here, optax="raise SystemExit", mine_a="import optax\nx = optax.__file__")
    assert serialization.import_object("mine_a:x") != str(here / "optax.py")
    named_modules.name("optax")
    assert "site-packages" in str(importlib.util.find_spec("optax").origin)


def test_a_file_imports_what_lies_beside_it(here, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    write(elsewhere, mine_a="import beside_a\nx = beside_a.x", beside_a="x = 3")
    assert serialization.import_object(f"{elsewhere / 'mine_a.py'}:x") == 3
    assert importlib.util.find_spec("beside_a") is sys.modules["beside_a"].__spec__


@pytest.mark.parametrize("how", ["it is one", "within", "package", "namespace", "link"])
def test_nothing_in_a_run_directory_is_served(how, here, monkeypatch):
    run = run_directory(here / "gift")
    write(run, evil="raise SystemExit", deep__evil="raise SystemExit")
    name = "evil"
    match how:
        case "it is one":
            monkeypatch.chdir(run)
        case "within":
            monkeypatch.chdir(run / "deep")
        case "package":
            (run / "__init__.py").write_text("raise SystemExit")
            name = "gift.evil"
        case "namespace":
            name = "gift.evil"
        case "link":
            (here / "evil.py").symlink_to(run / "evil.py")
    with pytest.raises(UserError, match="the directory of a run, and nothing in one is imported"):
        serialization.import_object(f"{name}:x")


def test_nothing_in_the_directory_that_a_command_is_given_is_served(here):
    """Whatever it looks like."""
    write(here / "gift", evil="raise SystemExit")
    named_modules.exclude(here / "gift")
    with pytest.raises(UserError, match="nothing in one is imported"):
        serialization.import_object("gift.evil:x")


def test_a_directory_of_another_program_is_none_of_a_run(here):
    write(here, mine_a="x = 1")
    (here / "config.json").write_text('{"model_type": "bert"}')
    (here / "checkpoints").mkdir()
    assert serialization.import_object("mine_a:x") == 1


def test_a_working_directory_that_is_gone_serves_nothing(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(UserError, match="there is no module 'mine_a'"):
        serialization.import_object("mine_a:x")


def test_another_process_inherits_what_was_decided_and_adds_nothing(here):
    write(here, mine_a="x = 1", mine_b="x = 2")
    named_modules.name("mine_a")
    told = json.loads(json.dumps(named_modules.state()))
    sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, NamedModules)]
    named_modules.restore(told)
    assert serialization.import_object("mine_a:x") == 1
    with pytest.raises(UserError, match="there is no module 'mine_b'"):
        serialization.import_object("mine_b:x")


# Processes


def test_agents_do_not_import_from_the_working_directory(here, tmp_path_factory):
    canary = tmp_path_factory.mktemp("seen") / "canary"
    plant(here, canary)
    done = subprocess.run([sys.executable, *AGENT], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert "an agent is started by a launcher" in done.stderr
    assert not canary.exists(), canary.read_text()


LINK = """
import json, os, sys
call = json.loads(sys.stdin.readline())
result = {"type": "connected_to_ray", "interface": os.getcwd(), "address": os.environ["PYTHONPATH"],
          "started": False, "open": False}
print(json.dumps({"type": "ray_reply", "id": call["id"], "result": result}))
"""


def test_ray_is_not_given_the_working_directory(here, monkeypatch):
    """It puts the driver's working directory on the path of all workers, before installed packages."""
    monkeypatch.setattr(runnel.launch.ray_launcher, "LINK", ("-c", LINK))
    with contextlib.closing(runnel.launch.ray_launcher.RayHostLauncher()) as hosts:
        assert hosts.interface == "/"
        assert str(here) not in hosts.address.split(os.pathsep)
        assert all(map(os.path.isabs, hosts.address.split(os.pathsep)))


ENTRY = """
import os, sys
import beside_a

def main(job, control, fds):
    control.send({"path": sys.path, "python": os.environ.get("PYTHONPATH", ""), "beside": beside_a.__file__})
"""


def test_workers_find_what_was_named_and_not_what_was_planted(here, tmp_path_factory):
    canary = tmp_path_factory.mktemp("seen") / "canary"
    plant(here, canary)
    write(here, mine_a=ENTRY, beside_a="")
    with LocalLauncher() as launcher:
        launcher.warm(env_only=[])  # before anything was named
        named_modules.name("mine_a")
        process = launcher.start(WorkerCommand("one", "mine_a:main", {}, env_only=True, log=here / "log"))
        said = process.control.receive(30.0)
        assert said is not None, process.tail()
    assert said.value["beside"] == str(here / "beside_a.py")
    assert str(here) not in said.value["path"]
    assert str(here) not in said.value["python"].split(os.pathsep)
    assert not canary.exists()


IMPORTS = """
import matplotlib
def main(job, control, fds):
    control.send({"width": matplotlib.rcParams["lines.linewidth"]})
"""


def test_workers_import_matplotlib_without_the_settings_of_the_working_directory(here):
    (here / "matplotlibrc").write_text("lines.linewidth: 77")
    write(here, mine_a=IMPORTS)
    named_modules.name("mine_a")
    with LocalLauncher() as launcher:
        said = launcher.start(WorkerCommand("one", "mine_a:main", {}, env_only=True, log=here / "log")).control.receive(
            30.0
        )
    assert said is not None
    assert said.value["width"] != 77


def test_a_pipe_that_matplotlib_would_read_keeps_no_command_waiting(trained, tmp_path):
    gift = Path(shutil.copytree(trained, tmp_path / "gift", symlinks=True))
    os.mkfifo(gift / "matplotlibrc")
    done = command("plot", ".", "--out", "curve.png", cwd=gift)
    assert (done.returncode, (gift / "curve.png").exists()) == (0, True), done.stderr


def test_pettingzoo_finds_its_own_environments_before_the_users(here):
    write(here, classic__tictactoe_v3="raise SystemExit")
    assert make("pettingzoo:classic.tictactoe_v3").spec.name == "pettingzoo:classic.tictactoe_v3"


def test_python_m_runnel_does_not_import_from_the_working_directory(here, tmp_path_factory):
    canary = tmp_path_factory.mktemp("seen") / "canary"
    plant(here, canary)
    write(here, difflib=f"open({str(canary)!r}, 'w')", argparse=f"open({str(canary)!r}, 'w')")
    environ = {**os.environ, "PYTHONPATH": str(Path(runnel.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-m", "runnel", "list"], env=environ, capture_output=True, text=True)
    assert (done.returncode, "reinforce" in done.stdout) == (0, True), done.stderr
    assert not canary.exists()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of nothing but what is registered."""
    run_dir = tmp_path_factory.mktemp("runs") / "gift"
    runnel.train("reinforce", "CartPole-v1", "inline", envs=2, steps=64, run_dir=run_dir, quiet=True)
    return run_dir


def command(*words, cwd):
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"JAX_PLATFORMS": "cpu"}
    return subprocess.run([*RUNNEL, *words], cwd=cwd, env=environ, capture_output=True, text=True, timeout=200)


@pytest.mark.parametrize(
    "words",
    [
        ("eval", ".", "--episodes", "1"),
        ("eval", "gift", "--episodes", "1"),
        pytest.param(("resume", ".", "--steps", "256", "--distribution", "coarse"), marks=pytest.mark.slow),
        pytest.param(("plot", ".", "--out", "curve.png"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_planted_modules_are_not_executed(words, trained, tmp_path):
    canary = tmp_path / "canary"
    gift = Path(shutil.copytree(trained, tmp_path / "D" / "gift", symlinks=True))
    plant(gift, canary)
    plant(gift.parent, canary)
    done = command(*words, cwd=gift if "." in words else gift.parent)
    assert done.returncode == 0, done.stderr
    assert not canary.exists(), canary.read_text()


@pytest.mark.parametrize("members", ['{"runnel_version": "0.1.0", "members": []}', '{"runnel_version"', "["])
def test_a_directory_of_several_runs_is_that_of_a_run(members, tmp_path):
    (tmp_path / "members.json").write_text(members)
    assert named_modules.run_directory_of(str(tmp_path / "evil.py")) == str(tmp_path.resolve())
    (tmp_path / "members.json").write_text('{"members": ["of another program"]}')
    assert named_modules.run_directory_of(str(tmp_path / "evil.py")) is None


@pytest.mark.parametrize(
    "config", ['{"\\u0061lgorithm": {}, "distribution": {}}', '{"algorithm": 1, "distribution"', "[" * 10**5]
)
def test_a_run_directory_is_known_however_its_configuration_is_written(config, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.json").write_text(config)
    assert named_modules.run_directory_of(str(tmp_path / "evil.py")) == str(tmp_path.resolve())
