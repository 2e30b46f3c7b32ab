"""Damaged, foreign and hostile files are refused in plain words; nothing in them is executed, and nothing hangs."""

import ast
import contextlib
import hashlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import hostile_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hostile_cases import damaged, resign
from paths import SUPPORT
from toys import Reinforce

import runnel
from runnel.errors import UserError
from runnel.evaluation.evaluate import evaluate
from runnel.execution.building import read_config, rebuild
from runnel.execution.run_stats import RunCounters
from runnel.launch.control import Control
from runnel.launch.framing import MalformedMessage
from runnel.recording.checkpoint import Checkpoints
from runnel.recording.metrics import read_metrics
from runnel.reporting.plot import read_curve
from runnel.runtime.programs.loop import Loop
from runnel.runtime.single_process.program import carry_types, unsound_states

PACKAGE = Path(runnel.__file__).parent

# What the source may not have


FORBIDDEN_MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "yaml"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
ALLOWED = {
    # The annotations of a dataclass's own source, which was imported already: never text of a file or a socket.
    ("config/settings.py", "eval"),
}


def offences(file: Path, root: Path = PACKAGE):
    """Formats that could execute code when read, as (file, format)."""
    name = file.relative_to(root).as_posix()
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and node.module == "multiprocessing":
                modules += [f"multiprocessing.{alias.name}" for alias in node.names]
            for module in modules:
                if module.partition(".")[0] in FORBIDDEN_MODULES | {"multiprocessing"}:
                    yield name, module
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in FORBIDDEN_CALLS:
                yield name, called.id
            if isinstance(called, ast.Attribute) and called.attr in ("load", "fromfile", "loads"):
                for keyword in node.keywords:
                    if keyword.arg == "allow_pickle" and getattr(keyword.value, "value", True) is not False:
                        yield name, "allow_pickle"


def test_nothing_in_the_package_unpickles_or_evaluates_what_it_reads():
    found = {offence for file in PACKAGE.rglob("*.py") for offence in offences(file)}
    assert found <= ALLOWED


def test_the_search_finds_what_it_looks_for(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text(
        "import pickle\nfrom multiprocessing import Queue\nimport numpy as np\n"
        "np.load('x', allow_pickle=True)\neval('1')\nexec('1')\n"
    )
    assert {what for _, what in offences(bad, tmp_path)} == {
        "pickle", "multiprocessing", "multiprocessing.Queue", "allow_pickle", "eval", "exec",
    }  # fmt: skip


# Damaged files


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run directory with two checkpoints, and without stored policies, which evaluation reads first."""
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    runnel.train(Reinforce(), "toys:Corridor", "fused", envs=4, steps=96, run_dir=run_dir, quiet=True)
    runnel.resume(run_dir, steps=192, quiet=True)
    shutil.rmtree(run_dir / "policies")
    return run_dir


@pytest.fixture
def run_dir(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / "run", symlinks=True))


@pytest.fixture(scope="module")
def like(trained):
    built = rebuild(trained, read_config(trained))
    return {"carry": carry_types(built.graph, built.environment)}


def load(run_dir, like):
    """The first step of `resume`, `eval` and `plot`: the number of the checkpoint that was read, or the refusal."""
    notes = []
    try:
        read_config(run_dir)

        def refuse(_, counters):
            return RunCounters.problem(counters)

        _, counters = Checkpoints(run_dir).load(like, notes.append, refuse)
        Checkpoints(run_dir).load_states(like["carry"].states, notes.append, refuse)
        read_metrics(run_dir)
        read_curve(run_dir)
    except UserError as refusal:
        return refusal
    return counters["iterations"]


def newest(run_dir):
    return max(path for path in (run_dir / "checkpoints").iterdir() if path.name.isdigit())


def test_damage_to_any_file_is_refused_or_passed_over(run_dir, trained, like):
    rng = random.Random(0)
    wanted = [p.relative_to(trained) for p in trained.rglob("*") if p.is_file() and "tfevents" not in p.name]
    sources = [trained / name for name in wanted]
    sizes = {name: (trained / name).read_bytes() for name in wanted}
    for name in wanted:
        for _ in range(3):
            (run_dir / name).write_bytes(damaged(sizes[name], rng, sources))
            load(run_dir, like)
        (run_dir / name).unlink()
        load(run_dir, like)
        (run_dir / name).write_bytes(sizes[name])
    assert load(run_dir, like) == 6


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # orbax's reads that go on in vain
def test_damage_that_a_manifest_agrees_with_is_refused_or_passed_over(run_dir, trained, like):
    rng = random.Random(1)
    checkpoint = newest(run_dir)
    pristine = newest(trained)
    for name in [p.relative_to(pristine) for p in pristine.rglob("*") if p.is_file() and p.name != "manifest.json"]:
        for _ in range(2):
            data = (pristine / name).read_bytes()
            (checkpoint / name).write_bytes(damaged(data, rng, [pristine / "counters.json"]))
            resign(checkpoint)
            load(run_dir, like)
        (checkpoint / name).write_bytes(data)
    resign(checkpoint)
    assert load(run_dir, like) == 6


@pytest.mark.parametrize("name", ["../../../secret", "/etc/hostname", "state/../../secret", "link", "pipe"])
def test_a_manifest_that_leads_elsewhere_is_passed_over(name, run_dir, like):
    checkpoint = newest(run_dir)
    (run_dir / "secret").write_bytes(b"secret")
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    if name == "link":
        (checkpoint / "state" / "link").symlink_to(run_dir / "secret")
        name = "state/link"
    elif name == "pipe":
        os.mkfifo(checkpoint / "state" / "pipe")
        name = "state/pipe"
    manifest["files"][name] = [6, hashlib.blake2b(b"secret").hexdigest()]
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    assert load(run_dir, like) == 3


def test_a_link_in_the_place_of_a_directory_is_passed_over(run_dir, like):
    checkpoint = newest(run_dir)
    shutil.move(checkpoint / "state", run_dir / "elsewhere")
    (checkpoint / "state").symlink_to(run_dir / "elsewhere")
    assert load(run_dir, like) == 3


def test_a_file_that_a_manifest_does_not_name_is_passed_over(run_dir, like):
    (newest(run_dir) / "state" / "arrays" / "more").write_text("{}")
    assert load(run_dir, like) == 3


@pytest.mark.parametrize(
    "claimed", [{"x": [[2**40], "float32"]}, {"x": [[-1, 0], "float32"]}, {"x": [[0], "no dtype"]}, {"x": 3}, []]
)
def test_what_claims_to_be_empty_and_is_not_is_passed_over(claimed, run_dir, like):
    checkpoint = newest(run_dir)
    (checkpoint / "state" / "empty.json").write_text(json.dumps(claimed))
    resign(checkpoint)
    assert load(run_dir, like) == 3


def test_arrays_far_larger_than_their_files_are_passed_over_before_they_are_read(run_dir, like, monkeypatch):
    import orbax.checkpoint as ocp

    checkpoint = newest(run_dir)
    shutil.rmtree(checkpoint / "state" / "arrays")
    huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.int8), (2**27,), (0,))
    with ocp.PyTreeCheckpointer() as checkpointer:
        named = {name: np.zeros(x.shape, x.dtype) for name, x in types_of(like).items()}
        checkpointer.save((checkpoint / "state" / "arrays").absolute(), {**named, "['host']['x']": huge})
    resign(checkpoint)
    restored = []
    real = ocp.PyTreeCheckpointer.restore
    monkeypatch.setattr(
        ocp.PyTreeCheckpointer, "restore", lambda self, path, **k: restored.append(path) or real(self, path, **k)
    )
    assert load(run_dir, like) == 3
    assert not any(checkpoint.name in str(path) for path in restored)


@pytest.mark.parametrize("factor", [2, 2**40])
def test_arrays_stored_in_pieces_larger_than_themselves_are_passed_over(factor, run_dir, like, monkeypatch):
    """A few kilobytes unpack to a piece of any size."""
    import orbax.checkpoint as ocp
    import tensorstore

    checkpoint = newest(run_dir)
    base = f"file://{checkpoint}/state/arrays/"
    store = tensorstore.KvStore.open({"driver": "ocdbt", "base": base}).result()
    described = {key: json.loads(store.read(key).result().value) for key in store.list().result() if b".zarray" in key}
    name = next(key for key, was in described.items() if was["shape"])
    described[name]["chunks"][0] *= factor
    store.write(name, json.dumps(described[name]).encode()).result()
    resign(checkpoint)
    restored = []
    real = ocp.PyTreeCheckpointer.restore
    monkeypatch.setattr(
        ocp.PyTreeCheckpointer, "restore", lambda self, path, **k: restored.append(path) or real(self, path, **k)
    )
    assert load(run_dir, like) == 3
    assert not any(checkpoint.name in str(path) for path in restored)


@pytest.mark.parametrize("changes", [{"use_ocdbt": False}, {"use_ocdbt": None}, {"use_zarr3": True}, {"use_zarr3": 1}])
def test_arrays_in_another_kind_of_store_are_passed_over(changes, run_dir, like, tmp_path):
    """In one of plain files the name of an array is a path, which would be opened: here it hangs."""
    outside = tmp_path / "outside"
    outside.mkdir()
    os.mkfifo(outside / ".zarray")
    file = newest(run_dir) / "state" / "arrays" / "_METADATA"
    described = json.loads(file.read_text())
    entry = {"key_metadata": [{"key": str(outside), "key_type": 2}], "value_metadata": {"value_type": "np.ndarray"}}
    tree = {**described["tree_metadata"], str((str(outside),)): entry}
    file.write_text(json.dumps({**described, **changes, "tree_metadata": tree}))
    resign(newest(run_dir))
    assert load(run_dir, like) == 3


def test_a_store_without_its_database_is_passed_over(run_dir, like):
    (newest(run_dir) / "state" / "arrays" / "manifest.ocdbt").unlink()
    resign(newest(run_dir))
    assert load(run_dir, like) == 3


def test_what_exceeds_memory_is_passed_over(run_dir, like, monkeypatch):
    monkeypatch.setattr(os, "sysconf", lambda name: 16)
    assert "none of the" in str(load(run_dir, like))


def types_of(like):
    tree = {"carry": like["carry"]._replace(replays={})}
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.eval_shape(jax.random.key_data, leaf)
        if leaf.size:
            found[jax.tree_util.keystr(path)] = leaf
    return found


@pytest.mark.parametrize(
    "counters",
    [
        {"iterations": "many"}, {"unheard_of": 1}, {"add": 1}, {"restart_reasons": 3}, {"updates": [1]},
        {"env_steps": -1}, {"env_steps": True}, {"env_steps": None}, {"updates": 10**400}, {"episodes": 1.5},
        {"mean_return": float("inf")}, {"mean_return": float("nan")}, {"mean_return": 10**400}, {"mean_return": "1e3"},
        {"wall_seconds": -1.0}, {"wall_seconds": None}, {"wall_seconds": float("inf")}, {"iterations": 7},
        {"group_returns": {"a": float("-inf")}}, {"group_returns": {"a": "b"}}, {"restart_reasons": {"a": -1}},
        [], None, 3,
    ],
    ids=str,
)  # fmt: skip
def test_counters_that_no_run_keeps_are_passed_over(counters, run_dir, like):
    checkpoint = newest(run_dir)
    (checkpoint / "counters.json").write_text(json.dumps(counters))
    resign(checkpoint)
    assert load(run_dir, like) == 3


def spoil(checkpoint, name, value):
    """Puts a number into an array of a checkpoint, whose manifest then agrees with it."""
    import orbax.checkpoint as ocp

    arrays = checkpoint / "state" / "arrays"
    with ocp.PyTreeCheckpointer() as checkpointer:
        found = checkpointer.restore(arrays)
        (wanted,) = (key for key in found if name in key)
        found = {key: np.array(array) for key, array in found.items()}
        found[wanted].flat[0] = value
        shutil.rmtree(arrays)
        checkpointer.save(arrays, found)
    resign(checkpoint)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (".params['w']", np.nan), (".params['b']", -np.inf), ("mu['w']", np.inf), ("window.returns", np.nan),
        ("window.filled", -1), (".iteration", -5), (".updates", -(2**31)),
    ],
)  # fmt: skip
def test_numbers_that_no_training_leaves_in_a_checkpoint_are_passed_over(name, value, run_dir, capsys):
    spoil(newest(run_dir), name, value)
    told = "not finite" if "states" in name or "[" in name else "no run counts"
    if told == "not finite":  # what `eval` reads
        notes = []
        found = evaluate(run_dir, episodes=1, note=notes.append)
        assert Path(found["policy"]).name == f"{3:012d}"
        assert any(told in note and f"{6:012d}" in note for note in notes)
    run = runnel.resume(run_dir, steps=100)
    assert told in capsys.readouterr().out
    assert np.isfinite(run.params["w"]).all()


def test_where_no_checkpoint_is_sound_none_is_used(run_dir):
    for checkpoint in (run_dir / "checkpoints").glob("0*"):
        spoil(checkpoint, ".params['w']", np.nan)
    before = contents(run_dir)
    for command in (lambda: runnel.resume(run_dir, steps=400, quiet=True), lambda: evaluate(run_dir, episodes=1)):
        with pytest.raises(UserError, match="none of the 2 checkpoints"):
            command()
    assert contents(run_dir) == before


def contents(directory):
    """Everything below a directory, except for the holder of the lock."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != ".lock")
    return {path.relative_to(directory): path.read_bytes() for path in files}


class Extremes(Reinforce):
    """Keeps the least return it has seen, which begins at infinity."""

    def init(self, key, spec):
        state = super().init(key, spec)
        return state._replace(params={**state.params, "least": jnp.float32(jnp.inf)})

    def learn(self, state, trajectory, key):
        return state, {}


def test_what_begins_infinite_may_be_infinite():
    graph = runnel.build(Extremes(), "toys:Corridor", "fused", envs=2).graph
    states = jax.device_get({"agent": Loop(graph).init_state(jnp.uint32(0), "agent")})
    assert unsound_states(graph, states, 0) is None
    states["agent"].params["b"] = np.full(2, np.nan, np.float32)
    assert "agent.params.b" in str(unsound_states(graph, states, 0))


# Hostile configurations


@dataclass(frozen=True)
class NoAlgorithm:
    """A dataclass that would do harm as soon as it is made."""

    where: str = ""

    def __post_init__(self):
        Path(self.where).touch()


def edited(run_dir, change):
    config = json.loads((run_dir / "config.json").read_text())
    change(config)
    (run_dir / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    "path",
    [
        "os:system", "subprocess:Popen", "builtins:eval", "antigravity:x", "test_hostile_files:NoAlgorithm", "jax:jit",
        "no.such.module:x", "os", "", ":", "..:x", "a\x00b:c", "\ud800.py:x",
    ],
)  # fmt: skip
@pytest.mark.parametrize("part", ["algorithm", "distribution", "environment", "object", "nested", "network"])
def test_a_configuration_that_names_something_else_is_refused_and_nothing_is_called(part, path, run_dir, tmp_path):
    canary = tmp_path / "canary"
    settings = {"where": str(canary)} if "NoAlgorithm" in path else {"args": ["touch", str(canary)]}
    if "system" in path:
        settings = {"command": f"touch {canary}"}

    def change(config):
        if part == "environment":
            config["environment"] = {"name": path, "settings": settings}
        elif part == "object":
            config["algorithm"]["settings"]["unroll"] = {"object": path}
        elif part == "nested":
            config["algorithm"]["settings"]["unroll"] = {"class": path, "settings": settings}
        elif part == "network":
            config["algorithm"] = {"class": "runnel.algorithms.ppo:PPO", "settings": {"network": path}}
        else:
            config[part] = {"class": path, "settings": settings}

    edited(run_dir, change)
    harmless = "NoAlgorithm" in path and part in ("nested", "environment")  # the user's own module, imported by name
    with contextlib.suppress(UserError) if harmless else pytest.raises(UserError):
        rebuild(run_dir, read_config(run_dir))
    if not harmless:
        assert not canary.exists()


@pytest.mark.parametrize("part", ["algorithm", "distribution", "environment"])
def test_scripts_that_come_with_a_run_are_not_executed(part, run_dir, tmp_path, monkeypatch):
    canary = tmp_path / "canary"
    (run_dir / "evil.py").write_text(f"import pathlib\npathlib.Path({str(canary)!r}).touch()\n")
    (tmp_path / "link.py").symlink_to(run_dir / "evil.py")
    monkeypatch.chdir(run_dir)
    for place in (run_dir / "evil.py", "evil.py", run_dir / ".." / "run" / "evil.py", tmp_path / "link.py"):
        named = f"{place}:Evil"
        change = {"name": named, "settings": {}} if part == "environment" else {"class": named, "settings": {}}
        edited(run_dir, lambda config, change=change: config.update({part: change}))
        with pytest.raises(UserError, match="script"):
            read_config(run_dir)
    assert not canary.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"envs": 0}, {"envs": 10**12}, {"envs": "4"}, {"envs": True}, {"seed": -1}, {"seed": 2**70}, {"seed": None},
        {"steps": "x"}, {"algorithm": []}, {"algorithm": "ppo"}, {"environment": "CartPole-v1"}, {"environment": {}},
        {"distribution": None}, {"stop_at_return": "high"}, {"checkpoint_every_s": 0},
        {"restarts": "many"}, {"restarts": -1}, {"hang_after_s": 0}, {"hang_after_s": None}, {"on_nan": ["skip"]},
        {"wandb": "yes"},
        {"algorithm": {"class": "toys:Reinforce", "settings": {"unroll": {"float": "x"}}}},
        {"algorithm": {"class": "toys:Reinforce", "settings": {"unroll": {"dict": 3}}}},
        {"algorithm": {"class": "toys:Reinforce", "settings": {"unroll": {"list": 3}}}},
        {"algorithm": {"class": "toys:Reinforce", "settings": {"unroll": {}}}},
        {"algorithm": {"class": "toys:Reinforce", "settings": {"unroll": "eight"}}},
        {"algorithm": {"class": "toys:Reinforce", "settings": {"rollup": 8}}},
        {"algorithm": {"class": ["toys:Reinforce"], "settings": {}}},
        {"algorithm": {"class": "toys:Reinforce", "settings": []}},
    ],
    ids=str,
)  # fmt: skip
def test_a_configuration_that_no_run_has_is_refused(change, run_dir):
    edited(run_dir, lambda config: config.update(change))
    with pytest.raises(UserError):
        rebuild(run_dir, read_config(run_dir))


def test_damage_to_a_configuration_is_refused_or_harmless(run_dir):
    rng = random.Random(2)
    pristine = (run_dir / "config.json").read_bytes()
    for _ in range(60):
        (run_dir / "config.json").write_bytes(damaged(pristine, rng, [run_dir / "result.json"]))
        with contextlib.suppress(UserError):
            rebuild(run_dir, read_config(run_dir))


def test_a_pipe_in_the_place_of_a_configuration_does_not_hang(run_dir):
    (run_dir / "config.json").unlink()
    os.mkfifo(run_dir / "config.json")
    with pytest.raises(UserError):
        read_config(run_dir)


# What arrives over a socket


def test_random_bytes_over_a_control_are_dropped_and_nothing_hangs():
    rng = random.Random(3)
    raw, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control, sender = Control(theirs), Control(raw.dup())
    good = []
    with contextlib.closing(control), contextlib.closing(sender), raw:
        for k in range(400):
            body = rng.randbytes(rng.randrange(200))
            header = b"rnl1" + rng.choice((b"J", b"M", b"A", b"?")) + bytes(3)
            counts = rng.choice((0, 0, len(body), rng.randrange(2**31))), rng.choice((len(body), rng.randrange(2**60)))
            text = rng.choice(
                (body, b'{"__reduce__": ["os.system", "x"]}', b"[" * 3000, b"cos\nsystem\n(S'x'\ntR.", b'{"a": NaN}')
            )
            packet = header + counts[0].to_bytes(4, "little") + counts[1].to_bytes(8, "little") + text
            raw.send(rng.choice((packet, body or b"x", packet[: rng.randrange(1, len(packet))])))
            with contextlib.suppress(MalformedMessage):
                received = control.receive(timeout_s=0)
                assert received is None or isinstance(received.value, dict)
            if k % 50 == 0:  # and what follows is still understood
                sender.send({"number": k})
                while (received := control.receive(timeout_s=1)) is None or "number" not in received.value:
                    assert not control.closed
                good.append(received.value["number"])
    assert good == list(range(0, 400, 50))


# Every command on every hazard, and what a fuzzer finds beyond

FUZZ_SECONDS = float(os.environ.get("RUNNEL_FUZZ_SECONDS", "6"))


class Server:
    """A process that has imported everything, and forks itself for each case; see `hostile_server.py`."""

    def __init__(self, home):
        self.home = home
        environ = {**os.environ, "JAX_PLATFORMS": "cpu", "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "100"}
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(SUPPORT / "hostile_server.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ, cwd=home,
        )  # fmt: skip
        assert self._read() == {"ready": 1}, "it has threads, and cannot be forked"
        self.base = home / "base"
        for steps in ("16", "32"):
            argv = cases.COMMANDS["train"] if steps == "16" else ["resume", "RUN", "--steps", steps]
            told = self.ask([named(argv, self.base, home)], home)
            assert told["statuses"] == [0], told["text"]
        shutil.rmtree(self.base / "policies")  # `eval` reads checkpoints where there are none
        metrics = self.base / "metrics.jsonl"
        metrics.write_text(metrics.read_text().replace('"mean_return": null', '"mean_return": 20.5'))

    def _read(self):
        line = self._process.stdout.readline()
        assert line, "the server has ended"
        return json.loads(line)

    def ask(self, argvs, cwd, **more):
        case = {"argvs": argvs, "cwd": str(cwd), "log": str(self.home / "log"), **more}
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self):
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def named(argv, run_dir, out):
    return [word.replace("RUN", str(run_dir)).replace("OUT", str(out)) for word in argv]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    started = Server(tmp_path_factory.mktemp("server"))
    yield started
    started.close()


def attacked(server, where, command, do):
    """Runs a command on a copy of the run to which something was done, and looks at what must hold in any case."""
    run_dir, out = where / "run", where / "out"
    out.mkdir()
    outside = cases.make_outside(where)
    if command == "train":
        run_dir.mkdir()
    else:
        shutil.copytree(server.base, run_dir, symlinks=True)
    did = do(run_dir, outside)
    before = cases.snapshot(outside, where / cases.NUMBERED)
    inside = len(str(did)) % 2 == 0  # `cd RUN; runnel eval .`
    argv = named(cases.COMMANDS[command], "." if inside else run_dir, out)
    told = server.ask(
        [argv], run_dir if inside else where, limit_s=60, no_code=[str(where)],
        untouched=[str(outside), str(where / cases.NUMBERED)], unprivileged="unreadable" in str(did),
    )  # fmt: skip
    problems = [f"statuses {told['statuses']}"] if told["statuses"] not in ([0], [2]) else []
    problems += ["a traceback"] if "Traceback" in told["text"] else []
    problems += [f"{told['megabytes']:.0f} MB"] if told["megabytes"] > 2000 else []
    problems += [f"offence: {offence}" for offence in told["offences"]]
    problems += ["something outside has changed"] if cases.snapshot(outside, where / cases.NUMBERED) != before else []
    assert not problems, f"{command} with {did}: {'; '.join(problems)}\n{told['text'][-3000:]}"
    return told


def one_of_the_table(server, where, command, hazard, place):
    def do(run_dir, outside):
        cases.plant(hazard, run_dir, place, outside)
        return f"{hazard} at {place}"

    told = attacked(server, where, command, do)
    statuses, older = cases.expected(command, hazard, place)
    assert told["statuses"][0] in statuses, told["text"]
    if older:
        assert "trying the one before it" in told["text"]
        assert f"{2:012d}" in told["text"]


@pytest.mark.parametrize(("command", "hazard", "place"), list(cases.table(full=False)))
def test_the_table(command, hazard, place, server, tmp_path):
    one_of_the_table(server, tmp_path, command, hazard, place)


@pytest.mark.slow
def test_the_whole_table(server, tmp_path):
    for number, (command, hazard, place) in enumerate(cases.table(full=True)):
        where = tmp_path / str(number)
        where.mkdir()
        one_of_the_table(server, where, command, hazard, place)
        subprocess.run(["rm", "-rf", str(where)], check=True)


def of_every_type(path, stride):
    """A JSON file with another value at each of its keys: every value, or one in so many."""
    pristine = json.loads(path.read_text())
    for number, key in enumerate(cases.keys(pristine)):
        some = cases.VALUES[number % stride :: stride]
        for value in some:
            yield key, value, cases.written(cases.changed(pristine, key, value))


@pytest.mark.parametrize(
    ("file", "argv", "stride"),
    [
        ("config.json", ["eval", "RUN", "--episodes", "1"], 10),
        ("config.json", ["plot", "RUN", "--out", "OUT/curve.svg"], 40),
        ("result.json", ["resume", "RUN"], 20),
    ],
    ids=["eval", "plot", "resume"],
)
@pytest.mark.parametrize("full", [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_values_of_every_type_at_every_key(file, argv, stride, full, server, tmp_path):
    argvs, given = [], []
    for number, (key, value, text) in enumerate(of_every_type(server.base / file, 1 if full else stride)):
        run_dir = tmp_path / str(number)
        shutil.copytree(server.base, run_dir, symlinks=True, copy_function=os.link)
        (run_dir / file).unlink()
        (run_dir / file).write_text(text)
        (run_dir / "evil.py").write_text("raise AssertionError('executed')\n")
        argvs.append(named(argv, run_dir, tmp_path))
        given.append((key, str(value)[:60]))
    told = server.ask(argvs, tmp_path, limit_s=1500, no_code=[str(tmp_path)])
    wrong = [(what, status) for what, status in zip(given, told["statuses"], strict=False) if status not in (0, 2)]
    assert (wrong, told["offences"], len(told["statuses"])) == ([], [], len(argvs)), told["text"][-3000:]
    assert "Traceback" not in told["text"]


def fuzz(server, where, seconds, seed):
    rng, number, end = random.Random(seed), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        number += 1
        here = where / str(number)
        here.mkdir()
        command = rng.choice(("resume", "eval", "eval", "eval --json", "plot", "plot"))
        attacked(server, here, command, lambda run_dir, outside: cases.fuzzed(run_dir, outside, rng))
        subprocess.run(["rm", "-rf", str(here)], check=True)
    return number


def test_beyond_the_table(server, tmp_path):
    assert fuzz(server, tmp_path, FUZZ_SECONDS, 17) > 0


@pytest.mark.slow
@pytest.mark.timeout(4000)
def test_far_beyond_the_table(server, tmp_path):
    seconds = float(os.environ.get("RUNNEL_FUZZ_SECONDS", "300"))
    assert fuzz(server, tmp_path, seconds, time.time_ns()) > 0


# Modules that lie where a user may stand

RECORD = """
import json, sys
names = set()
class Watch:
    def find_spec(self, name, path=None, target=None):
        names.add(name)
sys.meta_path.insert(0, Watch())
from runnel.cli.main import main
main(sys.argv[2:])
open(sys.argv[1], "w").write(json.dumps(sorted(names)))
"""
OPTIONAL = (
    "jax_plugins", "jax_cuda12_plugin", "libtpu", "orbax", "mpl_toolkits", "google", "gymnax", "brax", "jaxmarl",
    "pettingzoo", "envpool", "ale_py", "wandb", "tensorboardX", "imageio_ffmpeg", "mujoco", "pygame", "ray", "zmq",
    "pandas", "tensorflow", "torch", "etils", "sitecustomize", "usercustomize", "runnel_plugins", "IPython", "rich",
    "pgx", "pyspiel", "open_spiel",
)  # fmt: skip


@pytest.fixture(scope="module")
def imported(server):
    """The top-level names that commands look for when nothing is imported yet, whether or not they are installed."""
    found = set(OPTIONAL)
    for k, argv in enumerate((["eval", "RUN", "--episodes", "1"], ["plot", "RUN", "--out", "OUT/curve.png"])):
        names = server.home / f"names-{k}"
        argv = named(argv, server.base, server.home)
        subprocess.run(
            [sys.executable, "-c", RECORD, str(names), *argv], check=True, cwd=server.home, capture_output=True
        )
        found |= {name.partition(".")[0] for name in json.loads(names.read_text())}
    return sorted(name for name in found - {"runnel", "__main__"} if name.isidentifier())


def plant_modules(directory, names, canary, kind):
    """Modules of those names, or packages of no package, which add to what is installed."""
    code = f"with open({str(canary)!r}, 'a') as file:\n    file.write(__name__ + ' ' + __file__ + '\\n')\n"
    for name in names:
        path = directory / f"{name}.py" if kind == "modules" else directory / name / "evil" / "__init__.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)


@pytest.mark.parametrize(
    ("kind", "where", "argv"),
    [
        ("modules", "inside", ["eval", "RUN", "--episodes", "1"]),
        ("parts of packages", "inside", ["resume", "RUN", "--steps", "48"]),
        ("modules", "beside", ["plot", "RUN", "--out", "OUT/curve.png"]),
        pytest.param("modules", "beside", cases.COMMANDS["train"], marks=pytest.mark.slow),
        pytest.param("parts of packages", "beside", ["eval", "RUN", "--episodes", "1"], marks=pytest.mark.slow),
        pytest.param("modules", "inside", ["plot", "RUN", "--out", "OUT/curve.pdf"], marks=pytest.mark.slow),
        pytest.param(
            "modules", "inside", ["resume", "RUN", "--steps", "48", "--distribution", "coarse", "--actors", "2"],
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_no_module_that_lies_there_is_loaded(kind, where, argv, server, imported, tmp_path):
    """`cd RUN; runnel eval .`, or `runnel eval RUN` from the directory it was unpacked into."""
    run_dir, canary = tmp_path / "run", tmp_path / "canary"
    if argv[0] != "train":
        shutil.copytree(server.base, run_dir, symlinks=True)
    stands = run_dir if where == "inside" else tmp_path
    for directory in {stands, run_dir if run_dir.exists() else stands}:
        plant_modules(directory, imported, canary, kind)
    command = [str(Path(sys.executable).with_name("runnel"))]
    command += named(argv, "." if where == "inside" else run_dir, tmp_path)
    environ = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=stands, capture_output=True, text=True, check=False, timeout=120, env=environ)
    assert not canary.exists(), canary.read_text()
    assert done.returncode == 0, done.stderr
