"""What `runnel doctor` looks at. Each check is a function of its own that changes nothing which it does not undo.

It is one file because it is a list of short checks that do not know each other.

Imports nothing that a broken installation may lack: a missing library is what is looked for.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from runnel.config.jax_config import cache_directory
from runnel.errors import UserError
from runnel.recording.files import one_line
from runnel.system.limits import RUN, WORKER
from runnel.system.platform import has_worker_processes

Verdict = Literal["ok", "note", "wrong"]
"""`note`: something is missing that many runs do without."""

OLDEST: Final = (3, 11)
NEWEST: Final = (3, 14)
"""The newest Python that Runnel was tried with; its classifiers in `pyproject.toml` have the same."""

LITTLE_MEMORY: Final = 1 << 30
MANY_DESCRIPTORS: Final = RUN + 64 * WORKER
"""What a run of 64 workers opens."""

DEVICES_S: Final = 120.0
"""How long JAX may take to find its devices; a driver that hangs is given up."""

WORKER_S: Final = 60.0
CONNECT_S: Final = 5.0

OURS: Final = ("all", "bench", "dev", "docs")
"""Extras that name no library of their own, or serve the development of Runnel."""


@dataclass(frozen=True)
class Check:
    """What was found, and how to correct it."""

    name: str
    status: Verdict
    found: str
    fix: str = ""


def python(version: Sequence[Any] = sys.version_info) -> Check:
    found = ".".join(map(str, version[:3]))
    if tuple(version[:2]) < OLDEST:
        return Check("Python", "wrong", found, f"use Python {_dotted(OLDEST)} or later")
    if tuple(version[:2]) > NEWEST:
        fix = f"if something fails, use Python {_dotted(OLDEST)} to {_dotted(NEWEST)}"
        return Check("Python", "note", f"{found}, newer than {_dotted(NEWEST)}, the newest that was tried", fix)
    return Check("Python", "ok", found)


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


class Requirement(NamedTuple):
    """A package that is asked for, with the extras that it is to have, and the oldest version; "" for any."""

    name: str
    extras: tuple[str, ...]
    least: str

    def older(self, found: str) -> bool:
        """Whether a version is below the lower bound. Signs of a pre-release are not compared."""
        return bool(self.least) and _numbers(found) < _numbers(self.least)


def _numbers(version: str) -> tuple[int, ...]:
    """`1.26.4rc1` as numbers, of the same length for all versions: 1.0 and 1.0.0 are equal."""
    plain = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in plain[0].split(".")] if plain else []
    return tuple([*numbers, 0, 0, 0, 0][: max(4, len(numbers))])


def _required(package: str = "runnel", extra: str | None = None) -> list[Requirement]:
    """What an installed package asks for, always or with an extra."""
    found = []
    for requirement in metadata.requires(package) or ():
        name = re.match(r"([\w.-]+)(?:\[([\w,\s-]+)\])?", requirement)
        of = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", requirement)
        least = re.search(r">=\s*([\w.]+)", requirement.partition(";")[0])
        if name is not None and (of[1] if of else None) == extra and name[1].lower() != "runnel":
            extras = tuple(each.strip() for each in (name[2] or "").split(",") if each.strip())
            found.append(Requirement(name[1], extras, least[1] if least else ""))
    return found


def _has(extra: str, version: Callable[[str], str | None], package: str = "runnel") -> bool:
    """Whether all that an extra of a package asks for is installed and new enough, with the extras that this has."""
    try:
        needed = _required(package, extra)
    except metadata.PackageNotFoundError:
        return False
    return all(
        (found := version(each.name)) and not each.older(found)
        and all(_has(inner, version, each.name) for inner in each.extras)
        for each in needed
    )  # fmt: skip


def packages(version: Callable[[str], str | None] = _version) -> Check:
    try:
        required = _required()
    except metadata.PackageNotFoundError:
        return Check("packages", "wrong", "runnel itself is not installed", "pip install -e . in its checkout")
    versions = {each: version(each.name) for each in required}
    missing = [each.name for each, found in versions.items() if found is None]
    if missing:
        return Check("packages", "wrong", f"not installed: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    old = {each: found for each, found in versions.items() if found is not None and each.older(found)}
    if old:
        found = ", ".join(f"{each.name} {found} (expected {each.least} or later)" for each, found in old.items())
        upgrades = " ".join(f"'{each.name}>={each.least}'" for each in old)
        return Check("packages", "wrong", f"too old: {found}", f"pip install -U {upgrades}")
    shown = ", ".join(f"{name} {version(name)}" for name in ("runnel", "jax", "jaxlib", "flax", "gymnasium", "numpy"))
    if str(version("jax")).split(".")[:2] != str(version("jaxlib")).split(".")[:2]:
        return Check(
            "packages", "wrong", f"{shown}; jaxlib is of another version than jax", "pip install -U jax jaxlib"
        )
    return Check("packages", "ok", shown)


def extras(version: Callable[[str], str | None] = _version) -> Check:
    with contextlib.suppress(metadata.PackageNotFoundError):
        names = [e for e in metadata.metadata("runnel").get_all("Provides-Extra") or () if e not in OURS]
        there = {extra: _has(extra, version) for extra in names}
        missing = [extra for extra, whole in there.items() if not whole]
        found = f"installed: {', '.join(extra for extra, whole in there.items() if whole) or 'none'}"
        if not missing:
            return Check("extras", "ok", found)
        how = "install those that you need: pip install 'runnel[NAME]'"
        return Check("extras", "note", f"{found}; not: {', '.join(missing)}", how)
    return Check("extras", "note", "unknown: runnel itself is not installed")


DEVICES: Final = """
import json, jax
devices = jax.devices()
print(json.dumps([[d.platform, d.device_kind] for d in devices]))
"""


def devices(
    code: str = DEVICES, timeout_s: float = DEVICES_S, environ: Mapping[str, str] = os.environ
) -> tuple[Check, list[str]]:
    """JAX's devices, and their platforms. They are looked for in another process: a driver may hang, or crash."""
    asked = [f"{name}={environ[name]}" for name in ("JAX_PLATFORMS", "XLA_FLAGS") if environ.get(name)]
    fix = f"try without {' and '.join(asked)}; " if asked else ""
    fix += "`python -c 'import jax; print(jax.devices())'` shows all of it; install jax again if it is broken"
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-c", code], env=environ, capture_output=True, text=True, timeout=timeout_s,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        text = f"JAX found no devices within {timeout_s:.0f} s"
        return Check("devices", "wrong", text, "try with JAX_PLATFORMS=cpu; if that works, the driver hangs"), []
    if ended.returncode != 0:
        lines = ended.stderr.strip().splitlines() or [f"JAX ended with status {ended.returncode}"]
        return Check("devices", "wrong", _last_error(lines), fix), []
    found = json.loads(ended.stdout.strip().splitlines()[-1])
    kinds = {f"{platform} ({kind})": 0 for platform, kind in found}
    for platform, kind in found:
        kinds[f"{platform} ({kind})"] += 1
    return Check("devices", "ok", ", ".join(f"{n} {kind}" for kind, n in kinds.items())), [p for p, _ in found]


def gpus(nodes: Sequence[str], platforms: Sequence[str], environ: Mapping[str, str] = os.environ) -> Check:
    """Whether JAX uses the NVIDIA GPUs whose device files (`/dev/nvidia0`) are there."""
    if not nodes:
        return Check("GPU", "ok", "no NVIDIA GPU on this machine")
    if any(platform in ("gpu", "cuda") for platform in platforms):
        return Check("GPU", "ok", f"{len(nodes)} here, and JAX uses the GPU")
    asked = environ.get("JAX_PLATFORMS", "")
    if asked and not re.search(r"cuda|gpu", asked):
        return Check("GPU", "note", f"{len(nodes)} here, unused: JAX_PLATFORMS={asked}", "unset JAX_PLATFORMS")
    fix = "pip install 'runnel[cuda]'; then, if it is still unused, compare `nvidia-smi` with what jaxlib needs"
    return Check("GPU", "wrong", f"{len(nodes)} here, which this jaxlib cannot use", fix)


def gpu_nodes() -> list[str]:
    return glob.glob("/dev/nvidia[0-9]*")


DRAWING: Final = """
from runnel.envs.making import draw_without_screen
draw_without_screen()
import mujoco
mujoco.GLContext(64, 64).free()
"""


def pictures(installed: bool | None = None, code: str = DRAWING, environ: Mapping[str, str] = os.environ) -> Check:
    """Whether MuJoCo can draw, with a screen or without: for `runnel eval --video`."""
    installed = importlib.util.find_spec("mujoco") is not None if installed is None else installed
    if not installed:
        return Check("pictures", "ok", "MuJoCo is not installed, and the others need no screen")
    screen = "a screen" if environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY") else "no screen"
    gl = f"{screen}, MUJOCO_GL={environ['MUJOCO_GL']}" if environ.get("MUJOCO_GL") else screen
    fix = "MUJOCO_GL=egl needs the package libegl1, MUJOCO_GL=osmesa libosmesa6; only `eval --video` of MuJoCo draws so"
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-c", code],
            env=environ,
            capture_output=True,
            text=True,
            timeout=WORKER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Check("pictures", "note", f"{gl}: MuJoCo has not answered within {WORKER_S:.0f} s", fix)
    if ended.returncode != 0:
        said = ended.stderr.strip().splitlines() or [f"it ended with status {ended.returncode}"]
        return Check("pictures", "note", f"{gl}: MuJoCo cannot draw: {_last_error(said)}", fix)
    return Check("pictures", "ok", f"{gl}: MuJoCo draws")


def _last_error(lines: Sequence[str]) -> str:
    """The line of a traceback that says what went wrong. Libraries print more after it, as they are taken down."""
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return (errors or lines)[-1][:300]


def cores(count: int, allowed: int, quota: float | None) -> Check:
    """`allowed`: by this process's affinity. `quota`: cores' worth of time of its container."""
    usable = min(allowed, quota or allowed)
    found = f"{count} on this machine, {allowed} allowed" + (f", {quota:g} by the container's quota" if quota else "")
    if usable < 2:
        return Check("cores", "note", found, "distributions of several processes need two cores to be faster")
    if usable < count:
        return Check("cores", "note", found, "widen the affinity (taskset) or the quota, if all are meant to be used")
    return Check("cores", "ok", found)


def count_cores() -> tuple[int, int, float | None]:
    count = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else count
    quota = None
    with contextlib.suppress(OSError, ValueError):  # no such control group, or no quota: "max"
        most, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        quota = int(most) / int(period)
    return count, allowed, quota


def memory(free_bytes: int | None) -> Check:
    if free_bytes is None:
        return Check("memory", "note", "unknown on this system")
    found = f"{free_bytes / 2**30:.1f} GiB free"
    if free_bytes < LITTLE_MEMORY:
        return Check(
            "memory", "wrong", found, "end other programs, or raise the container's limit: JAX alone takes 0.5"
        )
    return Check("memory", "ok", found)


def free_bytes() -> int | None:
    from runnel.system.limits import free_memory

    class Cpu:
        platform = "cpu"

    with contextlib.suppress(OSError, KeyError):
        found = free_memory(Cpu)
        return int(found) if math.isfinite(found) else None
    return None


def shared_memory(directory: Path = Path("/dev/shm"), least_bytes: int = 64 << 20) -> Check:
    """Of libraries: Ray, and environments in processes of their own. Runnel's own has no name, see `memfd`."""
    mount = f"Ray needs it: mount -t tmpfs tmpfs {directory}"
    try:
        free = shutil.disk_usage(directory).free
    except OSError as error:
        return Check("shared memory", "note", f"{directory}: {one_line(error)}", mount)
    if not os.path.ismount(directory):
        return Check("shared memory", "note", f"{directory} is a directory on a disk", mount)
    found = f"{free / 2**20:,.0f} MiB free in {directory}"
    if free < least_bytes:
        fix = "Ray needs more; of a container: --shm-size=1g"
        return Check("shared memory", "note", found, fix)
    return Check("shared memory", "ok", found)


MEMFD: Final[Callable[[str], int] | None] = getattr(os, "memfd_create", None)


def memfd(create: Callable[[str], int] | None = MEMFD, size: int = 16 << 20) -> Check:
    """The memory through which workers of one machine exchange messages."""
    if create is None:
        fix = "use inline or fused, which need none; distributions of several processes need Linux"
        return Check("memfd", "note", "this system has none", fix)
    try:
        fd = create("runnel-doctor")
        try:
            os.posix_fallocate(fd, 0, size)
        finally:
            os.close(fd)
    except OSError as error:
        fix = "raise the container's limit of memory, or allow memfd_create in its seccomp profile"
        return Check("memfd", "wrong", f"{size >> 20} MiB cannot be had: {one_line(error)}", fix)
    return Check("memfd", "ok", "works")


def working_directory(least_bytes: int = 256 << 20) -> Check:
    """Where runs are written, below `runs/`, unless --run-dir says otherwise."""
    elsewhere = "or name another place: --run-dir DIR"
    try:
        here = os.getcwd()
    except OSError:
        return Check("directory", "wrong", "the working directory was removed", "change to one that exists")
    free = shutil.disk_usage(here).free
    found = f"{here}: {free / 2**30:,.1f} GiB free"
    if free < least_bytes:
        return Check(
            "directory", "wrong", found, f"make room: a checkpoint that cannot be written is lost; {elsewhere}"
        )
    if not os.access(here, os.W_OK | os.X_OK):
        return Check("directory", "note", f"{here} cannot be written", f"change to another, {elsewhere}")
    return Check("directory", "ok", found)


def descriptors(soft: int, hard: int) -> Check:
    """Runnel raises the soft limit itself where the hard one allows it. -1 is no limit."""
    found = f"{'no limit' if soft < 0 else soft}, at most {'no limit' if hard < 0 else hard}"
    if 0 <= hard < RUN:
        return Check("descriptors", "wrong", found, f"raise it: `ulimit -n {MANY_DESCRIPTORS}`; a run needs {RUN}")
    if 0 <= hard < MANY_DESCRIPTORS:
        most = (hard - RUN) // WORKER
        return Check("descriptors", "note", f"{found}: enough for {most} workers", f"`ulimit -n {MANY_DESCRIPTORS}`")
    return Check("descriptors", "ok", found)


def descriptor_limits() -> tuple[int, int]:
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)


def cache(directory: str | None = None) -> Check:
    """The directory of compiled programs, without which every start compiles again."""
    place = Path(directory or cache_directory())
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x")
    except OSError as error:
        fix = "make it writable, or name another: JAX_COMPILATION_CACHE_DIR=DIR"
        return Check("compilation cache", "wrong", f"{place} cannot be written: {one_line(error)}", fix)
    files = list(_sizes(place))
    return Check("compilation cache", "ok", f"{place}: {len(files):,} files, {sum(files) / 2**20:,.0f} MiB")


def _sizes(place: Path) -> Iterator[int]:
    for path in place.iterdir():
        with contextlib.suppress(OSError):  # another process may remove what it holds
            yield path.lstat().st_size


def key(file: Path | None = None) -> Check:
    """The key that signs a user's runs, without which `resume` asks for --trust."""
    from runnel.user_code import signing

    file = file or signing.key_file()
    try:
        signing.read_key(file)
    except signing.NoKey as why:
        if not os.path.lexists(file):
            return Check("key", "ok", f"none yet: {file} is made with the first run of your own code")
        fix = f"remove {file}: a new one is made, and older runs of your own code need --trust"
        return Check("key", "wrong", str(why), fix)
    return Check("key", "ok", str(file))


def workers(entry: str = "runnel.cli.doctor_checks:answer", timeout_s: float = WORKER_S) -> Check:
    """A worker is started as a run starts it, by a fork server, and has to answer."""
    if not has_worker_processes():
        return Check("worker processes", "note", "need Linux", "use inline or fused, which start none")
    fix = "inline and fused start none; the reason above says what the system refuses"
    try:
        from runnel.launch import LocalLauncher, WorkerCommand

        with tempfile.TemporaryDirectory() as place, LocalLauncher() as launcher:
            log = Path(place) / "log"
            process = launcher.start(WorkerCommand("doctor", entry, {}, env_only=True, log=log))
            heard = process.control.receive(timeout_s)
            if heard is None or heard.value != {"answer": "here"}:
                said = (log.read_text(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
                return Check("worker processes", "wrong", f"a worker did not answer: {said[:300]}", fix)
    except (UserError, OSError, ImportError, AttributeError) as error:
        return Check("worker processes", "wrong", one_line(error), fix)
    return Check("worker processes", "ok", "one was started, and answered")


def answer(job: dict[str, Any], control: Any, fds: Sequence[int]) -> None:
    """What the worker does."""
    control.send({"answer": "here"})


def ray(address: str | None = None, installed: bool | None = None) -> Check:
    """Whether Ray is there, and whether the cluster answers that is named."""
    installed = importlib.util.find_spec("ray") is not None if installed is None else installed
    if not installed:
        found = f"not installed, so {address} was not tried" if address else "not installed"
        return Check("Ray", "wrong" if address else "note", found, "for several machines: pip install 'runnel[ray]'")
    address = address or os.environ.get("RAY_ADDRESS")
    if not address or address == "auto":
        return Check("Ray", "ok", f"{_version('ray')}; no address was given to look at")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return Check("Ray", "wrong", f"{address} is no address", "give HOST:PORT, such as 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        fix = "start it with `ray start --head`, or correct the address; `runnel help cluster` has the ports"
        return Check("Ray", "wrong", f"{address} does not answer: {one_line(error)}", fix)
    return Check("Ray", "ok", f"{_version('ray')}; {address} answers")
