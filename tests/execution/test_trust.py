"""A stored configuration has code imported only where its user has signed it, names it, or holds it already."""

import contextlib
import copy
import importlib
import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import threading
import types
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paths import EXAMPLES
from toys import Reinforce

import runnel
from runnel import algorithms, distributions
from runnel.cli import main as cli
from runnel.config import serialization
from runnel.errors import UserError
from runnel.evaluation.evaluate import evaluate
from runnel.execution import trust
from runnel.execution.building import read_config, rebuild
from runnel.user_code import signing
from runnel.user_code.named_modules import NamedModules

RUNNEL = [sys.executable, "-P", "-c", "import sys; from runnel.cli.main import main; sys.exit(main())"]

PLAIN = {
    "algorithm": {"class": "runnel.algorithms.reinforce:Reinforce", "settings": {}},
    "environment": {"name": "CartPole-v1", "settings": {}},
    "distribution": {"class": "runnel.distributions.inline:Inline", "settings": {}},
    "envs": 2, "steps": 64, "seed": 0, "stop_at_return": None, "checkpoint_every_s": 60.0,
}  # fmt: skip

MINE = """
from dataclasses import dataclass
import toys, mine_beside

@dataclass(frozen=True)
class Mine(toys.Reinforce):
    pass

def corridor(length: int = 5):
    return toys.Corridor()
"""


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """A finder of the test's own, and none of the modules that it serves after it."""
    monkeypatch.setattr(sys, "meta_path", [each for each in sys.meta_path if not isinstance(each, NamedModules)])
    yield
    forget()


def forget():
    """As in another process: nothing of a test's own is loaded or named."""
    for name, module in list(sys.modules.items()):
        if "pytest-of" in str(getattr(module, "__file__", None)):
            del sys.modules[name]
    sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, NamedModules)]


@pytest.fixture
def state(tmp_path, monkeypatch):
    """A state directory of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "runnel"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The user's working directory, with a module in it."""
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "mine_trust.py").write_text(MINE)
    (directory / "mine_beside.py").write_text("")
    monkeypatch.chdir(directory)
    importlib.invalidate_caches()
    return directory


def stored(directory, **changes):
    """A run directory that holds nothing but a configuration."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**PLAIN, **changes}))
    return directory


def named(part, path, settings=None):
    """A configuration that names `path` in one of the places where code can be named."""
    settings = settings or {}
    match part:
        case "environment":
            return {"environment": {"name": path, "settings": settings}}
        case "object":
            return {"algorithm": {**PLAIN["algorithm"], "settings": {"network": {"object": path}}}}
        case "nested":
            inner = {"class": path, "settings": settings}
            return {"algorithm": {**PLAIN["algorithm"], "settings": {"network": {"list": [[inner]]}}}}
        case "text":
            return {"algorithm": {"class": "runnel.algorithms.ppo:PPO", "settings": {"network": path}}}
    return {part: {"class": path, "settings": settings}}


def admitted(config, run_dir="run", **given):
    try:
        trust.admit(run_dir, {**PLAIN, **config}, **given)
    except UserError as refusal:
        return refusal
    return None


# What needs no signature, and what does


@pytest.mark.parametrize("part", ["algorithm", "distribution", "environment", "object", "nested", "text"])
@pytest.mark.parametrize(
    "path",
    [
        "runnel.launch.fork_server_client:os.system", "runnel.recording.checkpoint:shutil.rmtree",
        "runnel.launch.fork_server_client:subprocess.Popen", "runnel.launch.agent:main",
        "runnel.recording.files:write_atomically", "runnel.nn:networks.serialization.import_object",
        "runnel.nn.networks:serialization", "runnel.nn.networks:Network.__init__",
        "numpy:load", "numpy:fromfile", "jax:jit",
        "jax.numpy:load", "flax.linen:jit", "gymnasium:make", "optax:adam", "os:system", "builtins:eval",
        "pettingzoo:mine_trust", "mine_trust:Mine", "mine_trust:corridor", "pettingzoo:classic.evil_v1",
        "GymV26Environment-v0:x", "toys:corridor", "no.such.module:x",
    ],
)  # fmt: skip
def test_unsigned_code_is_refused_and_nothing_is_imported_or_called(path, part, project, monkeypatch):
    (project / "classic").mkdir()
    for file in (project / "mine_trust.py", project / "classic" / "evil_v1.py"):
        file.write_text("raise SystemExit('imported')")
    monkeypatch.setattr(os, "system", lambda *_, **__: pytest.fail("called"))
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: pytest.fail("called"))
    run_dir = stored(project.parent / "run", **named(part, path, {"command": "true", "path": "x", "file": "x"}))
    with pytest.raises(UserError):
        rebuild(run_dir, read_config(run_dir))


@pytest.mark.parametrize(
    "config",
    [
        *({"algorithm": {"class": path, "settings": {}}} for path in algorithms.REGISTRY.values()),
        *({"distribution": {"class": path, "settings": {}}} for path in distributions.REGISTRY.values()),
        *({"environment": {"name": name, "settings": {}}} for name in (
            "HalfCheetah-v5", "ALE/Pong-v5", "gymnax:CartPole-v1", "brax:ant", "jaxmarl:hanabi", "envpool:Pong-v5",
            "pettingzoo:mpe2.simple_spread_v3", "pettingzoo:classic.tictactoe_v3", "pgx:go_9x9",
            "matrix:rock_paper_scissors", "openspiel:kuhn_poker",
        )),
        named("nested", "runnel.nn.networks:MLP"), named("text", "runnel.nn:NatureCNN"),
        named("object", "runnel.nn.networks:network_for"), named("nested", "runnel.replay:UniformReplay"),
        named("object", "jax._src.nn.functions:relu"), named("object", "jax.nn:gelu"), named("object", "math:sqrt"),
    ],
    ids=lambda config: str(next(iter(config.values()))).replace("settings", ""),
)  # fmt: skip
def test_what_is_registered_needs_no_signature(config):
    assert admitted(config) is None


def test_a_registered_class_in_the_wrong_place_is_refused(tmp_path):
    run_dir = stored(tmp_path / "run", algorithm=PLAIN["distribution"])
    with pytest.raises(UserError, match="is no Algorithm"):
        rebuild(run_dir, read_config(run_dir))


@pytest.mark.parametrize(
    ("name", "settings", "refused"),
    [
        # EnvPool executes the file; JaxMARL unpickles what lies in the directory; MuJoCo opens the model.
        ("envpool:D1Basic-v1", {"vzd_path": "evil"}, "env.vzd_path=evil"),
        ("envpool:D1Basic-v1", {"game_args": "+logfile x"}, "env.game_args=+logfile x"),
        ("jaxmarl:jaxnav", {"map_id": "Grid-Buffer", "map_params": {"dir_path": "gift"}}, "env.dir_path=gift"),
        ("HalfCheetah-v5", {"xml_file": "/dev/zero"}, "env.xml_file=/dev/zero"),
        ("openspiel:efg_game", {"filename": "/dev/zero"}, "env.filename=/dev/zero"),
        ("FrozenLake-v1", {"map_name": "../x"}, "env.map_name=../x"),
        ("toys:Corridor", {"path": ["x"]}, "env.path=x"),
    ],
)
def test_a_text_that_an_environment_may_take_for_a_file_is_signed_or_named(name, settings, refused, state):
    config = {"environment": {"name": name, "settings": settings}}
    assert f"--trust {shlex.quote(refused)}" in str(admitted(config))
    assert admitted(config, trusted=[refused]) is None
    assert admitted(signed_config(**config)) is None


@pytest.mark.parametrize(
    "settings",
    [
        {"backend": "spring"}, {"groups": "each", "state": True}, {"layout": "cramped_room", "shaping": 1.0},
        {"desc": ["SFH", "FFG"]}, {"map_params": {"map_size": [5, 5], "fill": 0.2}, "act_type": "Discrete"},
    ],
)  # fmt: skip
def test_words_and_numbers_among_an_environments_settings_need_no_signature(settings):
    assert admitted({"environment": {"name": "CartPole-v1", "settings": settings}}) is None


json_values = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
    | st.sampled_from(["a:b", "os:system", "a.b:c.d", "/x/y.py:z", "y.py:z", "a:", ":b", "a b:c", "1:2", "a:b\n"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["class", "settings", "object", "list", "dict", "float"]), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


PPO = algorithms.load("ppo")


@settings(suppress_health_check=[HealthCheck.too_slow])  # the first draw imports what it draws with
@given(settings=st.dictionaries(st.sampled_from(["network", "unroll", "hidden"]), json_values, max_size=3))
def test_every_path_that_reading_settings_would_import_is_among_the_names(settings):
    """Whatever shape they have: nothing is decided upon one reading and imported upon another."""
    read = set()

    def import_object(path):
        if serialization.split(path) is None:
            raise UserError("no path")
        read.add(path)
        return PPO if path == "runnel.algorithms.ppo:PPO" else len

    data = {"class": "runnel.algorithms.ppo:PPO", "settings": settings}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serialization, "import_object", import_object)
        with contextlib.suppress(UserError):
            serialization.from_json(data, runnel.Algorithm)
    assert read <= {name.path for name in trust.names_in({"algorithm": data})}


# Signatures


def signed_config(**changes):
    config = copy.deepcopy({**PLAIN, **changes})
    found = trust.sign(config)
    assert found.problem == ""
    return json.loads(json.dumps({**config, "code": found.code}))


def leaves(data, path=()):
    if isinstance(data, dict | list) and data:
        for key, part in data.items() if isinstance(data, dict) else enumerate(data):
            yield from leaves(part, (*path, key))
    else:
        yield path


def changed(data, path):
    """A copy in which one leaf is another."""
    result = copy.deepcopy(data)
    place = result
    for key in path[:-1]:
        place = place[key]
    value = place[path[-1]]
    place[path[-1]] = f"{value}x" if isinstance(value, str) else [value]
    return result


def test_a_signature_covers_every_name_and_setting_and_file(state):
    nested = {"a": [1, 2.5, {"class": "toys:Reinforce", "settings": {"x": None}}], "b": {"dict": {"c": True}}}
    config = signed_config(
        algorithm={"class": "toys:Reinforce", "settings": nested},
        environment={"name": "toys:Corridor", "settings": {"length": 5, "more": (1, 2)}},
    )
    assert trust.unsigned_because(config) == ""
    covered = {part: config[part] for part in trust.PARTS} | {"code": config["code"]}
    paths = [path for path in leaves(covered) if path != ("code", "key")]
    assert len(paths) > 12
    for path in paths:
        assert trust.unsigned_because(changed(config, path)), path
    for part in trust.PARTS:
        assert trust.unsigned_because({**config, part: {**config[part], "more": 1}})
        assert trust.unsigned_because({key: value for key, value in config.items() if key != part})
    assert trust.unsigned_because({**config, "steps": 10**6, "seed": 3}) == ""


@pytest.mark.parametrize("code", [None, [], {}, {"names": []}, {"names": {}, "signature": 3}, {"signature": "é"}, "x"])
def test_an_unknown_section_is_no_signature(code, state):
    config = signed_config(algorithm={"class": "toys:Reinforce", "settings": {}})
    assert trust.unsigned_because({**config, "code": code})


def test_what_is_registered_is_not_signed(state):
    assert trust.sign(PLAIN) == trust.Signed(None)
    assert not state.exists()


def test_the_key_is_its_users_alone_and_made_once(state):
    keys, threads = [], []
    for _ in range(16):
        threads.append(threading.Thread(target=lambda: keys.append(signing.make_key(signing.key_file()))))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert len(set(keys)) == 1
    assert len(keys) == 16
    assert len(keys[0]) == 32
    assert [path.name for path in state.iterdir()] == ["key"]
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert stat.S_IMODE((state / "key").stat().st_mode) == 0o600


def test_a_relative_state_directory_is_passed_over(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "here")
    monkeypatch.setenv("HOME", "/home/someone")
    assert signing.key_file() == Path("/home/someone/.local/state/runnel/key")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("link", "it is a link"), ("readable", "others have access"), ("open directory", "others have access"),
        ("short", "is no key"), ("pipe", "is no key"), ("foreign", "belongs to another user"),
        ("none", "there is no key"),
    ],
)  # fmt: skip
def test_a_key_that_others_may_know_is_not_used(what, words, state, monkeypatch):
    config = signed_config(algorithm={"class": "toys:Reinforce", "settings": {}})
    key = state / "key"
    match what:
        case "link":
            key.rename(state / "other")
            key.symlink_to(state / "other")
        case "readable":
            key.chmod(0o640)
        case "open directory":
            state.chmod(0o777)
        case "short":
            key.write_bytes(b"")
        case "pipe":
            key.unlink()
            os.mkfifo(key)
        case "foreign":
            monkeypatch.setattr(os, "geteuid", lambda: 12345)
        case "none":
            key.unlink()
    assert words in trust.unsigned_because(config)
    if what != "none":
        found = trust.sign(config)
        assert words in found.problem
        assert "--trust toys:Reinforce" in found.problem
        assert "signature" not in found.code


def test_where_no_key_can_be_kept_training_goes_on_and_says_so(tmp_path, monkeypatch, capfd):
    (tmp_path / "state").write_text("a file")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = runnel.train(Reinforce(), "toys:Corridor", "fused", envs=4, steps=48, run_dir=tmp_path / "run")
    assert run.result["status"] == "finished"
    assert "the run is not signed: the key" in "".join(capfd.readouterr())
    assert "signature" not in read_config(tmp_path / "run")["code"]


# From the recorded file


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    runnel.train(Reinforce(), "toys:Corridor", "fused", envs=4, steps=48, run_dir=run_dir, quiet=True)
    return run_dir


@pytest.fixture
def own_run(trained, project, state, tmp_path):
    """A run of the user's own algorithm and environment, and a process that knows nothing of them."""

    def own(config):
        config["algorithm"]["class"], config["environment"]["name"] = "mine_trust:Mine", "mine_trust:corridor"
        for name in ("mine_trust:Mine", "mine_trust:corridor"):
            serialization.import_object(name)
        config["code"] = trust.sign(config).code

    run_dir = Path(shutil.copytree(trained, tmp_path / "run", symlinks=True))
    edit(run_dir, own)
    forget()
    return run_dir


def edit(run_dir, change):
    config = json.loads((run_dir / "config.json").read_text())
    change(config)
    (run_dir / "config.json").write_text(json.dumps(config))


def test_a_signed_run_is_used_from_anywhere_with_the_file_that_it_was_trained_with(
    own_run, project, tmp_path, monkeypatch
):
    decoy = tmp_path / "decoy"
    decoy.mkdir()
    for name in ("mine_trust", "mine_beside"):
        (decoy / f"{name}.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(decoy)
    assert evaluate(own_run, 1)["episodes"] == 1
    assert sys.modules["mine_trust"].__file__ == str(project / "mine_trust.py")
    forget()
    assert runnel.resume(own_run, steps=96, quiet=True).result["status"] == "finished"
    assert trust.unsigned_because(read_config(own_run)) == ""


def test_an_unsigned_run_says_what_would_be_imported_and_needs_each_name(own_run, project, monkeypatch, capsys):
    edit(own_run, lambda config: config.pop("code"))
    assert cli.main(["eval", str(own_run)]) == 2
    said, where = capsys.readouterr().err.splitlines()
    assert where == "see `runnel help run-directory#whose-code-is-executed`"
    for name in ("mine_trust:Mine", "mine_trust:corridor"):
        assert f"{name} (from {project / 'mine_trust.py'})" in said
        assert f"--trust {name}" in said
    assert "mine_trust" not in sys.modules
    assert "mine_trust:corridor" in str(admitted(read_config(own_run), own_run, trusted=["mine_trust:Mine"]))
    forget()
    both = ["--trust", "mine_trust:Mine", "--trust", "mine_trust:corridor"]
    assert cli.main(["eval", str(own_run), "--episodes", "1", *both]) == 0
    forget()
    assert cli.main(["resume", str(own_run), "--steps", "96", "--quiet", *both]) == 0
    forget()
    assert cli.main(["eval", str(own_run), "--episodes", "1"]) == 0  # `resume` has signed it


def test_a_stored_policy_is_refused_by_the_name_of_its_own_file(own_run):
    path = runnel.policies(own_run).find("latest")["agent"].path / "config.json"
    config = json.loads(path.read_text())
    config["algorithm"]["class"] = "mine_trust:Mine"
    path.write_text(json.dumps(config))
    with pytest.raises(UserError) as error:
        runnel.load(own_run)
    assert str(error.value).startswith(f"{path} names code that would be executed")
    assert "mine_trust" not in sys.modules


def test_swapped_settings_of_a_signed_name_are_refused(own_run):
    edit(own_run, lambda config: config["environment"].update(settings={"length": 9}))
    refusal = admitted(read_config(own_run), own_run)
    assert "was changed after it was signed" in str(refusal)


def test_a_run_that_another_has_signed_is_refused(own_run, state):
    (state / "key").unlink()
    signing.make_key(state / "key")
    assert "was signed with another key" in str(admitted(read_config(own_run), own_run))


def test_a_name_that_the_run_does_not_have_cannot_be_trusted(own_run):
    refusal = admitted(read_config(own_run), own_run, trusted=["mine_trust:Other"])
    assert "does not name it; what needs trust there: mine_trust:Mine" in str(refusal)


def test_a_source_file_that_is_gone_is_reported(own_run, project, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for file in list(project.glob("*.py")):
        file.rename(elsewhere / file.name)
    monkeypatch.chdir(elsewhere)
    refusal = admitted(read_config(own_run), own_run)
    assert f"was trained with {project / 'mine_trust.py'}, which is not there any more" in str(refusal)
    assert "--trust mine_trust:Mine" in str(refusal)
    assert evaluate(own_run, 1, trust=["mine_trust:Mine", "mine_trust:corridor"])["episodes"] == 1


def test_another_file_that_python_finds_first_is_not_taken_for_it(own_run, project, tmp_path, monkeypatch):
    (tmp_path / "first").mkdir()
    shutil.copy(project / "mine_trust.py", tmp_path / "first")
    monkeypatch.syspath_prepend(tmp_path / "first")
    refusal = admitted(read_config(own_run), own_run)
    assert f"Python now finds {tmp_path / 'first' / 'mine_trust.py'}" in str(refusal)


def test_a_signed_file_inside_the_run_directory_is_not_executed(own_run, project, state):
    """It was signed when it was the user's; others may have changed it since."""
    for file in project.glob("*.py"):
        shutil.copy(file, own_run)
    config = read_config(own_run)
    for source in config["code"]["names"].values():
        source.update(file=str(own_run / "mine_trust.py"), root=str(own_run))
    key = signing.read_key(state / "key")
    config["code"]["signature"] = signing.sign(trust.covered(config, config["code"]["names"]), key)
    assert trust.unsigned_because(config) == ""
    assert "lies in the run's own directory" in str(admitted(config, own_run))


def test_training_into_the_directory_of_ones_code_says_what_that_means(project, state):
    serialization.import_object("mine_trust:Mine")
    found = trust.sign({**PLAIN, "algorithm": {"class": "mine_trust:Mine", "settings": {}}}, project)
    assert "mine_trust:Mine lies in the run's own directory" in found.problem
    assert "signature" not in found.code


def test_a_run_is_shown_at_weights_and_biases_only_where_its_user_asked_for_that(tmp_path, state):
    """With the user's key, which W&B sends to the server that its settings name."""
    run_dir = stored(tmp_path / "run", wandb=True, steps=128)
    with pytest.raises(UserError, match="--trust wandb"):
        runnel.resume(run_dir)
    assert not (run_dir / ".wandb-id").exists()
    assert admitted({"wandb": True}, trusted=["wandb"]) is None
    assert admitted({"wandb": True}, parts=trust.PARTS) is None  # eval shows nothing there
    signed = signed_config(wandb=True)
    assert admitted(signed) is None
    assert admitted({**signed_config(environment={"name": "toys:corridor", "settings": {}}), "wandb": True}) is not None


@pytest.mark.parametrize("name", ["/x/$(touch y).py:f", "/x y;rm z.py:f", "/x`y`.py:f", f"/{'x' * 100_000}.py:f"])
def test_a_flag_that_an_error_suggests_can_be_copied_into_a_shell(name):
    said = str(admitted(named("environment", name)))
    assert shlex.split(said.partition("add: ")[2]) == ["--trust", name[:400]]
    assert len(said) < 4000


def test_only_the_parts_that_are_used_are_asked_for(tmp_path):
    config = {"distribution": {"class": "mine_trust:Own", "settings": {}}}
    assert admitted(config, parts=("algorithm", "environment")) is None
    assert "mine_trust:Own (mine_trust is not found here)" in str(admitted(config))


# Classes that the caller holds


@dataclass(frozen=True)
class Record:
    size: int = 3


@pytest.mark.parametrize(
    ("part", "path", "held"),
    [
        ("algorithm", "toys:Reinforce", True),
        ("distribution", "custom_distributions:Store", True),
        ("environment", "toys:Corridor", True),
        ("nested", f"{__name__}:Record", True),
        ("environment", "own_envs:limited", False),  # a function: it could do anything
        ("environment", "toys:Reinforce", False),
        ("algorithm", "toys:Corridor", False),
        ("algorithm", f"{__name__}:Reinforce", False),  # not where it is defined
        ("nested", f"{__name__}:Path", False),
        ("nested", "hypothesis:settings", False),  # of a library
        ("object", f"{__name__}:fresh", False),
        ("object", "numpy:load", False),
    ],
)
def test_classes_that_the_caller_holds_count_as_named(part, path, held):
    importlib.import_module("custom_distributions")
    assert (admitted(named(part, path)) is None) == held


def a_session(monkeypatch, source):
    """An interactive session in which this was typed."""
    main = types.ModuleType("__main__")
    exec(source, vars(main))
    monkeypatch.setitem(sys.modules, "__main__", main)


@pytest.mark.parametrize(
    "name", ["os.system", "system", "np.load", "load", "rmtree", "os", "__builtins__", "x.__class__"]
)
def test_what_a_session_has_imported_is_not_for_a_configuration_to_name(name, monkeypatch):
    a_session(
        monkeypatch, "import os, numpy as np\nfrom os import system\nfrom numpy import load\nfrom shutil import *"
    )
    noted = {"name": "x", "settings": {"command": 1}, "unavailable": "x", "session": name}
    assert serialization.held(noted) is None or admitted({"environment": noted}) is not None
    assert admitted({"environment": noted}) is not None


def test_what_a_session_defines_is_signed_or_of_a_type_that_is_asked_for(state, monkeypatch):
    a_session(monkeypatch, "import toys\nclass Own(toys.Corridor): pass\ndef make(path): pass")
    classes, functions = ({"name": "x", "settings": {}, "unavailable": "x", "session": n} for n in ("Own", "make"))
    assert admitted({"environment": classes}) is None
    assert "__main__:make (of this session)" in str(admitted({"environment": functions}))
    assert admitted({"environment": functions}, trusted=["__main__:make"]) is None
    assert admitted(signed_config(environment=functions)) is None


@pytest.mark.parametrize("part", ["algorithm", "environment"])
def test_a_class_of_the_session_does_not_vouch_for_another_name_beside_it(part, monkeypatch):
    a_session(monkeypatch, "import toys\nclass Own(toys.Corridor): pass\nclass Learner(toys.Reinforce): pass")
    vars(sys.modules["__main__"])["__file__"] = "program.py"  # as in a program, where no class is taken from a session
    session = {"algorithm": "Learner", "environment": "Own"}[part]
    config = {**named(part, "numpy:load")[part], "session": session}
    assert "--trust numpy:load" in str(admitted({part: config}))
    assert admitted({part: {**config, "class": None, "name": "x", "unavailable": "x"}}) is None


# The user's own command line


@pytest.mark.parametrize(
    "words",
    [
        ("ppo", "runnel.launch.fork_server_client:os.system"),
        ("runnel.recording.checkpoint:shutil.rmtree", "CartPole-v1"),
        ("ppo", "reexports_trust:system"), ("reexports_trust:system", "CartPole-v1"), ("numpy:load", "CartPole-v1"),
    ],
)  # fmt: skip
def test_what_a_user_names_is_checked_before_it_is_called(words, project, capsys):
    (project / "reexports_trust.py").write_text("from os import system\n")
    assert cli.main(["train", *words, "--set", "env.command=touch canary"]) == 2
    _, *link = capsys.readouterr().err.splitlines()
    assert [line for line in link if not line.startswith("see `runnel help ")] == []
    assert not (project / "canary").exists()


# From end to end


def command(*words, cwd):
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"JAX_PLATFORMS": "cpu"}
    return subprocess.run([*RUNNEL, *words], cwd=cwd, env=environ, capture_output=True, text=True, timeout=200)


@pytest.mark.parametrize(
    "words",
    [
        ("eval", "run", "--episodes", "1"),
        pytest.param(("resume", "run", "--steps", "768", "--distribution", "coarse"), marks=pytest.mark.slow),
        pytest.param(("resume", "run", "--steps", "768", "--distribution", "fine"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_the_example_is_used_from_elsewhere_without_a_flag(words, tmp_path, monkeypatch):
    """By workers, too: they inherit what was decided."""
    run_dir = tmp_path / "run"
    monkeypatch.chdir(EXAMPLES)
    train = ["train", "reinforce:Reinforce", "windy:windy_pendulum", "--envs", "2", "--steps", "128", "--quiet"]
    assert cli.main([*train, "--run-dir", str(run_dir)]) == 0
    (tmp_path / "reinforce.py").write_text("raise SystemExit('imported')")
    done = command(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
