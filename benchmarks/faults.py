"""Claim: runs survive what ends or hangs those of other libraries, and say what happened.

Each library trains on CartPole and something bad is done to it, a run of its own for each: an environment raises,
gives NaN or the wrong shape, hangs or takes its process with it; a worker, the learner or the main process gets a
signal. What came of it is seen from outside: whether steps go on being trained on, at which rate, with how many
workers playing; the exit status; processes and shared memory left. Runs that neither went on nor ended within
--limit seconds of the fault have hung.

    python benchmarks/faults.py --python sb3=PATH sample_factory=PATH rllib=PATH     # interpreters that have them
    python benchmarks/faults.py --peers runnel --scenarios worker_killed learner_killed

Rows are merged into one result file of the day, so that libraries can be run one after another, or side by side.
`--table` only prints that file's table.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import _machine as machine
from benchmarks._fault_peers._tree import Tree

READY_S = 240.0
"""How long a run may take until it has trained a little and has saved a checkpoint; the machine may be busy."""
TRAINED_S = 15.0
"""How long a run has trained when the fault comes: some checkpoints' worth."""
WATCH_S = 30.0
"""How long a run that goes on is watched at least: it may be living on what was under way."""
ORPHAN_S = 30.0
"""How long after its main process a run's other processes may take to end."""
RATE_S = 15.0
"""What the rate of training afterwards is measured over."""
PLAYING_S = 20.0
"""Who has not stepped an environment for so long does not play."""


@dataclass(frozen=True)
class Peer:
    """A library under one choice of settings."""

    title: str
    module: str  # of benchmarks._fault_peers
    package: str
    checkpoints: str  # where they are, as a pattern
    settings: str
    tolerant: bool = False
    learner: str = ""  # the name of the learner's process, where it has one that it is called by


PEERS = {
    "sb3": Peer(
        "Stable-Baselines3, SubprocVecEnv", "sb3", "stable-baselines3", "checkpoints/*.zip",
        "4 processes of an environment each, CheckpointCallback; it has no settings against faults",
    ),
    "sample_factory": Peer(
        "Sample Factory", "sample_factory", "sample-factory", "train/run/checkpoint_p0/checkpoint_*.pth",
        "2 rollout workers, an inference and a learner process; heartbeats every 5 s, missed after 20 s (20 s and "
        "180 s by default); restart_behavior=resume", tolerant=True,
    ),
    "rllib": Peer(
        "RLlib", "rllib", "ray", "checkpoints/*/rllib_checkpoint.json",
        "2 env runners, learner in the main process; defaults, which include restart_failed_env_runners",
    ),
    "rllib_tolerant": Peer(
        "RLlib, tolerant", "rllib", "ray", "checkpoints/*/rllib_checkpoint.json",
        "as above with restart_failed_sub_environments, sample_timeout_s=20, env_runner_health_probe_timeout_s=10, "
        "delay_between_env_runner_restarts_s=1", tolerant=True,
    ),
    "runnel": Peer(
        "Runnel", "runnel_run", "runnel", "run/checkpoints/*/manifest.json",
        "coarse, 2 actors and a learner; defaults", learner="learner",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Scenario:
    """What is done: by the environment, or by a signal to a process."""

    title: str
    kind: str = ""
    when: str = "once"
    signal: int = 0
    target: str = ""  # of the signal: worker, learner or main
    resume: bool = False  # whether a run that ended or hung is started again, as its library resumes


SCENARIOS = {
    "raises_once": Scenario("`step` raises once", "raise"),
    "raises_always": Scenario("`step` raises in 1 of 50 episodes", "raise", "always"),
    "nan_once": Scenario("observation of NaN, once", "nan", resume=True),
    "nan_reward_once": Scenario("reward of NaN, once", "nan_reward", resume=True),
    "shape_once": Scenario("observation of the wrong shape, once", "shape"),
    "hangs_once": Scenario("`step` hangs once", "hang"),
    "exits_once": Scenario("`step` calls `os._exit(1)` once", "exit"),
    "segfaults_once": Scenario("`step` segfaults once", "segfault"),
    "worker_killed": Scenario("SIGKILL to a worker", signal=signal.SIGKILL, target="worker"),
    "worker_stopped": Scenario("SIGSTOP to a worker", signal=signal.SIGSTOP, target="worker"),
    "learner_killed": Scenario("SIGKILL to the learner", signal=signal.SIGKILL, target="learner", resume=True),
    "main_terminated": Scenario("SIGTERM to the main process", signal=signal.SIGTERM, target="main", resume=True),
    "main_killed": Scenario("SIGKILL to the main process", signal=signal.SIGKILL, target="main", resume=True),
}


@dataclass
class Row:
    """What came of one scenario."""

    peer: str
    scenario: str
    outcome: str = "not run"
    exit_status: int | None = None
    seconds: float | None = None  # from the fault to the end, or to the end of the pause in progress that it made
    rate: float | None = None  # of training afterwards, as a share of that before; of a machine that others use too
    players: list[int] = field(default_factory=list)  # processes that play: before the fault, and at the end
    began: float = 0.0  # when, by the clock of its output
    orphans: list[str] | None = None  # None: the run did not end by itself
    shm_left: list[str] | None = None
    steps_at_fault: int | None = None
    resumed_at_steps: int | None = None  # the first report after going back, or being started again
    faults: int = 1
    limit_s: float = 0.0
    note: str = ""
    output: str = ""  # its last lines, without what this machine's paths are


# A run and what it tells


class Watched:
    """A run in a directory of its own."""

    def __init__(self, peer: Peer, python: str, scenario: Scenario, directory: Path):
        self.peer, self.python, self.directory = peer, python, directory
        self.environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "FAULT_DIR": str(directory),
            "FAULT_KIND": scenario.kind,
            "FAULT_WHEN": scenario.when,
            "RAY_AUTH_MODE": "disabled",
            "RAY_DEDUP_LOGS": "0",
        }
        self.tree = self.start()

    def start(self, *more: str) -> Tree:
        words = [self.python, "-m", f"benchmarks._fault_peers.{self.peer.module}", "--dir", str(self.directory), *more]
        if self.peer.tolerant:
            words.append("--tolerant")
        return Tree(words, self.environ, self.directory / "output.log", self.directory)

    def progress(self) -> list[dict[str, Any]]:
        path = self.directory / "progress.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def players(self, within_s: float = PLAYING_S) -> set[int]:
        """Processes that have played lately."""
        found = set()
        for path in (self.directory / "players").glob("*"):
            if time.time() - path.stat().st_mtime < within_s and int(path.name) in self.tree.living():
                found.add(int(path.name))
        return found

    def ready(self) -> bool:
        """Whether it has trained, saved, and trained on."""
        saved = [path.stat().st_mtime for path in self.directory.glob(self.peer.checkpoints)]
        told = self.progress()
        trained_s = told[-1]["time"] - told[0]["time"] if told else 0.0
        return trained_s > TRAINED_S and bool(saved) and told[-1]["time"] > min(saved) + 3.0 and bool(self.players())

    def target(self, name: str) -> int:
        if name == "worker":
            return max(self.players() - {self.tree.pid})
        if name == "learner" and self.peer.learner:
            return next(pid for pid, called in self.tree.living().items() if called.startswith(self.peer.learner))
        if name == "learner" and (self.directory / "learner.json").exists():
            return json.loads((self.directory / "learner.json").read_text())["pid"]
        return self.tree.pid

    def said(self, since: int = 0) -> str:
        with (self.directory / "output.log").open("rb") as file:
            file.seek(since)
            text = file.read().decode(errors="replace")
        events = self.directory / "run" / "events.jsonl"
        if events.exists():
            text += events.read_text()
        text = re.sub(r"\x1b\[[0-9;]*m", "", text)
        for path, name in ((str(self.directory), "RUN"), (sys.prefix, "PREFIX"), (str(ROOT), "ROOT")):
            text = text.replace(path, name)
        return re.sub(r"(/[\w.+-]+)+/site-packages", "SITE", re.sub(r"(/[\w.+-]+)+/lib/python3", "LIB/python3", text))


def wait_for(condition: Callable[[], bool], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.25)
    return True


# One scenario


def play(name: str, peer_name: str, python: str, limit_s: float, directory: Path) -> Row:
    scenario, peer, row = SCENARIOS[name], PEERS[peer_name], Row(peer_name, name, limit_s=limit_s)
    run = Watched(peer, python, scenario, directory)
    try:
        if not wait_for(lambda: run.ready() or run.tree.exit_status() is not None, READY_S) or not run.ready():
            row.note = f"it did not get going: {_telling_line(run.said())}"
            row.output = run.said()[-3000:]
            return row
        before = run.players()
        log_at = (directory / "output.log").stat().st_size
        began = _begin(run, scenario)
        if began is None:
            row.note = "the fault never came about"
            return row
        row.began = began
        row.steps_at_fault = run.progress()[-1]["steps"]
        _watch(run, scenario, row, began, before, limit_s)
        fired = directory / "fired"
        row.faults = len(fired.read_text().splitlines()) if fired.exists() else 1
        said = run.said(log_at)
        row.note, row.output = _telling_line(said), said[-3000:]
        _judge_data(run, scenario, row, said)
        run.tree.close()
        if scenario.resume and row.outcome.startswith(("ended", "stopped", "hung")):
            _resume(run, row, limit_s)
        return row
    finally:
        run.tree.close()


def _begin(run: Watched, scenario: Scenario) -> float | None:
    """Makes it happen, and says when it did."""
    if scenario.signal:
        os.kill(run.target(scenario.target), scenario.signal)
        return time.time()
    (run.directory / "armed").touch()
    fired = run.directory / "fired"
    if not wait_for(lambda: fired.exists() and bool(fired.read_text()), 60.0):
        return None
    return float(fired.read_text().split()[0])


def _watch(run: Watched, scenario: Scenario, row: Row, began: float, before: set[int], limit_s: float) -> None:
    """Until the run has ended, or has been seen to go on with all who played before, or the limit."""
    after: list[dict[str, Any]] = []
    players, told_at_fault = before, row.steps_at_fault or 0
    while (elapsed := time.time() - began) < limit_s:
        if (status := run.tree.exit_status()) is not None:
            row.exit_status, row.seconds = status, round(elapsed, 1)
            row.outcome = "ended, exit status 0" if status == 0 else "ended with an error"
            if scenario.target == "main" or status == -scenario.signal:
                row.outcome = "stopped, exit status 0" if status == 0 else f"ended by the signal, exit status {status}"
            row.players = [len(before), 0]
            row.orphans, row.shm_left = run.tree.orphans(ORPHAN_S), run.tree.shm_left()
            return
        after = [each for each in run.progress() if each["time"] > began]
        players = run.players()
        lately = [each for each in after if each["time"] > time.time() - 10.0]
        if elapsed > WATCH_S and len(lately) > 1 and len(players) >= len(before):
            time.sleep(RATE_S)
            break
        time.sleep(0.25)
    row.players = [len(before), len(players)]
    told = run.progress()
    grew = [
        late
        for early, late in itertools.pairwise(told)
        if late["time"] > began + 5.0 and late["steps"] > early["steps"]
    ]
    if not grew or grew[-1]["time"] < time.time() - limit_s / 2:
        row.outcome = "hung"
        return
    row.seconds = _pause(told, began)
    rate_before, rate_after = _rate(told, began - RATE_S, began), _rate(told, time.time() - RATE_S, time.time())
    if rate_after is None:  # it tells of little: the rate since the fault
        rate_after = (told[-1]["steps"] - told_at_fault) / (time.time() - began)
    row.rate = round(rate_after / rate_before, 2) if rate_before else None
    if len(players) < len(before):
        row.outcome = "went on without the worker"
    elif back := [each["steps"] for each in after if each["steps"] < told_at_fault]:
        row.outcome, row.resumed_at_steps = "went on from a checkpoint", back[0]
    elif players - before:
        row.outcome = "went on after a restart"
    else:
        row.outcome = "went on"


def _pause(told: list[dict[str, Any]], began: float) -> float:
    """Seconds to the end of the longest pause among those that began within 10 s of the fault; 0 where that one is
    not much longer than those before it."""
    times = [each["time"] for each in told]
    gaps = [(late - early, early, late) for early, late in itertools.pairwise(times)]
    usual_s = max((gap for gap, early, late in gaps if began - RATE_S < late < began), default=1.0)
    longest_s, _, end = max(each for each in gaps if each[2] > began and each[1] < began + 10.0)
    return round(end - began, 1) if longest_s > 1.5 * usual_s else 0.0


def _rate(told: list[dict[str, Any]], since: float, until: float) -> float | None:
    """Steps a second between the first and the last report of that time, where there are enough to tell."""
    kept = [each for each in told if since <= each["time"] <= until]
    if len(kept) < 4:
        return None
    return (kept[-1]["steps"] - kept[0]["steps"]) / max(1e-9, kept[-1]["time"] - kept[0]["time"])


def _judge_data(run: Watched, scenario: Scenario, row: Row, said: str) -> None:
    """A run that goes on after bad data has either dealt with it, and says so, or has learned from it."""
    if scenario.kind not in ("nan", "nan_reward", "shape") or not row.outcome.startswith("went on"):
        return
    if not run.progress()[-1]["finite"]:
        row.outcome = "wrong data taken silently: the parameters are NaN"
    elif not re.search(r"\bnan\b|finite|shape", said, re.IGNORECASE):
        row.outcome = "wrong data taken silently"


def _resume(run: Watched, row: Row, limit_s: float) -> None:
    """Starts it again; how far it says it has come tells where it went on from."""
    began, log_at = time.time(), (run.directory / "output.log").stat().st_size
    (run.directory / "armed").unlink(missing_ok=True)
    run.tree = run.start("--resume")

    def going() -> bool:
        return run.tree.exit_status() is not None or run.progress()[-1]["time"] > began

    if wait_for(going, limit_s) and run.tree.exit_status() is None:
        row.resumed_at_steps = next(each["steps"] for each in run.progress() if each["time"] > began)
    else:
        row.note += f"; resuming failed: {_telling_line(run.said(log_at))}"


_TELLING = re.compile(
    r"broke|error|exception|signal|killed|died|crash|heartbeat|restart|fault|nan\b|stopp|lost", re.IGNORECASE
)
_LESS = re.compile(
    r"^\s*(File|Traceback|\^|@|PC:|raise |During handling|\[*[-\d])|[a-z]Warning|warn\(|Fps is"
    r"|requires_grad|tensor\(|grad_fn|constructor arguments"
)


def _telling_line(said: str) -> str:
    """The first and the last line of those that speak of something bad."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if _TELLING.search(line) and not _LESS.search(line)]
    found = telling or lines[-1:] or ["it said nothing"]
    return " ... ".join(line[:200] for line in dict.fromkeys((found[0], found[-1])))


# Results


def why_missing(peer: Peer, python: str) -> str:
    """The last line of what importing a library says in that interpreter; empty where it can be imported."""
    command = [python, "-W", "ignore", "-c", f"import benchmarks._fault_peers.{peer.module}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def describe(peers: dict[str, str]) -> dict[str, Any]:
    """What is compared, by the interpreters that have it."""
    found = {}
    for name, python in peers.items():
        peer = PEERS[name]
        code = f"import platform; from importlib.metadata import version as v; print(platform.python_version(), v({peer.package!r}))"  # noqa: E501
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        versions = done.stdout.split() if done.returncode == 0 else [None, None]
        found[name] = {**asdict(peer), "python": versions[0], "version": versions[1]}
    return found


def merge(
    rows: list[Row], peers: dict[str, Any], about: dict[str, Any], out: str | None
) -> tuple[Path, dict[str, Any]]:
    """Puts rows into the day's result file, in the place of older ones of the same run."""
    with open(Path(tempfile.gettempdir()) / "runnel-faults.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = machine.save("faults", {"machine": about}, out) if not (path := place(about, out)).exists() else path
        kept = json.loads(path.read_text())
        old = {(row["peer"], row["scenario"]): row for row in kept.get("rows", [])}
        old |= {(row.peer, row.scenario): asdict(row) for row in rows}
        order = [(peer, scenario) for peer in PEERS for scenario in SCENARIOS]
        known = kept.get("peers", {}) | peers
        result = {
            "machine": kept["machine"],
            "peers": {name: known[name] for name in PEERS if name in known},
            "rows": [old[key] for key in order if key in old],
        }
        return machine.save("faults", result, out), result


def place(about: dict[str, Any], out: str | None) -> Path:
    device = "".join(c if c.isalnum() else "-" for c in str(about["device"])).lower()
    return (Path(out) if out else machine.RESULTS) / f"faults-{device}-{about['date']}.json"


def table(result: dict[str, Any]) -> str:
    """In Markdown: scenarios down, libraries across."""
    rows = {(row["peer"], row["scenario"]): row for row in result["rows"]}
    peers = list(result["peers"])
    lines = ["| | " + " | ".join(_head(result["peers"][name]) for name in peers) + " |", "|---|" + "---|" * len(peers)]
    for name, scenario in SCENARIOS.items():
        cells = [_cell(rows[peer, name]) if (peer, name) in rows else "" for peer in peers]
        lines.append(f"| {scenario.title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _head(peer: dict[str, Any]) -> str:
    return f"{peer['title']} {peer['version'] or ''}".strip()


def _cell(row: dict[str, Any]) -> str:
    parts = [row["outcome"]]
    if row["outcome"] == "not run":
        return f"not run: {row['note']}"
    if row["outcome"] == "hung":
        parts[0] += f" (nothing in {row['limit_s']:.0f} s)"
    elif row["seconds"]:
        parts[0] += f", {row['seconds']:.0f} s" if row["seconds"] >= 1 else ", at once"
    if row["rate"] is not None and row["rate"] < 0.3:  # less than others' use of the machine would explain
        parts.append("under 1% of its rate" if row["rate"] < 0.01 else f"{100 * row['rate']:.0f}% of its rate")
    if row["players"] and 0 < row["players"][1] < row["players"][0]:
        parts.append(f"{row['players'][1]} of {row['players'][0]} workers play")
    if row["orphans"]:
        parts.append(f"{len(row['orphans'])} orphans")
    if row["shm_left"]:
        parts.append(f"{len(row['shm_left'])} left in /dev/shm")
    if row["resumed_at_steps"] is not None:
        parts.append(
            f"resumed, first told of {row['resumed_at_steps']:,} steps ({row['steps_at_fault']:,} at the fault)"
        )
    elif "resuming failed" in row["note"]:
        parts.append("resuming failed")
    return "; ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS), metavar="NAME")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=list(SCENARIOS), metavar="NAME")
    parser.add_argument("--python", nargs="+", default=[], metavar="NAME=PATH", help="this interpreter by default")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after the fault (120)")
    parser.add_argument("--keep", type=Path, help="a directory for what the runs wrote; removed without it")
    parser.add_argument("--table", action="store_true", help="only print the table of the day's results")
    parser.add_argument("--out", help="directory for the raw results")
    args = parser.parse_args()
    about = machine.describe("gymnasium")
    if args.table:
        print(table(json.loads(place(about, args.out).read_text())))
        return
    given = dict(each.split("=", 1) for each in args.python)
    pythons = {name: given.get(name, given.get(PEERS[name].module, sys.executable)) for name in args.peers}
    missing = {name: reason for name, python in pythons.items() if (reason := why_missing(PEERS[name], python))}
    for name, reason in missing.items():
        print(
            f"left out: {name} ({reason}); --python {PEERS[name].module}=PATH names an interpreter that has it",
            flush=True,
        )
        del pythons[name]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of what ends the run under way
    described = describe(pythons)
    path, result = merge([], described, about, args.out)
    for peer, python in pythons.items():
        for scenario in args.scenarios:
            # Short: sockets, which some libraries put there, have paths of a hundred characters at most.
            directory = Path(tempfile.mkdtemp(prefix="faults-"))
            try:
                row = play(scenario, peer, python, args.limit, directory)
            finally:
                if args.keep:
                    shutil.copytree(directory, args.keep / peer / scenario, dirs_exist_ok=True, symlinks=True,
                                    ignore=shutil.ignore_patterns("ray"))  # fmt: skip
                shutil.rmtree(directory, ignore_errors=True)
            path, result = merge([row], described, about, args.out)
            print(f"{peer}, {scenario}: {_cell(asdict(row))} [{row.note}]", flush=True)
    print(f"\n{table(result)}\n\n{path}")


if __name__ == "__main__":
    main()
