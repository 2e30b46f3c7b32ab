"""What a stranger can do to a run directory: hazards in the place of each of its files, and values of every type."""

import hashlib
import json
import os
import random
import shutil
import socket
from pathlib import Path

HUGE = 200 << 30
NUMBERED = "000000000007"
"""A directory of the user's own, named like a checkpoint."""

COMMANDS = {
    "train": ["train", "reinforce", "CartPole-v1", "--distribution", "inline", "--envs", "2", "--steps", "16",
              "--set", "hidden=4", "--set", "unroll=8", "--run-dir", "RUN"],
    "resume": ["resume", "RUN", "--steps", "48"],
    "eval": ["eval", "RUN", "--episodes", "1"],
    "eval --json": ["eval", "RUN", "--episodes", "1", "--json"],
    "plot": ["plot", "RUN", "--out", "OUT/curve.svg"],
}  # fmt: skip

TOP = ("config.json", "metrics.jsonl", "result.json", "events.jsonl", "events.older.jsonl", ".lock", ".wandb-id",
       "logs", "logs/actor-0.log", "wandb", "checkpoints")  # fmt: skip
WITHIN = ("NEW", "NEW/manifest.json", "NEW/counters.json", "NEW/state", "NEW/state/empty.json", "NEW/state/arrays",
          "NEW/state/arrays/_METADATA", "NEW/state/arrays/manifest.ocdbt", "NEW/state/arrays/d", "NEW/more",
          "checkpoints/latest", "checkpoints/.writing-1", f"checkpoints/{10**11}")  # fmt: skip
"""NEW is the newest of two checkpoints."""

PLACES = {
    "train": TOP,
    "resume": TOP + WITHIN,
    "eval": ("config.json", "checkpoints", *WITHIN, "result.json", ".lock"),
    "eval --json": ("config.json", "checkpoints", *WITHIN),
    "plot": ("config.json", "metrics.jsonl", "checkpoints", "events.jsonl", "result.json"),
}
"""What a command reads or writes, and some of what it does not."""

HAZARDS = ("link", "link to directory", "link up", "dangling link", "loop", "hard link", "pipe", "socket", "device",
           "directory", "file", "empty", "sparse", "unreadable")  # fmt: skip


def newest(run_dir):
    found = [p.name for p in (run_dir / "checkpoints").iterdir() if p.name.isdigit() and len(p.name) == 12]
    return f"checkpoints/{max(name for name in found if name < str(10**11))}"


def plant(hazard, run_dir, name, outside):
    """Puts a hazard into a run directory. A link leads to a whole copy of what was there: followed, it serves."""
    place = run_dir / (name.replace("NEW", newest(run_dir)) if "NEW" in name else name)
    place.parent.mkdir(exist_ok=True)
    kept = outside / "kept"
    if os.path.lexists(place):
        shutil.move(place, kept)
    else:
        kept.write_text("mine\n")
    match hazard:
        case "link":
            place.symlink_to(kept)
        case "link to directory":
            place.symlink_to(outside)
        case "link up":
            place.symlink_to("..")
        case "dangling link":
            place.symlink_to(outside / "nothing")
        case "loop":
            place.symlink_to(place.name)
        case "hard link" if kept.is_file():
            os.link(kept, place)
        case "pipe":
            os.mkfifo(place)
        case "socket":
            here = os.open(place.parent, os.O_PATH)  # paths of sockets are short
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(f"/proc/self/fd/{here}/{place.name}")
            os.close(here)
        case "device" if os.geteuid() == 0:
            os.mknod(place, 0o20666, os.makedev(1, 5))  # /dev/zero, which has no end
        case "file":
            place.write_text("a file\n")
        case "empty":
            place.touch()
        case "sparse":
            place.touch()
            os.truncate(place, HUGE)
        case "unreadable":
            if kept.is_symlink():  # `latest`: it has no mode of its own
                place.symlink_to(kept.readlink())
                return
            shutil.copytree(kept, place, symlinks=True) if kept.is_dir() else shutil.copy(kept, place)
            place.chmod(0)
        case _:
            place.mkdir()
            (place / "inside").write_text("{}")


def make_outside(directory):
    """What is the user's own, and stays as it is."""
    outside = directory / "outside"
    (outside / NUMBERED / "state").mkdir(parents=True)
    (outside / NUMBERED / "state" / "thesis").write_text("years of work\n")
    (outside / "notes.txt").write_text("mine\n")
    (directory / NUMBERED).mkdir()  # beside the run, where `checkpoints -> ..` leads
    (directory / NUMBERED / "thesis").write_text("years of work\n")
    return outside


def snapshot(*directories):
    """Everything below them: kinds, modes and contents."""
    found = {}
    for directory in directories:
        for path in sorted(directory.rglob("*")):
            status = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() and status.st_size < 1e7 else b""
            link = os.readlink(path) if path.is_symlink() else ""
            found[str(path)] = (status.st_mode, status.st_size if content else 0, link, content)
    return found


ALWAYS = (
    ("resume", "link up", "checkpoints"), ("resume", "link", "checkpoints"), ("resume", "sparse", "metrics.jsonl"),
    ("resume", "link", "events.jsonl"), ("train", "link", "events.jsonl"), ("train", "link", "logs/actor-0.log"),
    ("plot", "pipe", "metrics.jsonl"), ("plot", "sparse", "metrics.jsonl"), ("plot", "pipe", "config.json"),
    ("eval", "pipe", "config.json"), ("eval", "sparse", "NEW/manifest.json"),
)  # fmt: skip
"""What has done harm once."""


def table(full):
    """(command, hazard, place): every command with every hazard, the places in turn; `full`: all of them."""
    yield from () if full else ALWAYS
    for command, places in PLACES.items():
        per_hazard = len(places) if full else {"train": 1, "eval --json": 1, "resume": 2, "eval": 2, "plot": 2}[command]
        turn = 0
        for hazard in HAZARDS:
            for _ in range(per_hazard):
                yield command, hazard, places[turn % len(places)]
                turn += 1
            turn += 0 if full or len(places) % per_hazard else 1


def expected(command, hazard, place):
    """The exit statuses that are right, and whether the older of two checkpoints must have served."""
    plain = hazard in ("hard link", "file", "empty", "sparse", "unreadable")  # of the kind of a file, at least
    if place == "config.json":
        reads = command.startswith(("eval", "plot")) and hazard == "hard link"
        return {0} if reads else {2}, False
    if command == "plot":
        return ({0} if place != "metrics.jsonl" or hazard == "hard link" else {2}), False
    if place == "checkpoints":
        return {2}, False
    if command.startswith("eval"):
        older = place.startswith("NEW") and not (hazard == "hard link" and place not in ("NEW", "NEW/more"))
        return {0}, older and place != "NEW/more"
    if place in TOP and not plain and hazard != "directory":
        return {2}, False
    return {0, 2}, False


# Values


SCALARS = (None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 10**400, 0.5, -0.0, 1e308, 1e-320, "", "x", "1",
           "\x1b[2J", "\ud800", "$x_1$", "../..", "a" * 100_000)  # fmt: skip
CODE = ("os:system", "runnel.launch.fork_server_client:os.system", "runnel.recording.checkpoint:shutil.rmtree",
        "numpy:load", "evil:Evil",
        "evil.py:Evil", "./evil.py:Evil", "runnel.algorithms.ppo:PPO.__init__", "builtins:eval")  # fmt: skip
NESTED = ([], {}, [None], {"": None}, [[[[[]]]]], {"class": "x"}, {"object": "os:system"}, {"float": "nan"},
          {"class": "runnel.algorithms.ppo:PPO", "settings": {}}, {"dict": 3}, {"tuple": {}})  # fmt: skip
VALUES = (*SCALARS, *CODE, *NESTED)


def keys(value, above=()):
    """The path of everything in a JSON value."""
    for key, part in value.items() if isinstance(value, dict) else ():
        yield (*above, key)
        yield from keys(part, (*above, key))


def changed(value, path, new):
    """The value with another at a path."""
    if not path:
        return new
    return {**value, path[0]: changed(value[path[0]], path[1:], new)}


def written(value):
    """As JSON, in which Python writes what others would not."""
    return json.dumps(value)


# Beyond the table


def resign(checkpoint):
    """Makes a manifest agree with what is there, as someone would who means harm."""
    files = {}
    for path in sorted(p for p in checkpoint.rglob("*") if p.is_file() and not p.is_symlink()):
        if path.name != "manifest.json" and path.stat().st_size < 1e7:
            data = path.read_bytes()
            files[path.relative_to(checkpoint).as_posix()] = [len(data), hashlib.blake2b(data).hexdigest()]
    manifest = checkpoint / "manifest.json"
    if manifest.is_file() or manifest.is_symlink():  # anything else stays: opening a pipe to write would wait for ever
        manifest.unlink()
    with open(manifest, "x") as file:
        json.dump({"format": 1, "files": files}, file)


def damaged(data, rng, others):
    """Bytes that something has happened to."""
    data = bytearray(data)
    match rng.choice(("flip", "cut", "swap", "replace", "empty", "insert", "other", "nest")):
        case "flip" if data:
            for _ in range(rng.randint(1, 8)):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case "cut":
            data = data[: rng.randrange(len(data) + 1)]
        case "swap" if len(data) > 8:
            i, j = sorted(rng.sample(range(len(data)), 2))
            data = data[j:] + data[i:j] + data[:i]
        case "insert":
            at = rng.randrange(len(data) + 1)
            data = data[:at] + rng.randbytes(16) + data[at:]
        case "other":
            data = bytearray(rng.choice(others).read_bytes())
        case "nest":
            data = bytearray(b"[" * 100_000)
        case "empty":
            data = bytearray()
        case _:
            data = bytearray(rng.randbytes(max(1, len(data))))
    return bytes(data)


def fuzzed(run_dir, outside, rng: random.Random):
    """Does something to a run directory, and says what."""
    done = []
    for _ in range(rng.randint(1, 3)):
        files = [p for p in run_dir.rglob("*") if p.is_file() and not p.is_symlink() and p.stat().st_size < 1e6]
        what = rng.choice(("plant", "damage", "damage", "value", "value"))
        if what == "plant":
            hazard, name = rng.choice(HAZARDS), rng.choice((*TOP, *WITHIN))
            try:
                (outside / "more").mkdir(exist_ok=True)
                plant(hazard, run_dir, name, Path(rng.choice((outside, outside / "more"))))
            except (OSError, shutil.Error, ValueError):  # after another one, not everything can be done
                continue
            done.append(f"{hazard} at {name}")
        elif files:
            path = rng.choice(files)
            data = path.read_bytes()
            if what == "value" and path.suffix in (".json", ".jsonl"):
                data = _revalued(data, rng)
            else:
                data = damaged(data, rng, files)
            path.write_bytes(data)
            done.append(f"{what} in {path.relative_to(run_dir)}: {data[:200]!r}")
    if rng.random() < 0.5:
        try:
            resign(run_dir / newest(run_dir))
            done.append("resigned")
        except (OSError, ValueError):
            pass
    return done


def _revalued(data, rng):
    lines = data.splitlines() or [b"{}"]
    k = rng.randrange(len(lines)) if len(lines) > 1 and not data.startswith(b"{\n") else None
    try:
        value = json.loads(data if k is None else lines[k])
    except ValueError:
        return data
    path = rng.choice([(), *keys(value)])
    text = written(changed(value, path, rng.choice(VALUES))).encode()
    if k is None:
        return text
    return b"\n".join([*lines[:k], text, *lines[k + 1 :]]) + b"\n"
