"""How many members there is memory for, and what happens to those for whom there is none."""

import gc
import weakref
from pathlib import Path
from typing import Any

import jax
import pytest

import runnel
from runnel import PBT, LogUniform
from runnel.algorithms.ppo import PPO
from runnel.execution.building import build
from runnel.execution.members import fused_members
from runnel.execution.members.fused_members import SharedPrograms, that_fit
from runnel.reporting.live_view import LiveView
from runnel.runtime.programs.loop import Loop
from runnel.runtime.single_process import shared_program
from runnel.runtime.single_process.cohort import CohortProgram
from runnel.runtime.single_process.shared_program import SharedProgram
from runnel.system import limits

SMALL = PPO(unroll=8, minibatches=2, epochs=1, hidden=(8,))
TASK = "gymnax:CartPole-v1"
PER_ITERATION = 8 * 4


class Sized:
    """A program whose members need 100 bytes each."""

    def bytes(self, members: int, parallel_calls: int) -> int:
        return 100 * members


@pytest.mark.parametrize(
    ("members", "parallel_calls", "free", "expected"),
    [(8, 1, 10_000, 8), (8, 1, 500, 4), (8, 2, 500, 4), (8, 1, 10, 1), (7, 2, 10_000, 7), (1, 4, 0, 1)],
)
def test_as_many_fit_as_nine_tenths_of_the_free_memory_hold(
    monkeypatch: pytest.MonkeyPatch, members: int, parallel_calls: int, free: int, expected: int
) -> None:
    monkeypatch.setattr(fused_members, "free_memory", lambda device: free)
    program: Any = Sized()
    assert that_fit(program, members, parallel_calls, jax.devices()) == expected


def test_a_program_says_what_its_members_need() -> None:
    built = build(SMALL, TASK, "fused", 4)
    program = CohortProgram(lambda _: Loop(built.graph, built.environment), jax.devices()[:1])  # type: ignore[arg-type]
    carry = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(program.types(8)))
    assert program.bytes(8) >= carry
    assert program.bytes(8) > program.bytes(2) > 0
    assert program.bytes(8, parallel_calls=2) >= carry


def train(run_dir: Path, seeds: int = 5) -> runnel.Members:
    return runnel.train_members(SMALL, TASK, seeds=seeds, envs=4, steps=4 * PER_ITERATION, run_dir=run_dir, quiet=True)


def test_members_that_do_not_fit_train_after_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    def counted(program: Any, steps: int, seeds: Any, *more: Any, **settings: Any) -> SharedProgram:
        begun.append(len(seeds))
        return SharedProgram(program, steps, seeds, *more, **settings)

    monkeypatch.setattr(fused_members, "SharedProgram", counted)
    monkeypatch.setattr(fused_members, "that_fit", lambda program, members, parallel_calls, devices: min(2, members))
    said: list[str] = []
    monkeypatch.setattr(LiveView, "note", lambda self, text: said.append(text))
    found = train(tmp_path / "all")
    assert begun == [2, 2, 1]
    assert "memory for 2 members at a time, of 5" in said
    assert (found.result["status"], found.result["finished"]) == ("finished", 5)


def test_how_many_fit_is_said_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(LiveView, "note", lambda self, text: said.append(text))
    train(tmp_path / "all", 2)
    assert said.count("memory for all 2 members at once") == 1


def test_the_memory_of_a_batch_is_free_when_the_next_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the help of the garbage collector, which knows nothing of a device's memory."""
    carries: list[weakref.ref[Any]] = []
    left: list[int] = []
    make = shared_program.Cohort.__init__

    def made(self: Any, *args: Any) -> None:
        make(self, *args)
        carries.append(weakref.ref(self))

    def counted(*program: Any) -> int:
        left.append(sum(ref() is not None for ref in carries))
        return side_calls(*program)

    side_calls = fused_members.side_calls  # asked when a batch begins
    monkeypatch.setattr(shared_program.Cohort, "__init__", made)
    monkeypatch.setattr(fused_members, "side_calls", counted)
    monkeypatch.setattr(fused_members, "that_fit", lambda program, members, parallel_calls, devices: min(2, members))
    gc.disable()
    try:
        train(tmp_path / "all", 4)
    finally:
        gc.enable()
    assert left == [0, 0]


def test_a_population_stays_whole_although_it_fills_the_memory_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between rounds its carries stay on the device: they are not counted beside those of the next."""
    asked: list[int] = []

    def scarce(program: CohortProgram, members: int, parallel_calls: int, devices: Any) -> int:
        asked.append(members)
        return members if len(asked) == 1 else members // 2

    monkeypatch.setattr(fused_members, "that_fit", scarce)
    begun: list[int] = []
    monkeypatch.setattr(SharedPrograms, "keep", _counted(SharedPrograms.keep, begun))
    rule = PBT(every=2 * PER_ITERATION, perturb={"learning_rate": LogUniform(1e-4, 1e-2)})
    found = runnel.train_population(
        SMALL, TASK, rule=rule, members=4, envs=4, steps=6 * PER_ITERATION, run_dir=tmp_path / "all", quiet=True
    )
    assert found.result["status"] == "finished"
    assert begun == [4, 4, 4]


def _counted(keep: Any, begun: list[int]) -> Any:
    def counted(self: SharedPrograms, program: CohortProgram, shared: SharedProgram) -> None:
        begun.append(len(shared.views))
        keep(self, program, shared)

    return counted


def test_the_limit_of_a_container_counts_as_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 8000 kB\nMemAvailable: 4000 kB\n")
    monkeypatch.setattr(limits, "MEMINFO", meminfo)
    monkeypatch.setattr(limits, "CGROUP", tmp_path)
    cpu = jax.devices("cpu")[0]
    assert limits.free_memory(cpu) == 4000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert limits.free_memory(cpu) == 4000 * 1024
    (tmp_path / "memory.max").write_text("501000\n")
    assert limits.free_memory(cpu) == 500_000
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 300\n")  # given back where it is needed
    assert limits.free_memory(cpu) == 500_300
