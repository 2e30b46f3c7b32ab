"""Every algorithm under every distribution, with real processes: it trains, stops cleanly and leaves nothing behind.

And distributions that nobody shipped, workers that die, and plans that are refused before anything starts.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import get_args

import jax
import pytest
from conformance import (
    ALGORITHMS,
    HOST,
    OWN,
    PRODUCT,
    RANKED,
    SCALED,
    TRAINS,
    distribution_of,
    environment_of,
    host_environment_of,
    jax_environment_of,
    shown,
)
from custom_distributions import Chain, Lost, Store
from gaps import beyond
from paths import ROOT, SUPPORT

import runnel
from runnel import algorithms, distributions
from runnel.distributions.asynchronous import Async
from runnel.distributions.central import Central
from runnel.distributions.coarse import Coarse
from runnel.distributions.decoupled import Decoupled
from runnel.distributions.fine import Fine
from runnel.distributions.fused import Fused
from runnel.distributions.inline import Inline
from runnel.distributions.replicated import Replicated
from runnel.errors import EnvironmentFailed, UserError, WorkerFailed
from runnel.execution.building import build
from runnel.graph.kinds import StreamKind
from runnel.planning.plan import Machine
from runnel.transport import memory_check, shared_memory

# What a run leaves behind


def _environ(pid: str) -> bytes:
    try:
        return Path("/proc", pid, "environ").read_bytes()
    except OSError:
        return b""  # it has just ended, or is another user's


def marked(mark: str) -> list[str]:
    """Processes that were started, by whomever, since the mark was put into the environment."""
    found = [p for p in os.listdir("/proc") if p.isdigit() and int(p) != os.getpid() and mark.encode() in _environ(p)]
    return [f"{pid} {_name(pid)}" for pid in found]


def _name(pid: str) -> str:
    try:
        return Path("/proc", pid, "comm").read_text().strip()
    except OSError:
        return ""


def _children() -> list[str]:
    """Of this process, the dead that nobody has reaped among them."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            found += (task / "children").read_text().split()
    return sorted(found)


def _descriptors() -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            continue  # that of the listing itself
    return sorted(found)


def _mappings() -> list[str]:
    return [
        line for line in Path("/proc/self/maps").read_text().splitlines() if "/memfd:" in line or "/dev/shm" in line
    ]


def _held() -> dict[str, list[str]]:
    return {
        "children": _children(),
        "descriptors": _descriptors(),
        "mappings": _mappings(),
        # Not the semaphores of Python's `multiprocessing`, which runnel does not use and vectors of other tests do.
        "/dev/shm": sorted(name for name in os.listdir("/dev/shm") if not name.startswith("sem.mp-")),
    }


@pytest.fixture(scope="module")
def _warm(tmp_path_factory):
    """What JAX and others open once and keep is open before anything is counted."""
    place = tmp_path_factory.mktemp("warm")
    runnel.train(ALGORITHMS["a2c"], HOST, "inline", envs=8, steps=32, run_dir=place / "run", quiet=True)


@pytest.fixture
def clean(_warm, monkeypatch, request):
    """Fails a test that leaves anything behind: processes, descriptors, mappings or segments."""
    mark = f"RUNNEL_TEST_MARK_{os.getpid()}_{abs(hash(request.node.nodeid))}"
    monkeypatch.setenv(mark, "1")
    before = _held()
    yield mark
    assert marked(mark) == []
    after = _held()
    for what, held in before.items():
        left = list(after[what])
        for each in held:
            if each in left:
                left.remove(each)
        assert left == [], f"{what} left behind"


# Every algorithm under every distribution


def conforms(algorithm, environment, distribution, tmp_path, envs=8, iterations=8, **settings):
    """Trains and checks what can be said of any run."""
    built = build(algorithm, environment, distribution, envs)
    steps = iterations * built.graph.steps_per_iteration - 1
    run = runnel.train(
        algorithm, environment, distribution, envs=envs, steps=steps, seed=2, run_dir=tmp_path / "run", quiet=True,
        **settings,
    )  # fmt: skip
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result == run.result
    assert result["status"] == "finished"
    assert result["distribution"] == built.plan.distribution
    assert result["env_steps"] >= steps
    if built.graph.algorithm.max_staleness == 0:
        assert result["env_steps"] == steps + 1  # nobody runs ahead
    assert result["updates"] > 0
    assert 0 <= result["episodes"] <= result["env_steps"]
    assert 0 <= result["staleness_mean"] <= result["staleness_max"] <= algorithm.max_staleness
    assert result["restarts"] == 0
    assert all(jax.numpy.isfinite(leaf).all() for leaf in jax.tree.leaves(run.states))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["env_steps"] == result["env_steps"]
    assert [line["env_steps"] for line in lines] == sorted(line["env_steps"] for line in lines)
    streams = {(stream["source"], stream["target"], stream["kind"]) for stream in result["streams"]}
    planned = {(s, t, kind) for kind, s, t, _ in shown(built.plan) if kind in get_args(StreamKind)}
    assert streams in (planned, set())  # a run may end before they are looked at
    return run


# Each distribution and each algorithm at least once. Same-training tests cover coarse, fine and replicated too.
COVERING = [
    ("ddpg", "inline"),
    ("sac", "fused"),
    ("ppo", "coarse"),
    ("td3", "fine"),
    ("a2c", "replicated"),
    ("ppo", "environments"),
    ("a2c", "central"),
    ("impala", "async"),
    ("dqn", "decoupled"),
    ("reinforce", "inline"),
    ("c51", "inline"),
    ("mappo", "inline"),
    ("vdn", "inline"),
    ("qmix", "inline"),
]


# What each distribution must make of an algorithm: its fragments with their replicas and nodes, and the edges between
# them. LEARNING and the like stand for the nodes that the algorithm has there.

STEP = ("observation", "first", "reward", "terminated", "truncated", "last_observation")
PLANS = {
    "inline": ({"process": (1, "environment act rollout LEARNING")}, ()),
    "fused": ({"program": (1, "environment act rollout LEARNING")}, ()),
    "coarse": (
        {"actor": (2, "environment act rollout"), "learner": (1, "LEARNING")},
        (("actor", "learner", ("trajectory",), "gather"), ("learner", "actor", ("params",), "broadcast")),
    ),
    "fine": (
        {"environment": (2, "environment"), "learner": (1, "act rollout LEARNING")},
        (("environment", "learner", STEP, "gather"), ("learner", "environment", ("action",), "scatter")),
    ),
    "replicated": (
        {"replica": (2, "environment act rollout LEARNING")},
        (("replica", "replica", ("gradients",), "all-reduce"),),
    ),
    "environments": (
        {"environment": (2, "environment"), "agent": (1, "act rollout LEARNING")},
        (("environment", "agent", STEP, "gather"), ("agent", "environment", ("action",), "scatter")),
    ),
    "central": (
        {"worker": (2, "environment act rollout GRADIENTS"), "server": (1, "apply")},
        (("worker", "server", ("gradients",), "gather"), ("server", "worker", ("state",), "broadcast")),
    ),
    "async": (
        {"actor": (2, "environment act rollout"), "learner": (1, "LEARNING")},
        (("actor", "learner", ("trajectory",), "gather"), ("learner", "actor", ("params",), "broadcast")),
    ),
    "decoupled": (
        {"environment": (2, "environment rollout"), "inference": (1, "act"), "learner": (1, "LEARNING")},
        (
            ("environment", "inference", ("observation", "first"), "gather"),
            ("inference", "environment", ("action", "extras"), "scatter"),
            ("environment", "learner", ("trajectory",), "gather"),
            ("learner", "inference", ("params",), "send"),
            ("learner", "environment", ("version",), "broadcast"),
        ),
    ),
}
GRADIENTS = {
    "a2c": "gradient",
    "impala": "gradient",
    "reinforce": "gradient",
    **dict.fromkeys(("dqn", "c51", "ddpg", "td3", "sac", "vdn", "qmix"), "map replay gradient"),
}
LEARNING = {
    algorithm: f"{GRADIENTS[algorithm]} apply" if algorithm in GRADIENTS else "learn" for algorithm in ALGORITHMS
}


def test_the_tables_speak_of_every_distribution_and_algorithm():
    assert list(PLANS) == list(distributions.names())
    assert {algorithm for algorithm, name in TRAINS if name == "central"} == set(GRADIENTS)


@pytest.mark.parametrize(("algorithm", "name"), PRODUCT)
def test_every_plan_is_built_as_written_or_refused_in_words(algorithm, name):
    if (algorithm, name) not in TRAINS:
        what = f"distribution {name} needs .*, which {type(ALGORITHMS[algorithm]).__name__} does not have"
        with pytest.raises(UserError, match=what):
            build(ALGORITHMS[algorithm], environment_of(name, algorithm), distribution_of(name), 8)
        return
    built = build(ALGORITHMS[algorithm], environment_of(name, algorithm), distribution_of(name), 8)
    plan = built.plan
    fragments, edges = PLANS[name]
    here = {"LEARNING": LEARNING[algorithm], "GRADIENTS": GRADIENTS.get(algorithm, "")}
    assert {each.name: (each.replicas, each.nodes) for each in plan.fragments} == {
        fragment: (replicas, tuple(" ".join(here.get(node, node) for node in nodes.split()).split()))
        for fragment, (replicas, nodes) in fragments.items()
    }
    assert tuple((cut.source, cut.target, cut.what, cut.pattern) for cut in plan.cuts) == edges
    assert plan.workers == sum(replicas for replicas, _ in fragments.values())
    assert [each.compiled for each in plan.fragments] == [name == "fused"] * len(fragments)
    assert json.loads(json.dumps(plan.json()))["distribution"] == name


def test_the_covering_set_covers():
    assert {name for _, name in COVERING} == set(distributions.names())
    assert {algorithm for algorithm, _ in COVERING} == set(ALGORITHMS) == set(algorithms.names())


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(("algorithm", "name"), COVERING)
def test_each_distribution_trains_and_leaves_nothing_behind(algorithm, name, tmp_path):
    run = conforms(ALGORITHMS[algorithm], environment_of(name, algorithm), distribution_of(name), tmp_path)
    if (algorithm, name) == ("a2c", "central"):
        # Workers know how many gradients they made, one of 4 steps of each of their 4 environments; the server ends the
        # run.
        assert run.result["updates"] == run.result["env_steps"] // (4 * 8 // 2)


@pytest.mark.slow
@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(("algorithm", "name"), TRAINS)
def test_every_algorithm_trains_under_every_distribution(algorithm, name, tmp_path):
    environment = environment_of(name, algorithm)
    conforms(ALGORITHMS[algorithm], environment, distribution_of(name), tmp_path, iterations=20)


@pytest.mark.slow
@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(("algorithm", "name"), TRAINS)
def test_every_algorithm_trains_under_every_distribution_on_a_jax_environment(algorithm, name, tmp_path):
    environment = jax_environment_of(algorithm)
    conforms(ALGORITHMS[algorithm], environment, distribution_of(name), tmp_path, iterations=20)


@pytest.mark.slow
@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("case", SCALED)
def test_other_numbers_of_workers_train(case, tmp_path):
    algorithm, distribution = SCALED[case]
    conforms(algorithm, host_environment_of(algorithm), distribution, tmp_path, envs=24, iterations=20)


# Distributions nobody shipped. That synchronous ones equal `inline` is in test_same_training.py's slow part, and here:


@pytest.mark.slow
def test_own_synchronous_distributions_equal_inline():
    script = SUPPORT / "same_training.py"
    environ = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "JAX_ENABLE_X64": "1"}
    done = subprocess.run(
        [sys.executable, str(script), "train", "DQN prioritised, host", "store", "maps"],
        capture_output=True, text=True, env=environ, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == {"store", "maps"}
    assert beyond(found, 1e-8) == {}


@pytest.mark.slow
@pytest.mark.usefixtures("clean")
def test_five_environment_workers_share_two_inference_workers_and_a_replay_of_its_own(tmp_path):
    run = conforms(RANKED, HOST, Store(), tmp_path, envs=10, iterations=20)
    inline = conforms(RANKED, HOST, Inline(), tmp_path / "inline", envs=10, iterations=20)
    # The ratio of learning to playing holds where nobody waits for anybody. A batch more or less may be on its way.
    wanted = inline.result["updates"] / inline.result["env_steps"]
    assert run.result["updates"] == pytest.approx(wanted * run.result["env_steps"], rel=0.2, abs=4)


@pytest.mark.slow
@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("case", OWN)
def test_own_distributions_train(case, tmp_path):
    algorithm, environment, distribution = OWN[case]
    conforms(algorithm, environment, distribution, tmp_path, envs=10, iterations=20)


@pytest.mark.usefixtures("clean")
def test_a_chain_of_workers_pauses_for_checkpoints_and_goes_on(tmp_path):
    """Who pauses before another has got rid of what it made would never see it pause."""
    conforms(
        ALGORITHMS["dqn"], HOST, Chain(), tmp_path, envs=10, iterations=60, checkpoint_every_s=0.1, hang_after_s=20.0
    )
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) > 2


def test_episodes_are_counted_wherever_the_trajectories_go(tmp_path):
    """The replay's worker counts them, and the learner ends the run."""
    runs = [
        conforms(ALGORITHMS["dqn"], HOST, distribution, tmp_path / str(k), envs=10, iterations=12)
        for k, distribution in enumerate((Inline(), Store(actors=2, inference=1, sync=True)))
    ]
    inline, store = (run.result for run in runs)
    assert inline["episodes"] > 0
    assert store["episodes"] == inline["episodes"]
    assert store["mean_return"] == pytest.approx(inline["mean_return"])


def command_line(*arguments, cwd=None, timeout_s=280, **environ):
    path = os.pathsep.join([str(ROOT), str(SUPPORT)])
    return subprocess.run(
        [sys.executable, "-m", "runnel", *arguments], capture_output=True, text=True, timeout=timeout_s, check=False,
        cwd=cwd, env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path, **environ},
    )  # fmt: skip


@pytest.mark.parametrize(
    "place",
    ["custom_distributions", pytest.param(SUPPORT / "custom_distributions.py", id="file", marks=pytest.mark.slow)],
)
def test_own_distributions_are_named_on_the_command_line(place, tmp_path):
    done = command_line(
        "train", "dqn", HOST, "--distribution", f"{place}:Store", "--actors", "4", "--inference", "2", "--envs", "8",
        "--steps", "320", "--run-dir", str(tmp_path / "run"), "--quiet", "--set", "hidden=(8,)", "min_size=32",
        "batch=16",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["status"], result["distribution"]) == ("finished", "store")
    assert result["updates"] > 0


# Light workers, and scripts

RECORDS = '''
import os, sys
from pathlib import Path
import gymnasium

class Records(gymnasium.Wrapper):
    """Writes who steps it, and whether JAX is loaded there."""
    def step(self, action):
        name = Path("/proc/self/comm").read_text().strip()
        Path(os.environ["RECORDS"], name).write_text(" ".join(m for m in ("jax", "flax", "optax") if m in sys.modules))
        return super().step(action)

def make():
    return Records(gymnasium.make("CartPole-v1"))
'''


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    "distribution", [Decoupled(actors=2), pytest.param(Fine(actors=2), marks=pytest.mark.slow)], ids=lambda d: str(d)
)
def test_workers_of_host_environments_never_import_jax(distribution, tmp_path, monkeypatch):
    (tmp_path / "recording_env.py").write_text(RECORDS)
    (tmp_path / "seen").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("RECORDS", str(tmp_path / "seen"))
    conforms(ALGORITHMS["impala"], "recording_env:make", distribution, tmp_path, envs=4)
    seen = {file.name: file.read_text() for file in (tmp_path / "seen").iterdir()}
    assert seen == {"environment-0": "", "environment-1": ""}


SCRIPT = """
from dataclasses import dataclass
import gymnasium
import runnel
from runnel.algorithms.a2c import A2C
from runnel.distributions.coarse import Coarse

@dataclass(frozen=True)
class Mine(A2C):
    unroll: int = 4
    hidden: tuple[int, ...] = (8,)

def world():
    return gymnasium.make("CartPole-v1")

print("begun")
run = runnel.train(Mine(), f"{__file__}:world", Coarse(actors=2), envs=4, steps=64, run_dir="run", quiet=True)
print("ended", run.result["status"], run.result["updates"])
"""


@pytest.mark.parametrize("itself", ["__file__", pytest.param("'script'", marks=pytest.mark.slow)])
def test_a_script_without_a_guard_trains_in_processes(itself, tmp_path):
    """Workers never run the user's script again as a whole, whether it speaks of itself as a file or as a module."""
    (tmp_path / "script.py").write_text(SCRIPT.replace("__file__", itself))
    environ = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "script.py"], capture_output=True, text=True, env=environ, cwd=tmp_path, timeout=280,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["begun", "ended finished 4"]


# Refused before anything starts


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    ("algorithm", "environment", "distribution", "envs", "words"),
    [
        ("ppo", HOST, Coarse(3), 8, "envs=8 does not divide over 3 actors; use envs=6 or 9"),
        ("ppo", HOST, Fine(16), 8, "envs=8 does not divide over 16 environment workers; use envs=16"),
        ("ppo", HOST, Central(2), 8, "distribution central needs `gradient` and `apply`, which PPO does not have"),
        ("ppo", HOST, Fused(), 8, "is a host environment and cannot be compiled"),
        (
            "ppo",
            HOST,
            Replicated(2),
            18,
            "2 replicas: every minibatch takes an equal share of 9 column blocks of 2",
        ),
        ("impala", HOST, Async(2, learners=3), 24, "2 actor workers do not divide over 3 learners"),
        ("impala", HOST, Async(3, learners=2), 24, "3 actor workers do not divide over 2 learners"),
        ("impala", HOST, Decoupled(actors=2, inference=3), 24, "3 inference workers serve 2 environment workers"),
        ("a2c", HOST, Coarse(0), 8, "actor: found replicas=0, expected 1 or more"),
        ("a2c", HOST, Central(18), 18, "while one is made, 17 updates may pass; A2C tolerates 16"),
        ("a2c", HOST, Lost(), 8, "to no fragment; every node needs exactly one"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    algorithm, environment, distribution, envs, words, tmp_path, clean
):
    with pytest.raises(UserError) as caught:
        runnel.train(ALGORITHMS[algorithm], environment, distribution, envs=envs, run_dir=tmp_path / "run", quiet=True)
    assert words in str(caught.value)
    assert not (tmp_path / "run").exists()
    assert marked(clean) == []


def test_too_little_shared_memory_is_said_before_anything_starts(clean, tmp_path, monkeypatch):
    fake = tmp_path / "proc"
    fake.mkdir()
    (fake / "meminfo").write_text("MemTotal: 64 kB\nMemAvailable:       1 kB\n")
    check = memory_check.check_room
    monkeypatch.setattr(shared_memory, "check_room", lambda total: check(total, proc=fake, cgroups=tmp_path))
    with pytest.raises(UserError) as caught:
        runnel.train(ALGORITHMS["a2c"], HOST, Coarse(2), envs=8, steps=64, run_dir=tmp_path / "run", quiet=True)
    assert "of shared memory and this machine has 1.0 KiB; use fewer environments" in str(caught.value)
    assert marked(clean) == []


def test_more_workers_than_processors_is_noted():
    machine = Machine(cpus=2, devices=("cpu:0",))
    assert build(ALGORITHMS["a2c"], HOST, Coarse(1), 8, machine=machine).plan.notes == ()
    (note,) = build(ALGORITHMS["a2c"], HOST, Coarse(4), 8, machine=machine).plan.notes
    assert note == "5 workers share 2 CPUs: fewer would not be slower"


# Workers that die


@pytest.mark.usefixtures("clean")
def test_an_environment_that_raises_ends_the_run_and_is_named(tmp_path):
    with pytest.raises(EnvironmentFailed, match=r"environment-\d: (.|\n)*10 times(.|\n)*the pole is broken"):
        runnel.train(
            ALGORITHMS["a2c"], "custom_distributions:fails", Fine(actors=2), envs=4, steps=10_000,
            run_dir=tmp_path / "run", quiet=True,
        )  # fmt: skip
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "failed"


def kill_when_training(mark: str, worker: str, run_dir: Path, patience_s: float = 200) -> threading.Thread:
    """Kills the worker of that name, of the processes with the mark, once there are metrics."""

    def kill():
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            metrics = run_dir / "metrics.jsonl"
            if metrics.exists() and len(metrics.read_text().splitlines()) > 1:
                for pid, _, name in (line.partition(" ") for line in marked(mark)):
                    if name == worker:
                        return os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.05)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("distribution", "worker"),
    [
        (Coarse(actors=2), "actor-1"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                (Coarse(actors=2), "learner"),
                (Fine(actors=2), "environment-0"),
                (Fine(actors=2), "learner"),
                (Replicated(2), "replica-0"),
                (Replicated(2), "replica-1"),
                (Async(actors=2), "actor-0"),
                (Decoupled(actors=2), "inference"),
                (Central(actors=2), "worker-1"),
                (Central(actors=2), "server"),
            )
        ),
    ],
    ids=str,
)
def test_a_killed_worker_that_may_not_be_replaced_ends_the_run_and_is_named(distribution, worker, clean, tmp_path):
    killer = kill_when_training(clean, worker, tmp_path / "run")
    with pytest.raises(WorkerFailed, match=rf"^{worker} was killed by signal 9"):
        runnel.train(
            ALGORITHMS["a2c"], HOST, distribution, envs=8, steps=100_000_000, run_dir=tmp_path / "run", quiet=True,
            restarts=0,
        )  # fmt: skip
    killer.join()
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "failed"


def test_the_command_line_names_a_worker_that_failed_in_plain_words(tmp_path):
    done = command_line(
        "train", "a2c", "custom_distributions:fails", "--distribution", "coarse", "--actors", "2", "--envs", "4",
        "--run-dir", str(tmp_path / "run"), "--quiet",
    )  # fmt: skip
    assert done.returncode == 1
    assert "actor-" in done.stderr
    assert "the pole is broken" in done.stderr
