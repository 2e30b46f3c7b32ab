"""Whether there is memory for all streams, asked before they are made."""

from pathlib import Path

import pytest

from runnel.errors import UserError
from runnel.transport import shared_memory


def machine(at: Path, meminfo: str, groups: str, files: dict[str, str]) -> dict[str, Path]:
    proc, cgroups = at / "proc", at / "cgroup"
    for path, text in ((proc / "meminfo", meminfo), (proc / "self/cgroup", groups)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name, text in files.items():
        path = cgroups / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {"proc": proc, "cgroups": cgroups}


def test_room_is_what_the_machine_has_left(tmp_path: Path) -> None:
    here = machine(tmp_path, "MemTotal: 9999 kB\nMemAvailable:    2048 kB\n", "0::/\n", {})
    shared_memory.check_room(2 * 2**20, **here)
    with pytest.raises(UserError, match=r"need 3\.0 MiB .* machine has 2\.0 MiB; use fewer environments"):
        shared_memory.check_room(3 * 2**20, **here)


def test_room_is_what_the_narrowest_group_leaves(tmp_path: Path) -> None:
    files = {
        "job/memory.max": "4194304\n",
        "job/memory.current": "3145728\n",
        "job/memory.stat": "anon 5\ninactive_file 1048576\n",
        "job/step/memory.max": "max\n",
        "job/step/memory.current": "1\n",
    }
    here = machine(tmp_path, "MemAvailable: 9999999 kB\n", "0::/job/step\n", files)
    shared_memory.check_room(2 * 2**20, **here)
    with pytest.raises(UserError, match=r"memory limit leaves 2\.0 MiB"):
        shared_memory.check_room(2 * 2**20 + 1, **here)


def test_room_in_groups_of_the_first_version(tmp_path: Path) -> None:
    files = {"memory/a/memory.limit_in_bytes": "1000\n", "memory/a/memory.usage_in_bytes": "400\n"}
    here = machine(tmp_path, "MemAvailable: 9999999 kB\n", "5:cpu:/a\n4:memory:/a\n", files)
    with pytest.raises(UserError, match="leaves 600 B"):
        shared_memory.check_room(601, **here)


def test_where_nothing_is_known_nothing_is_refused(tmp_path: Path) -> None:
    nothing, little = tmp_path / "nothing", machine(tmp_path, "MemAvailable: 1 kB\n", "", {})
    with pytest.raises(UserError):
        shared_memory.check_room(2**60, **little)
    shared_memory.check_room(2**60, proc=nothing, cgroups=nothing)
