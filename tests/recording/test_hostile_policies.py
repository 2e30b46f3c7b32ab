"""Damaged and hostile policy stores: plain words, exit status 2, nothing executed, nothing overwritten, no hang."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile_cases as cases
import numpy as np
import pytest
from commands import Ended, run_command
from paths import ROOT, SUPPORT
from toys import Reinforce

import runnel
from runnel.errors import UserError
from runnel.recording import parameters
from runnel.recording.policy_store import PolicyStore

NEW = f"policies/group-agent/{2:012d}"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the policies of versions 0, 1 and 2, of which 1 is tagged."""
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    runnel.train(
        Reinforce(), "toys:Corridor", "inline", envs=4, steps=64, keep_every=32, run_dir=run_dir, quiet=True
    )  # fmt: skip
    runnel.policies(run_dir).tag("mine", 1)
    return run_dir


@pytest.fixture
def run_dir(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run", symlinks=True))


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Runs a command in this process; whatever happens it ends in plain words."""

    def run(*argv: Any) -> Ended:
        ended = status, out, err = run_command(capsys, *argv)
        assert status in (0, 2), err
        assert "Traceback" not in out + err
        assert len(err.splitlines()) <= (2 if status == 2 else 0), err
        assert all(len(line) < 600 for line in err.splitlines()), err
        assert status == 0 or err.startswith(f"runnel {argv[0]}: "), err
        return ended

    return run


def contents(directory: Path) -> dict[str, Any]:
    return cases.snapshot(directory)


# Something else in the place of a file or directory

PLACES = (
    f"{NEW}/config.json",
    f"{NEW}/model.safetensors",
    NEW,
    "policies/group-agent",
    "policies",
    "policies/tags.json",
)
"""The last one is read for every command."""


@pytest.mark.parametrize("hazard", [h for h in cases.HAZARDS if h not in ("device", "unreadable")])
@pytest.mark.parametrize("place", PLACES)
def test_something_else_in_the_place_of_a_file(
    place: str, hazard: str, run_dir: Path, tmp_path: Path, command: Callable[..., Ended]
) -> None:
    outside = cases.make_outside(tmp_path)
    cases.plant(hazard, run_dir, place, outside)
    before = contents(tmp_path)
    listed, loaded = command("policies", run_dir), command("eval", f"{run_dir}@2", "--episodes", "1")
    tagged = command("policies", run_dir, "--version", "2", "--tag", "more")
    if place.endswith("safetensors"):
        whole = hazard == "hard link"
        assert (listed.status, loaded.status, tagged.status) == (0, 0 if whole else 2, 0)
        assert whole or "model.safetensors" in loaded.err
    elif place.endswith("tags.json"):
        assert {listed.status, loaded.status, tagged.status} <= ({0, 2} if hazard == "hard link" else {2})
    elif hazard != "hard link" or not place.endswith("config.json"):
        assert (loaded.status, tagged.status) == (2, 2)
    after = contents(tmp_path)
    for path in (run_dir / "policies" / "tags.json", run_dir / "policies" / ".lock", run_dir / ".lock"):
        before.pop(str(path), None)
        after.pop(str(path), None)
    for path in (run_dir / "policies",):  # made where nothing was
        before.pop(str(path), None)
        after.pop(str(path), None)
    assert after == before


def test_directories_with_odd_names_are_no_policies(run_dir: Path, command: Callable[..., Ended]) -> None:
    policies = run_dir / "policies"
    for name in (
        b"group-\xff",
        b"group-%FF",
        b"group-%2",
        b"group-a%2Fb",
        b"group-..",
        b"other",
        b"group-" + b"x" * 200,
    ):
        path = os.path.join(os.fsencode(policies), name)
        os.mkdir(path)
        shutil.copytree(run_dir / NEW, os.path.join(os.fsdecode(path), f"{7:012d}"))
    for name in ("٠٠٠٠٠٠٠٠٠٠٠٢", "2", "x", f"{9:012d}", f"{2:013d}", "9" * 18, "9" * 40):
        shutil.copytree(run_dir / NEW, policies / "group-agent" / name)
    listed = command("policies", run_dir, "--json")
    assert listed.status == 0
    assert [(s["group"], s["version"]) for s in json.loads(listed.out)] == [("agent", 0), ("agent", 1), ("agent", 2)]
    assert command("policies", run_dir, "--group", "\udcff").status in (0, 2)
    assert command("eval", run_dir, "--episodes", "1").status == 0


# Other content


def edit(run_dir: Path, change: Callable[[dict[str, Any]], Any], name: str = NEW) -> None:
    path = run_dir / name / "config.json"
    config = json.loads(path.read_text())
    changed = change(config)
    path.write_text(json.dumps(config if changed is None else changed))


def put(run_dir: Path, content: bytes, name: str = NEW) -> None:
    """Puts another file of parameters, which the configuration agrees with, as someone would who means harm."""
    (run_dir / name / "model.safetensors").write_bytes(content)
    edit(run_dir, lambda c: c.update(digest=hashlib.blake2b(content, digest_size=32).hexdigest()), name)


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"\0" * 100, b"[" * 100_000, b"\x80\x04\x95cos\nsystem\n", b"{", b"null", b'{"what": "policy"}',
     b"\xff\xfe"],
    ids=lambda content: repr(content[:12]),
)  # fmt: skip
@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tags.json"])
def test_files_with_other_content(file: str, content: bytes, run_dir: Path, command: Callable[..., Ended]) -> None:
    path = run_dir / "policies" / file if file == "tags.json" else run_dir / NEW / file
    path.write_bytes(content)
    loaded, listed = command("eval", f"{run_dir}@2", "--episodes", "1"), command("policies", run_dir)
    empty_tags = file == "tags.json" and content == b"{}"
    assert loaded.status == (0 if empty_tags else 2)
    assert listed.status == (2 if file == "tags.json" and not empty_tags else 0)
    assert path.read_bytes() == content
    if file != "tags.json":  # others serve, by name
        assert command("eval", f"{run_dir}@mine", "--episodes", "1").status == 0


def test_a_truncated_file_is_refused(run_dir: Path, command: Callable[..., Ended]) -> None:
    path = run_dir / NEW / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    ended = command("eval", run_dir, "--episodes", "1")
    assert (ended.status, "is damaged" in ended.err, "use another snapshot" in ended.err) == (2, True, True)


def header(entries: Any, data: bytes = b"") -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + data


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\0" * 8, struct.pack("<Q", 2**63) + b"{}", struct.pack("<Q", 2**40) + b"{}", header(b"{}"),
        header(b"[]"), header(b"{" * 5000), header({"a": 3}),
        header({"params/w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}),
        header({"params/w": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 0]}}),
        header({"params/w": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}, bytes(8)),
        header({"params/w": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}, bytes(8)),
        header({"params/w": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}, bytes(2)),
        header({"params/w": {"dtype": "object", "shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
        header({"params/w": F32, "params/b": F32}, bytes(8)), header({"params/w": F32}, bytes(9)),
        header({"\ud800": F32}, bytes(8)), header({"../../x": F32}, bytes(8)),
    ],
    ids=lambda content: repr(content[:60]),
)  # fmt: skip
def test_files_of_parameters_that_lie_about_themselves(
    content: bytes, run_dir: Path, command: Callable[..., Ended]
) -> None:
    put(run_dir, content)
    ended = command("eval", run_dir, "--episodes", "1")
    assert ended.status == 2
    assert NEW in ended.err


def honest(run_dir: Path) -> dict[str, np.ndarray]:
    return PolicyStore(run_dir).query(version=2)[0].arrays()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: {**a, "params/w": a["params/w"].astype(np.float64)},
         "params/w is float64[2, 2], expected float32[2, 2]"),
        (lambda a: {**a, "params/w": np.zeros((3, 2), np.float32)},
         "params/w is float32[3, 2], expected float32[2, 2]"),
        (lambda a: {**a, "params/b": np.zeros((), np.float32)}, "params/b is float32[], expected float32[2]"),
        (lambda a: {"params/b": a["params/b"]}, "has no params/w"),
        (lambda a: {"w": a["params/w"]}, "has no params/"),
    ],
)  # fmt: skip
def test_parameters_of_other_types_are_refused(
    change: Any, words: str, run_dir: Path, command: Callable[..., Ended]
) -> None:
    put(run_dir, parameters.pack(change(honest(run_dir))))
    ended = command("eval", run_dir, "--episodes", "1")
    assert ended.status == 2
    assert words in ended.err
    with pytest.raises(UserError) as caught:
        runnel.load(run_dir)
    assert words in str(caught.value)


def test_unexpected_arrays_do_no_harm(run_dir: Path, command: Callable[..., Ended]) -> None:
    put(run_dir, parameters.pack({**honest(run_dir), "../../x": np.ones(4), "params/more": np.ones(3)}))
    assert command("eval", run_dir, "--episodes", "1").status == 0
    assert runnel.load(run_dir).act(np.zeros(2, np.float32)).shape == ()


@pytest.mark.parametrize(
    "change",
    [
        {"format": 99}, {"format": "1"}, {"format": None}, {"what": "run"}, {"version": -1}, {"version": "2"},
        {"version": 10**30}, {"env_steps": 1.5}, {"env_steps": True}, {"time": "now"}, {"time": 1e300}, {"group": 3},
        {"group": "other"}, {"acting": "params"}, {"acting": [1]}, {"algorithm": "ppo"}, {"spec": None}, {"spec": {}},
        {"digest": 5}, {"metadata": []}, {"trained_on": None}, {"metadata": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_configuration_that_no_run_writes_is_as_good_as_not_there(
    change: dict[str, Any], run_dir: Path, command: Callable[..., Ended]
) -> None:
    edit(run_dir, lambda config: config.update(change))
    assert command("eval", f"{run_dir}@2", "--episodes", "1").status == 2
    listed = command("policies", run_dir, "--json")
    assert [s["version"] for s in json.loads(listed.out)] == [0, 1]
    alone = run_dir / NEW
    if change != {"group": "other"}:
        with pytest.raises(UserError) as caught:
            runnel.load(alone)
        assert len(str(caught.value).splitlines()) <= 2


@pytest.mark.parametrize("full", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_values_of_every_type_at_every_key(full: bool, run_dir: Path, command: Callable[..., Ended]) -> None:
    path = run_dir / NEW / "config.json"
    pristine = json.loads(path.read_text())
    for number, key in enumerate(cases.keys(pristine)):
        for value in cases.VALUES[0 if full else number % 7 :: 1 if full else 7]:
            path.write_text(cases.written(cases.changed(pristine, key, value)))
            command("policies", run_dir)
            command("policies", run_dir, "--json")
            with_problem = None
            try:
                runnel.load(run_dir / NEW)
            except UserError as error:
                with_problem = str(error)
            assert with_problem is None or len(with_problem.splitlines()) <= 2, (key, value, with_problem)


@pytest.mark.parametrize(
    "tags",
    [
        [], {"a": 1}, {"a": {"agent": "2"}}, {"a": {"agent": True}}, {"a": {"agent": None}}, {"a": []}, None, 3, "x",
        {"latest": []},
    ],
    ids=str,
)  # fmt: skip
def test_tags_that_no_run_has_set_are_refused(tags: Any, run_dir: Path, command: Callable[..., Ended]) -> None:
    path = run_dir / "policies" / "tags.json"
    path.write_text(json.dumps(tags))
    for argv in (["policies", run_dir], ["eval", f"{run_dir}@mine"], ["policies", run_dir, "--tag", "new"]):
        ended = command(*argv)
        assert (ended.status, "tags.json" in ended.err) == (2, True)
    assert path.read_text() == json.dumps(tags)


@pytest.mark.parametrize(
    "tags", [{"a": {"agent": 10**30}}, {"a": {"agent": -1}}, {"../x": {"agent": 2}}, {"\x1b[2J": {"agent": 2}}],
    ids=str,
)  # fmt: skip
def test_tags_that_lead_nowhere_do_no_harm(tags: Any, run_dir: Path, command: Callable[..., Ended]) -> None:
    (run_dir / "policies" / "tags.json").write_text(json.dumps(tags))
    listed = command("policies", run_dir)
    assert listed.status == 0
    assert "\x1b" not in listed.out
    assert command("eval", f"{run_dir}@a", "--episodes", "1").status == 2


# Code


EVIL = "with open({canary!r}, 'w') as file:\n    file.write('executed')\n"


@pytest.mark.parametrize(
    "algorithm",
    [
        {"class": "evil:Evil", "settings": {}}, {"class": "evil.py:Evil", "settings": {}},
        {"class": "os:system", "settings": {"command": "touch CANARY"}},
        {"class": "subprocess:Popen", "settings": {"args": ["touch", "CANARY"]}},
        {"class": "toys:Reinforce", "settings": {"unroll": {"class": "evil:Evil", "settings": {}}}},
        {"class": "toys:Reinforce", "settings": {"unroll": {"object": "evil:Evil"}}},
        {"class": "runnel.algorithms.ppo:PPO", "settings": {"network": "evil:Evil"}},
        {"class": "runnel.launch.fork_server_client:os.system", "settings": {"command": "touch CANARY"}},
        {"class": "antigravity:x", "settings": {}},
    ],
    ids=str,
)  # fmt: skip
def test_an_algorithm_of_a_stranger_s_is_not_imported(
    algorithm: dict[str, Any], run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = tmp_path / "canary"
    for place in (run_dir, run_dir / NEW, tmp_path):
        (place / "evil.py").write_text(EVIL.format(canary=str(canary)))
    monkeypatch.syspath_prepend(str(tmp_path))  # even where it could be imported
    monkeypatch.chdir(run_dir)
    given = json.loads(json.dumps(algorithm).replace("CANARY", str(canary)))
    edit(run_dir, lambda config: config.update(algorithm=given))
    for source in (run_dir, run_dir / NEW):
        with pytest.raises(UserError) as caught:
            runnel.load(source)
        assert len(str(caught.value).splitlines()) <= 3
    assert not canary.exists()
    assert "evil" not in sys.modules
    assert "antigravity" not in sys.modules


STRANGERS = """
import sys, numpy, runnel
run_dir, other, unsigned = sys.argv[1:]
refused = []
for name in (other, unsigned):
    try:
        runnel.load(name)
    except runnel.UserError as error:
        refused.append(str(error))
print(*refused, sep="\\n---\\n", flush=True)
assert "toys" not in sys.modules
assert runnel.load(run_dir).act(numpy.zeros(2, numpy.float32)).shape == ()
del sys.modules["toys"]
assert runnel.load(unsigned, trust=["toys:Reinforce"]).act(numpy.zeros(2, numpy.float32)).shape == ()
"""


def test_code_is_imported_if_this_user_has_signed_it_or_trusts_it(run_dir: Path, tmp_path: Path) -> None:
    """In a process that has not imported it already. A signature of one name does not serve for another."""
    other, unsigned = (Path(shutil.copytree(run_dir, tmp_path / name)) for name in ("other", "unsigned"))
    edit(other, lambda c: c.update(algorithm={"class": "toys:GradientReinforce", "settings": {}}))
    edit(unsigned, lambda config: config.pop("code") and None)
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{SUPPORT}", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", STRANGERS, str(run_dir), str(other), str(unsigned)], env=environ, cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = done.stdout.split("\n---\n")
    assert "toys:GradientReinforce" in first
    assert "toys:Reinforce" in second
    assert all(len(text.strip().splitlines()) <= 3 for text in (first, second))


# Groups that do not fit the run


def test_a_run_without_a_policy_of_its_group_is_refused(run_dir: Path, command: Callable[..., Ended]) -> None:
    other = run_dir / "policies" / "group-other" / f"{2:012d}"
    shutil.copytree(run_dir / NEW, other)
    edit(run_dir, lambda config: config.update(group="other"), str(other.relative_to(run_dir)))
    assert command("eval", run_dir, "--episodes", "1").status == 0
    shutil.rmtree(run_dir / "policies" / "group-agent")
    ended = command("eval", run_dir, "--episodes", "1")
    assert ended.status == 2
    assert "has no policy 'latest' of group 'agent'" in ended.err


# What a run does with a damaged store


@pytest.mark.parametrize("content", ["[]", "{", '{"a": {"agent": 1}}'])
def test_a_run_goes_on_with_whatever_lies_in_its_store(content: str, run_dir: Path) -> None:
    (run_dir / "policies" / "tags.json").write_text(content)
    (run_dir / NEW / "config.json").write_text("{}")
    (run_dir / "policies" / "group-agent" / f"{1:012d}" / "model.safetensors").write_bytes(b"")
    (run_dir / "evaluations.jsonl").write_text('{"env_steps": 1}\n[]\n{"env_steps": 5, "mean_return": "x"}\nx\n')
    if content == '{"a": {"agent": 1}}':
        run = runnel.resume(run_dir, steps=128, quiet=True)
        assert run.result["status"] == "finished"
        assert runnel.load(run_dir).config.env_steps == 128
    else:
        with pytest.raises(UserError, match=r"tags\.json"):
            runnel.resume(run_dir, steps=128, quiet=True)
