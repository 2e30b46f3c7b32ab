"""`runnel doctor`: every check with nothing wrong, and with the fault really there."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from commands import run_command
from paths import ROOT, SUPPORT

from runnel.cli import doctor, doctor_checks
from runnel.cli.doctor_checks import Check


def limited(code: str, *limits: str) -> str:
    """What code prints in a process with other limits of the kernel's."""
    given = "import resource\n" + "".join(f"resource.setrlimit(resource.{limit})\n" for limit in limits)
    ended = subprocess.run(
        [sys.executable, "-c", given + code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_a_machine_that_tests_run_on_is_well(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_checks, "gpu_nodes", list)
    runnel = partial(run_command, capsys)
    ended = runnel("doctor", "--json")
    found = json.loads(ended.out)
    assert (ended.status, found["ok"], ended.err) == (0, True, "")
    by_name = {check["name"]: check for check in found["checks"]}
    assert len(by_name) == 16
    assert by_name["worker processes"] == {"name": "worker processes", "status": "ok",
                                           "found": "one was started, and answered", "fix": ""}  # fmt: skip
    assert "cpu" in by_name["devices"]["found"]
    assert "jax " in by_name["packages"]["found"]
    assert all(check["fix"] for check in found["checks"] if check["status"] == "wrong")


def test_something_wrong_is_said_with_its_remedy_and_status_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    wrong = doctor_checks.cache(str(tmp_path / "file" / "below"))
    assert wrong.status == "wrong"
    monkeypatch.setattr(doctor, "examined", lambda address: iter([Check("Python", "ok", "3.11.0"), wrong]))
    ended = run_command(capsys, "doctor")
    assert ended.status == 1
    assert "wrong  compilation cache" in ended.out
    assert "fix: make it writable, or name another: JAX_COMPILATION_CACHE_DIR=DIR" in ended.out
    assert ended.out.splitlines()[-1] == "1 of 2 checks found something wrong"


def test_a_cache_is_measured_and_nothing_stays_in_it(tmp_path: Path) -> None:
    (tmp_path / "xla").mkdir()
    (tmp_path / "xla" / "program").write_bytes(b"x" * (3 << 20))
    check = doctor_checks.cache(str(tmp_path / "xla"))
    assert (check.status, check.found) == ("ok", f"{tmp_path / 'xla'}: 1 files, 3 MiB")
    assert os.listdir(tmp_path / "xla") == ["program"]


def test_limits_of_the_kernel_are_noticed() -> None:
    descriptors = "from runnel.cli import doctor_checks as d; print(d.descriptors(*d.descriptor_limits()))"
    assert "status='wrong', found='40, at most 40'" in limited(descriptors, "RLIMIT_NOFILE, (40, 40)")
    assert "status='note', found='100, at most 100: enough for 6 workers'" in limited(
        descriptors, "RLIMIT_NOFILE, (100, 100)"
    )
    assert doctor_checks.descriptors(1024, 4096).status == doctor_checks.descriptors(-1, -1).status == "ok"
    memory = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nfrom runnel.cli import doctor_checks as d\n"
    found = limited(memory + "print(d.memfd())", "RLIMIT_FSIZE, (1 << 20, 1 << 20)")
    assert "status='wrong'" in found
    assert "File too large" in found
    assert doctor_checks.memfd().status == "ok"
    assert doctor_checks.memfd(create=None).status == "note"


def test_what_this_machine_cannot_be_made_to_lack_is_found_from_its_numbers(tmp_path: Path) -> None:
    assert doctor_checks.python((3, 10, 4)).status == "wrong"
    assert doctor_checks.memory(100 << 20).status == "wrong"
    assert doctor_checks.memory(8 << 30) == Check("memory", "ok", "8.0 GiB free")
    assert doctor_checks.memory(None).status == "note"
    assert doctor_checks.cores(16, 16, None).status == "ok"
    assert doctor_checks.cores(16, 4, None).status == "note"
    assert doctor_checks.cores(16, 16, 1.5).found == "16 on this machine, 16 allowed, 1.5 by the container's quota"
    assert doctor_checks.shared_memory(tmp_path / "none").status == "note"
    assert doctor_checks.shared_memory(tmp_path).found == f"{tmp_path} is a directory on a disk"
    assert "--shm-size" in doctor_checks.shared_memory(Path("/"), least_bytes=1 << 60).fix
    assert doctor_checks.gpus([], []).status == "ok"
    nodes = ["/dev/nvidia0"]
    assert doctor_checks.gpus(nodes, ["cuda"], {}).status == "ok"
    assert doctor_checks.gpus(nodes, ["gpu"], {}).status == "ok"
    assert "pip install 'runnel[cuda]'" in doctor_checks.gpus(nodes, ["cpu"], {}).fix
    assert doctor_checks.gpus(nodes, ["cpu"], {}).status == "wrong"
    assert doctor_checks.gpus(nodes, ["cpu"], {"JAX_PLATFORMS": "cpu"}).status == "note"


def test_a_python_that_was_not_tried_is_noted() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tried = [found[1] for each in project["classifiers"] if (found := re.search(r"Python :: 3\.(\d+)$", each))]
    assert (3, max(map(int, tried))) == doctor_checks.NEWEST
    assert project["requires-python"] == f">={doctor_checks.OLDEST[0]}.{doctor_checks.OLDEST[1]}"
    assert doctor_checks.python((*doctor_checks.NEWEST, 2)).status == "ok"
    newer = doctor_checks.python((3, 99, 0))
    assert (newer.status, newer.found) == ("note", "3.99.0, newer than 3.14, the newest that was tried")
    assert newer.fix == "if something fails, use Python 3.11 to 3.14"


def test_packages_older_than_the_lower_bounds_are_named_with_them() -> None:
    old = {"jax": "0.9.3", "jaxlib": "0.9.3", "numpy": "1.26.4", "scipy": "1.13.0rc1", "optax": "0.2.5"}
    check = doctor_checks.packages(lambda package: old.get(package, "9999.0"))
    assert check.status == "wrong"
    assert check.found == "too old: jax 0.9.3 (expected 0.10 or later), numpy 1.26.4 (expected 2.0 or later)"
    assert check.fix == "pip install -U 'jax>=0.10' 'numpy>=2.0'"
    extras = doctor_checks.extras(lambda package: "0.1" if package == "pgx" else "9999.0")
    assert "pgx" in extras.found.partition("; not: ")[2].split(", ")


def test_missing_and_unequal_packages_are_named() -> None:
    def version(package: str) -> str | None:
        return None if package in ("optax", "ray") else {"jax": "0.10.2", "jaxlib": "0.9.0"}.get(package, "9999.0")

    assert doctor_checks.packages(version).found == "not installed: optax"
    unequal = doctor_checks.packages(lambda package: version(package) or "9999.0")
    assert (unequal.status, unequal.fix) == ("wrong", "pip install -U jax jaxlib")
    assert doctor_checks.packages().status == "ok"
    extras = doctor_checks.extras(version)
    assert extras.status == "note"
    installed, _, missing = extras.found.removeprefix("installed: ").partition("; not: ")
    assert "ray" in missing.split(", ")
    assert "video" in installed.split(", ")
    nowhere = doctor_checks.extras(lambda package: None if "cuda" in package else "9999.0")
    assert nowhere.found.endswith("; not: cuda"), "jax is there, and what its extra brings is not"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("raise RuntimeError('the driver is too old')", "RuntimeError: the driver is too old"),
        ("import os; os._exit(7)", "JAX ended with status 7"),
        ("import time; time.sleep(60)", "JAX found no devices within 1 s"),
    ],
)
def test_a_jax_that_fails_crashes_or_hangs_ends_no_doctor(code: str, found: str) -> None:
    check, platforms = doctor_checks.devices(code, timeout_s=1.0 if "sleep" in code else 60.0)
    assert (check.status, check.found, platforms) == ("wrong", found, [])


def test_what_the_environment_asks_of_jax_is_named_where_it_finds_no_devices() -> None:
    check, _ = doctor_checks.devices(environ={**os.environ, "JAX_PLATFORMS": "nothing", "XLA_FLAGS": ""})
    assert (check.status, "Unable to initialize backend 'nothing'" in check.found) == ("wrong", True)
    assert check.fix.startswith("try without JAX_PLATFORMS=nothing; `python -c")


def test_a_working_directory_that_is_gone_full_or_not_ours_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    assert doctor_checks.working_directory().status == "ok"
    assert "make room" in doctor_checks.working_directory(least_bytes=1 << 60).fix
    (tmp_path / "gone").chmod(0o500)
    if os.geteuid() != 0:  # root writes everywhere
        assert doctor_checks.working_directory().found == f"{tmp_path / 'gone'} cannot be written"
    (tmp_path / "gone").rmdir()
    assert doctor_checks.working_directory().found == "the working directory was removed"


def test_a_worker_that_does_not_answer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    check = doctor_checks.workers("launch_entries:nothing_of_that_name")
    assert check.status == "wrong"
    assert "nothing_of_that_name" in check.found
    monkeypatch.setattr("runnel.launch.fork_server_client.sys.executable", "/nowhere/python")
    check = doctor_checks.workers()
    assert (check.status, check.found) == ("wrong", os.strerror(errno.ENOENT))


def test_a_cluster_that_does_not_answer_is_noticed() -> None:
    assert doctor_checks.ray(installed=False).status == "note"
    untried = doctor_checks.ray("10.0.0.1:6379", installed=False)
    assert (untried.status, untried.found) == ("wrong", "not installed, so 10.0.0.1:6379 was not tried")
    assert doctor_checks.ray("somewhere", installed=True).found == "somewhere is no address"
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        refused: Any = doctor_checks.ray(address, installed=True)
        assert (refused.status, "does not answer" in refused.found) == ("wrong", True)
        listening.listen()
        assert doctor_checks.ray(address, installed=True).status == "ok"


def test_a_renderer_that_is_not_there_is_noticed() -> None:
    assert doctor_checks.pictures(installed=False).status == "ok"
    environ = {name: value for name, value in os.environ.items() if not name.endswith("DISPLAY")}
    found = doctor_checks.pictures(environ={**environ, "MUJOCO_GL": "nothing", "PYTHONPATH": str(ROOT)})
    assert (found.status, "libegl1" in found.fix) == ("note", True)
    assert found.found.startswith("no screen, MUJOCO_GL=nothing: MuJoCo cannot draw: RuntimeError: ")


def test_a_key_that_others_can_read_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "key"
    assert doctor_checks.key(file).status == "ok"
    file.write_bytes(b"x" * 32)
    file.chmod(0o644)
    assert doctor_checks.key(file).status == "wrong"


def test_a_system_without_worker_processes_is_no_fault() -> None:
    environ = {**os.environ, "PYTHONPATH": str(SUPPORT / "without_linux")}
    command = [sys.executable, "-m", "runnel", "doctor", "--json"]
    ended = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=120)
    found = {check["name"]: check for check in json.loads(ended.stdout)["checks"]}
    assert (ended.returncode, found["worker processes"]["status"], found["memfd"]["status"]) == (0, "note", "note")
    assert "inline or fused" in found["worker processes"]["fix"]
