"""Runs that are asked, from outside, for a checkpoint or to end."""

import threading
import time
from pathlib import Path

import pytest
from toys import Reinforce

import runnel
from runnel.recording import requests, run_lock
from runnel.recording.checkpoint import Checkpoints
from runnel.reporting import plan_file, report


def _asking(directory: Path, saved: list[Path]) -> threading.Thread:
    """Asks for a checkpoint, waits until all have one, and asks for the end."""

    def body() -> None:
        deadline = time.monotonic() + 200

        def until(done) -> None:
            while not done() and time.monotonic() < deadline:
                time.sleep(0.05)

        until(lambda: all((path / "metrics.jsonl").exists() for path in saved))
        requests.ask(directory, requests.CHECKPOINT)
        until(lambda: all(Checkpoints(path).newest() is not None for path in saved))
        requests.ask(directory, requests.STOP)

    thread = threading.Thread(target=body)
    thread.start()
    return thread


def test_all_members_of_a_program_are_saved_and_end(tmp_path):
    directory = tmp_path / "runs"
    thread = _asking(directory, [directory / "member-0", directory / "member-1"])
    found = runnel.train_members(
        Reinforce,
        "gymnax:CartPole-v1",
        seeds=2,
        steps=10**9,
        envs=4,
        run_dir=directory,
        quiet=True,
        checkpoint_every_s=100_000,
    )
    thread.join()
    assert (found.result["status"], [run["status"] for run in found.result["runs"]]) == (
        "interrupted",
        ["interrupted"] * 2,
    )
    first = found.result["runs"][0]["env_steps"]
    names = sorted(int(path.name) for path in Checkpoints(directory / "member-0").all())
    assert len(names) == 2  # as asked, and at the end
    assert names[0] < names[1]
    for path in (directory, directory / "member-0", directory / "member-1"):
        assert (path / report.FILE).stat().st_size < 500_000
        assert not any((path / requests.file_of(what)).exists() for what in requests.ALL)
    again = runnel.resume_members(directory, steps=first + 8, quiet=True)
    assert again.result["status"] == "finished"


@pytest.mark.slow
def test_members_with_processes_of_their_own_are_saved_and_end(tmp_path):
    thread = _asking(tmp_path, [tmp_path / "member-0"])
    found = runnel.train_members(
        "ppo", "CartPole-v1", "inline", seeds=2, steps=10**9, envs=4, run_dir=tmp_path, quiet=True,
        checkpoint_every_s=100_000,
    )  # fmt: skip
    thread.join()
    assert found.result["status"] == "interrupted"
    assert found.result["runs"][0]["status"] == "interrupted"
    assert len(Checkpoints(tmp_path / "member-0").all()) == 2


def test_what_was_asked_before_a_run_began_is_dropped(tmp_path):
    for what in requests.ALL:
        requests.ask(tmp_path, what)
    run = runnel.train(Reinforce(), "gymnax:CartPole-v1", "fused", steps=64, envs=4, run_dir=tmp_path, quiet=True)
    assert run.result["status"] == "finished"
    assert plan_file.read(tmp_path).fragments == run.built.plan.fragments
    assert {file.name for file in tmp_path.iterdir() if file.name.startswith(".asked")} == set()


def test_looking_at_a_lock_keeps_no_run_out(tmp_path):
    with run_lock.hold(tmp_path, print):
        assert run_lock.in_use(tmp_path)
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            run_lock.in_use(tmp_path)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(200):
            with run_lock.hold(tmp_path, print):
                pass
    finally:
        stop.set()
        for looker in lookers:
            looker.join()
    assert not run_lock.in_use(tmp_path)


def test_a_request_is_taken_once_and_only_known_ones_are_made(tmp_path):
    now = [0.0]
    waiting = requests.Waiting(tmp_path, lambda: now[0])
    requests.ask(tmp_path, requests.STOP)
    requests.ask(tmp_path, requests.STOP)
    assert waiting.taken() == {requests.STOP}
    requests.ask(tmp_path, requests.CHECKPOINT)
    assert waiting.taken() == set()  # it has looked just now
    now[0] += requests.LOOK_S
    assert waiting.taken() == {requests.CHECKPOINT}
    now[0] += requests.LOOK_S
    assert waiting.taken() == set()
    with pytest.raises(ValueError, match="erase"):
        requests.ask(tmp_path, "erase")
    (tmp_path / requests.file_of(requests.STOP)).mkdir()
    with pytest.raises(OSError, match="a directory"):
        requests.ask(tmp_path, requests.STOP)
    now[0] += requests.LOOK_S
    assert waiting.taken() == set()
