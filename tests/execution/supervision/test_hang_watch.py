"""When a run of one process is given up: looked at with a clock and stacks of the test's own."""

from types import SimpleNamespace

import pytest

from runnel.execution.supervision.hang_watch import END_S, SHOWN_S, HangWatch
from runnel.recording import checkpoint
from runnel.runtime.single_process import evaluation, program, stepped
from runnel.runtime.workers import player
from runnel.system.tracebacks import COMPILER, Frame

STEP = [
    Frame("/me/env.py", 7, "step"),
    Frame("/x/runnel/envs/gymnasium_vector.py", 60, "step"),
    Frame(player.__file__, 193, "step"),
]
RESET = [Frame("/me/env.py", 3, "reset"), Frame(player.__file__, 108, "reset")]
UPDATE = [Frame(stepped.__file__, 140, "_iterate")]
COMPILING = [Frame(f"/y/{next(iter(COMPILER))}", 1, "backend_compile"), *STEP]
SAVING = [Frame("/y/orbax/x.py", 1, "write"), Frame(checkpoint.__file__, 252, "save")]


@pytest.fixture
def run():
    run = SimpleNamespace(now=0.0, steps=0, asked="", stack=STEP, said=[], ended=[])
    run.watch = HangWatch(
        10.0, lambda: run.steps, lambda: run.asked, run.said.append, lambda reason, s: run.ended.append(reason),
        lambda: run.now, lambda: run.stack, lambda: "its stack",
    )  # fmt: skip

    def passes(seconds, step=0.25):
        end = run.now + seconds
        while run.now < end and not run.ended:
            run.watch.look()
            run.now += step

    run.passes = passes
    return run


def test_an_environment_that_does_not_return_is_given_up_with_its_place(run):
    run.passes(9.0)
    assert not run.ended
    run.passes(3.0)
    assert run.ended == ["the environment has not returned for 10 s (--hang-after), in step (/me/env.py, line 7)"]
    assert run.said == ["the environment has not returned for 10 s:\nits stack"]


def test_steps_updates_and_compiling_are_no_hang(run):
    for _ in range(40):
        run.passes(1.0)
        run.steps += 1
    for stack in (UPDATE, COMPILING):
        run.stack = stack
        run.passes(1000.0)
    assert not run.ended


def test_an_environment_that_does_not_return_in_evaluation_is_given_up_too(run):
    stack = [*STEP[:2], Frame(evaluation.__file__, 161, "play_watched")]
    assert HangWatch(5.0, lambda: 0, lambda: "", print, print, stack=lambda: stack).limit(stack) == 5.0


def test_resets_may_take_longer(run):
    run.stack = RESET
    run.passes(200.0)
    assert not run.ended
    run.passes(200.0)
    assert run.ended


def test_time_in_which_the_process_was_stopped_does_not_count(run):
    run.passes(5.0)
    run.now += 1000.0  # Ctrl-Z, and `fg` later
    run.passes(3.0)
    assert not run.ended


def test_before_the_first_update_it_knows_what_it_waits_for(run):
    def held(stack, steps=0):
        run.stack = stack
        run.steps += 1  # which begins anew
        for _ in range(12):
            run.steps += steps
            run.passes(0.25)
        return run.watch.held()

    assert held(STEP) == STEP[0]
    assert held(RESET) == RESET[0]
    assert held([Frame("/y/site-packages/game.py", 1, "step"), *STEP[1:]]).function == "step"
    making = [Frame("/me/env.py", 1, "__init__"), Frame(program.__file__, 9, "make_program")]
    assert held(making) == making[0]
    assert held(STEP, steps=1) is held(UPDATE) is held(COMPILING) is held(making[1:]) is None


def test_asked_to_end_it_shows_what_it_waits_for_then_ends(run):
    run.asked = "SIGINT"
    run.passes(1.0)
    assert run.said == []  # the session says that a signal has come
    run.passes(SHOWN_S)
    end = "ends without a checkpoint after 25 s; once more ends at once"
    assert run.said == [f"waits for step (/me/env.py, line 7); {end}:\nits stack"]
    run.passes(END_S)
    assert run.ended == ["did not return from step (/me/env.py, line 7)"]
    assert run.now < 30.0


def test_a_checkpoint_that_takes_long_to_write_is_waited_for(run):
    run.asked, run.stack = "SIGTERM", SAVING
    run.passes(300.0)
    assert not run.ended
