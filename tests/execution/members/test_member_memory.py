"""How many members there is memory for, and what happens to those for whom there is none."""

import gc
import json
import re
import weakref
from pathlib import Path
from typing import Any

import jax
import pytest

import runnel
from runnel import PBT, LogUniform
from runnel.algorithms.ppo import PPO
from runnel.execution.building import build, rebuild
from runnel.execution.members import fused_members, member_memory
from runnel.execution.members.fused_members import SharedPrograms, cohort_program
from runnel.execution.members.member_memory import side_by_side, that_fit
from runnel.planning.machine import Machine
from runnel.recording import population_file
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
    """A program whose members need 100 bytes each, and all together as many more as one of them is large."""

    def __init__(self, more: int = 0):
        self.more, self.sizes = more, list[int]()

    def bytes(self, members: int, parallel_calls: int = 1) -> int:
        self.sizes.append(members)
        return 100 * members + self.more


@pytest.mark.parametrize(
    ("members", "parallel_calls", "free", "expected"),
    [(8, 1, 10_000, 8), (8, 1, 500, 4), (8, 2, 500, 4), (8, 1, 10, 0), (7, 2, 10_000, 7), (1, 4, 0, 0), (8, 1, 112, 1)],
)
def test_as_many_fit_as_nine_tenths_of_the_free_memory_hold(
    monkeypatch: pytest.MonkeyPatch, members: int, parallel_calls: int, free: int, expected: int
) -> None:
    monkeypatch.setattr(member_memory, "free_memory", lambda device: free)
    program: Any = Sized()
    assert that_fit(program, members, parallel_calls, jax.devices()) == expected


def test_the_size_that_is_compiled_is_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is needed for any number of members makes fewer fit than their share of the whole."""
    monkeypatch.setattr(member_memory, "free_memory", lambda device: 1000)
    program: Any = Sized(more=600)
    assert that_fit(program, 8, 1, jax.devices()) == 3
    assert program.sizes[-1] == 3
    assert program.bytes(3) <= 900 < program.bytes(4)


@pytest.mark.parametrize("stacked", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["separate", "stacked"])
def test_memory_for_not_even_one_member_is_said_in_numbers_and_one_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stacked: bool
) -> None:
    if stacked:
        monkeypatch.setattr("runnel.execution.members.training.STACKED_ABOVE", 1)
    monkeypatch.setattr(member_memory, "free_memory", lambda device: 2000)
    said: list[str] = []
    monkeypatch.setattr(LiveView, "note", lambda self, text: said.append(text))
    found = train(tmp_path / "all", 2)
    (note,) = (text for text in said if "free memory" in text)
    assert re.match(r"found 2.0 KiB of free memory on cpu:0, of which 90% may be used; expected [0-9.]+ [KM]iB", note)
    assert "it is tried all the same: use a smaller network" in note
    assert any("memory for 1 members" in text or "2 stacks of 1, 1 members" in text for text in said)
    assert found.result["finished"] == 2


def processes(monkeypatch: pytest.MonkeyPatch, free: float, members: int = 16, **asked: Any) -> tuple[int, str]:
    """Of 8 cores."""
    monkeypatch.setattr(member_memory, "free_host_memory", lambda: free)
    built = runnel.build("dqn", "CartPole-v1", "inline", settings={"capacity": 10_000, **asked})
    return side_by_side(built, Machine(cpus=8, devices=("cpu:0",)), members)


def test_processes_are_limited_by_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    each = runnel.build("dqn", "CartPole-v1", "inline", settings={"capacity": 10_000}).graph.bytes
    assert processes(monkeypatch, 100 * each) == (8, "8 members at a time")
    assert processes(monkeypatch, 100 * each, members=3) == (3, "3 members at a time")
    few, note = processes(monkeypatch, 3.5 * each)
    assert few == 3
    assert re.match(r"3 of 8 members at a time: [0-9.]+ [KM]iB of memory are free, and the arrays of each need ", note)
    assert processes(monkeypatch, 0.5 * each)[0] == 1
    assert processes(monkeypatch, 3.5 * each, capacity=40_000)[0] == 1, "a replay of four times the capacity"


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
    assert [text for text in said if text.startswith("memory for")] == [
        "memory for 2 members at a time, of 5",
        "memory for 2 members at a time, of 3",
    ]
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


def scarce_for(monkeypatch: pytest.MonkeyPatch, directory: Path, members: int, fit: int) -> None:
    """Leaves memory for `fit` of `members` members: the files of a container say so."""
    config = json.loads((directory / "member-0" / "config.json").read_text())
    built = rebuild(directory / "member-0", config)
    program = cohort_program(built, ("learning_rate",))
    calls = fused_members.side_calls(program, jax.devices()[:1])
    needed = program.bytes(fit, calls)
    assert needed < program.bytes(fit + 1, calls)
    limits_of = directory.parent / "container"
    limits_of.mkdir()
    (limits_of / "memory.max").write_text(f"{int(needed / member_memory.MEMORY_SHARE) + 1}\n")
    (limits_of / "memory.current").write_text("0\n")
    monkeypatch.setattr(limits, "CGROUP", limits_of)
    assert that_fit(program, members, calls, jax.devices()) == fit


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_population_larger_than_memory_ends_as_one_that_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = PBT(every=4 * PER_ITERATION, quantile=0.5, perturb={"learning_rate": LogUniform(1e-4, 1e-2)})
    asked: dict[str, Any] = {"rule": rule, "members": 4, "envs": 4, "steps": 12 * PER_ITERATION, "quiet": True}
    whole = runnel.train_population(SMALL, TASK, run_dir=tmp_path / "whole", **asked)
    said: list[str] = []
    monkeypatch.setattr(LiveView, "note", lambda self, text: said.append(text))
    scarce_for(monkeypatch, whole.run_dir, 4, 2)
    found = runnel.train_population(SMALL, TASK, run_dir=tmp_path / "scarce", **asked)
    assert [text for text in said if text.startswith("memory for")] == ["memory for 2 members at a time, of 4"]
    lineages = [population_file.read_lineage(each.run_dir, 4) for each in (whole, found)]
    assert len(lineages[0]) == 2
    for one, other in zip(*lineages, strict=True):
        assert (one.parents, one.settings, one.env_steps) == (other.parents, other.settings, other.env_steps)
        assert one.scores == pytest.approx(other.scores)
    assert found.result["best"]["member"] == whole.result["best"]["member"]
    returns = [[run["return"] for run in each.result["runs"]] for each in (whole, found)]
    assert returns[0] == pytest.approx(returns[1])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_batch_of_trials_larger_than_memory_ends_as_one_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {
        "over": {"learning_rate": LogUniform(1e-4, 1e-2)}, "trials": 4, "batch": 4, "seeds": 1, "winner_seeds": 0,
        "envs": 4, "steps": 8 * PER_ITERATION, "eval_episodes": 2, "quiet": True,
    }  # fmt: skip
    whole = runnel.sweep(SMALL, TASK, run_dir=tmp_path / "whole", **asked)
    said: list[str] = []
    monkeypatch.setattr(LiveView, "note", lambda self, text: said.append(text))
    scarce_for(monkeypatch, whole.run_dir, 4, 2)
    found = runnel.sweep(SMALL, TASK, run_dir=tmp_path / "scarce", **asked)
    assert [text for text in said if text.startswith("memory for")] == ["memory for 2 members at a time, of 4"]
    assert found.result["status"] == whole.result["status"] == "finished"
    assert found.best == whole.best
    for one, other in zip(whole.result["trials"], found.result["trials"], strict=True):
        assert (one["settings"], one["status"]) == (other["settings"], other["status"])
        assert one["objective"] == pytest.approx(other["objective"])


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
