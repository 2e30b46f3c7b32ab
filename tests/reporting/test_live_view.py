"""What a user sees of a run."""

import io
import time
from pathlib import Path
from typing import Any

import pytest

from runnel.reporting import number_words, status_lines
from runnel.reporting.live_view import LiveView
from runnel.reporting.run_summary import members_summary, summary
from runnel.reporting.sweep_report import sweep_summary
from runnel.runtime.usage import StreamUsage, UsageReport, WorkerUsage, single_process_usage

RECORD = {
    "env_steps": 50_000,
    "mean_return": 21.25,
    "steps_per_second": 1000.0,
    "learn/entropy": 0.5,
    "learn/policy_loss": -0.0123,
    "learn/broken": None,
}

WORKERS = UsageReport(
    (
        WorkerUsage("actor-0", "actor", 1.0, 5.0, {}, env_steps=600, per_second=120.0),
        WorkerUsage("actor-1", "actor", 0.5, 5.0, {"room for unrolls": 2.5}, env_steps=400, per_second=80.0),
        WorkerUsage("learner", "learner", 0.25, 5.0, {"unrolls": 3.0, "room": 0.75}, updates=50, per_second=10.0),
    ),
    (StreamUsage("actor", "learner", "unroll", 0.125, 10.0, 1.5),),
)

RESULT = {
    "status": "finished",
    "algorithm": "ppo",
    "environment": "CartPole-v1",
    "distribution": "inline",
    "seed": 3,
    "env_steps": 500_000,
    "updates": 1_220,
    "episodes": 4_000,
    "mean_return": 487.123,
    "wall_seconds": 63.2,
    "startup_seconds": 1.5,
    "steps_per_second": 23_456.7,
    "restarts": 0,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shows(stream: io.StringIO, words: str) -> None:
    """Waits until a terminal has these words, which is drawn several times a second."""
    deadline = time.monotonic() + 30
    while words not in stream.getvalue():
        assert time.monotonic() < deadline, stream.getvalue()
        time.sleep(0.01)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_off_a_terminal_there_is_a_line_every_two_seconds_and_the_last() -> None:
    stream, clock = io.StringIO(), Clock()
    with LiveView(100, title="ppo on Toy", stream=stream, clock=clock) as view:
        for step in range(12):
            view.update({"env_steps": step, "mean_return": None})
            clock.now += 0.5
        view.note("checkpoint written")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "ppo on Toy"
    assert [line.split("/")[0] for line in lines[1:]] == ["0", "4", "8", "checkpoint written", "11"]


def test_a_line_has_return_speed_losses_and_time_left_but_for_the_last() -> None:
    stream, clock = io.StringIO(), Clock()
    with LiveView(200_000, stream=stream, clock=clock) as view:
        view.update(RECORD)
        view.update(RECORD)
    line = "50,000/200,000 steps  25%  return 21.2  1,000 steps/s  policy_loss -0.0123  entropy 0.500"
    assert stream.getvalue().splitlines() == [f"{line}  2 min 30 s left", line]


def test_a_line_says_how_busy_several_workers_are() -> None:
    stream = io.StringIO()
    losses = {"learn/c": 1.0, "learn/d": 1.0}
    with LiveView(200_000, stream=stream) as view:
        view.update({**RECORD, **losses, "staleness_mean": 1.5}, WORKERS)
    (line,) = stream.getvalue().splitlines()
    assert "  policy_loss -0.0123  entropy 0.500  busy actor 75% learner 25%  staleness 1.50  " in line


def test_a_worker_alone_is_not_worth_a_word() -> None:
    only = single_process_usage("process", {"environment": 1.0, "learn": 2.0})
    assert status_lines.busy_words(RECORD, only) == status_lines.worker_table(RECORD, only) == []


def test_a_table_of_fragments_streams_and_staleness() -> None:
    assert status_lines.worker_table({"staleness_mean": 1.5, "staleness_max": 4}, WORKERS) == [
        "actor x2  busy  75%  200 steps/s  waits for room for unrolls",
        "learner   busy  25%  10 updates/s  waits for unrolls",
        "streams filled: actor -> learner unrolls 12%",
        "staleness 1.50, highest 4",
    ]


def test_quiet_says_nothing() -> None:
    for stream in (io.StringIO(), Terminal()):
        with LiveView(100, quiet=True, title="ppo", stream=stream) as view:
            view.update(RECORD)
            view.note("checkpoint written")
        assert stream.getvalue() == ""


@pytest.mark.parametrize("total", [200_000, None])
def test_a_terminal_gets_a_bar_and_the_same_numbers(total: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with LiveView(total, title="ppo on [bold]Toy", stream=stream) as view:
        view.update(RECORD, WORKERS)
        view.note("checkpoint [written]")
        shows(stream, "2 min 30 s left" if total else "1,000 steps/s")  # what is drawn last has no time left
    text = stream.getvalue()
    wanted = [
        "ppo on [bold]Toy",
        "50,000",
        "return 21.2",
        "1,000 steps/s",
        "policy_loss",
        "actor x2  busy  75%",
        "streams filled: actor -> learner unrolls 12%",
        "checkpoint [written]",
    ]
    wanted += ["25%", "2 min 30 s left"] if total else []
    for words in wanted:
        assert words in text


def test_a_terminal_shows_in_its_bar_what_a_run_is_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with LiveView(100, stream=stream) as view:
        view.starting("compiling (4 s)")
        shows(stream, "compiling (4 s)")


def test_a_terminal_shows_what_training_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with LiveView(200_000, stream=stream) as view:
        view.update(RECORD)
        with view.pausing("evaluating at 50,000 steps"):
            shown = stream.getvalue()
            assert "50,000" in shown
            assert "evaluating at 50,000 steps" in shown
        view.update(RECORD)
        stream.seek(0)
        stream.truncate()
        shows(stream, "2 min 30 s left")
    assert "evaluating" not in stream.getvalue()


def test_the_last_event_stays_in_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with LiveView(100, stream=stream) as view:
        view.event("actor-0: killed by signal 9; restarted")
        view.event("actor-1: killed by signal 9; restarted")
        view.update({**RECORD, "restarts": 2})
    text = stream.getvalue()
    assert "last event: actor-1: killed by signal 9; restarted" in text
    assert "last event: actor-0" not in text
    assert "restarts 2" in text


class Closed(Terminal):
    """A terminal that was closed."""

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")

    def flush(self) -> None:
        raise OSError(5, "Input/output error")


def test_a_closed_terminal_does_not_stop_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for term in ("xterm", "dumb"):
        monkeypatch.setenv("TERM", term)
        with LiveView(100, title="ppo", stream=Closed()) as view:
            view.update(RECORD, WORKERS)
            view.note("checkpoint written")
            view.event("actor-1: killed")


def test_the_terminal_is_given_back_when_training_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with pytest.raises(RuntimeError), LiveView(100, stream=stream):
        raise RuntimeError
    assert stream.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is shown again


def test_returns_of_several_groups_are_shown_each() -> None:
    words = status_lines.numbers({"mean_return": 1.0, "return/hunters": 2.0, "return/prey": 0.0})
    assert words == ["return 1.00", "hunters 2.00", "prey 0"]


def test_a_few_metrics_of_the_environment_are_shown_rates_of_success_first() -> None:
    reported = {"env/a": 1.0, "env/b": None, "env/c": 3.0, "env/d": 4.0, "env/team/is_success": 0.5}
    words = status_lines.numbers({**RECORD, **reported})
    assert words[1:4] == ["team/is_success 0.500", "a 1.00", "c 3.00"]
    assert not any(word.startswith(("b ", "d ")) for word in words)
    result = {**RESULT, "env": {name.removeprefix("env/"): value for name, value in reported.items()}}
    assert "  reported    team/is_success 0.500, a 1.00, c 3.00" in summary(result).splitlines()


def test_a_closed_log_does_not_stop_a_run() -> None:
    stream = io.StringIO()
    with LiveView(100, stream=stream) as view:
        stream.close()
        view.update(RECORD)


def test_the_summary_says_how_it_went() -> None:
    text = summary(RESULT, "runs/a")
    for words in (
        "finished: ppo on CartPole-v1, inline, seed 3",
        "487.1",
        "500,000 in 1 min 3 s",
        "23,457 steps/s",
        "runs/a",
    ):
        assert words in text
    assert "resume" not in text


def test_the_summary_of_several_workers_names_the_bottleneck() -> None:
    workers = [worker.json() for worker in WORKERS.workers]
    told = {"staleness_mean": 1.5, "staleness_max": 4, "cut_episodes": 3, "bottleneck": "the learner: use --learners 2"}
    lines = summary({**RESULT, "workers": workers, **told}, "runs/a").splitlines()
    assert "  busy        actor x2 75%, learner 25%" in lines
    assert "  staleness   1.50, highest 4" in lines
    assert "  cut         3 episodes cut short" in lines
    assert "  bottleneck  the learner: use --learners 2" in lines
    unknown = summary({**RESULT, "workers": workers, "bottleneck": None})
    assert "  bottleneck  not known: the run was too short to see how long workers wait" in unknown.splitlines()
    assert "bottleneck" not in summary({**RESULT, "workers": workers[:1], "bottleneck": None})


def test_the_summary_says_what_broke() -> None:
    reasons = {"actor-0 killed by signal 9": 1, "actor-1 killed by signal 9": 3, "a": 1, "b": 1}
    told = {"restarts": 6, "restart_reasons": reasons, "environment_failures": 1_200, "cut_episodes": 1, "updates": 1}
    lines = summary({**RESULT, **told, "reason": "File too large"}, "runs/a").splitlines()
    why = "actor-1 killed by signal 9 x3; actor-0 killed by signal 9; a; and 1 more"
    assert f"  restarts    6: {why}" in lines
    assert "  failures    1,200 environment failures; see events.jsonl" in lines
    assert "  cut         1 episode cut short" in lines
    assert "  steps       500,000 in 1 min 3 s, 1 update" in lines
    assert "  reason      File too large" in lines


def test_the_summary_names_the_report_and_the_command_that_shows_the_run(tmp_path: Path) -> None:
    sweep = {"status": "finished", "trials": [], "trials_asked": 0, "best": None, "winner": None, "wall_seconds": 1.0}
    for text in (summary, members_summary, sweep_summary):
        result: Any = {summary: RESULT, members_summary: MEMBERS, sweep_summary: sweep}[text]
        run_dir = tmp_path / text.__name__ / "my run"
        run_dir.mkdir(parents=True)
        assert "report.html" not in text(result, run_dir)  # a run whose report could not be written
        (run_dir / "report.html").write_text("<!doctype html>")
        lines = text(result, run_dir).splitlines()
        assert f"  report      {run_dir}/report.html" in lines
        assert f"  watch by    runnel dash '{run_dir}'" in lines


def test_workers_that_have_not_reported_yet_are_not_called_idle() -> None:
    workers = [{"name": name, "fragment": name, "busy": None} for name in ("actor", "learner")]
    assert "busy" not in summary({**RESULT, "workers": workers})
    workers[1]["busy"] = 0.25
    assert "  busy        learner 25%" in summary({**RESULT, "workers": workers}).splitlines()


def test_older_results_call_the_fragment_of_a_worker_its_role() -> None:
    workers = [{"name": f"actor-{i}", "role": "actor", "busy": 0.5, "host": "a"} for i in range(2)]
    lines = summary({**RESULT, "workers": workers}).splitlines()
    assert "  busy        actor x2 50%" in lines
    assert "  machines    a: actor x2" in lines


def test_the_summary_of_an_interrupted_run_says_how_to_go_on() -> None:
    assert "runnel resume 'my runs/a'" in summary({**RESULT, "status": "interrupted"}, "my runs/a")


def test_the_summary_of_a_run_without_a_checkpoint_does_not() -> None:
    told = summary({**RESULT, "status": "interrupted", "resumable": False}, "a")
    assert "runnel resume" not in told
    assert "there is no checkpoint to resume from: train again with another --run-dir, or remove this" in told


def test_the_summary_of_a_run_without_an_episode() -> None:
    assert "no episode ended" in summary({**RESULT, "mean_return": None, "episodes": 0})


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (487.123, "487.1"),
        (-212.34, "-212.3"),
        (1.5, "1.50"),
        (0.0123, "0.0123"),
        (12345.6, "12346"),
        (1e-9, "1.00e-09"),
    ],
)
def test_numbers_are_short(number: float, text: str) -> None:
    assert number_words.short(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0.4 s"), (59.7, "1 min"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (90_000, "1 d 1 h")],
)
def test_durations_have_two_units(seconds: float, text: Any) -> None:
    assert number_words.duration(seconds) == text


def test_the_best_evaluation_is_named_with_its_score_and_never_something_else_of_a_file() -> None:
    found = {"mean_return": 2.0, "env_steps": 1024, "score": -3.0}
    assert "  evaluated   2.00, score -3.00, at 1,024 steps: runs/a@best" in summary({"best": found}, "runs/a")
    assert "  evaluated   2.00 at 1,024 steps: runs/a@best" in summary({"best": {**found, "score": 2.0}}, "runs/a")
    for wrong in ({**found, "env_steps": "many"}, {**found, "mean_return": None}, {}, [found]):
        assert "@best" not in summary({"best": wrong}, "runs/a")


# Several runs

MEMBERS: dict[str, Any] = {
    "status": "finished", "algorithm": "ppo", "environment": "CartPole-v1", "distribution": "fused", "members": 3,
    "finished": 3, "env_steps": 150_000, "wall_seconds": 63.2, "without_return": 0, "iqm_return": 210.4,
    "iqm_interval": [180.0, 240.0], "median_return": 211.0, "mean_return": 205.0, "min_return": 150.0,
    "max_return": 260.0, "runs": [{"directory": f"member-{k}"} for k in range(3)],
}  # fmt: skip


def test_the_line_of_several_runs_has_the_median_and_the_quartiles() -> None:
    stream = io.StringIO()
    with LiveView(200_000, stream=stream, clock=Clock()) as view:
        view.update({**RECORD, "return_quartiles": [10.0, 30.0]})
    assert "  return 21.2 (10.0 to 30.0)  1,000 steps/s" in stream.getvalue().splitlines()[-1]


def test_the_summary_of_several_runs_has_their_interval_and_their_spread() -> None:
    text = members_summary(MEMBERS, "runs/all")
    assert "finished: ppo on CartPole-v1, fused, 3 members" in text
    assert "210.4 (180.0 to 240.0, 95%), interquartile mean" in text
    assert "median 211.0, from 150.0 to 260.0" in text
    assert "finished    all" in text
    assert "150,000 in 1" in text
    assert "left out" not in text


def test_the_summary_of_several_runs_names_those_that_failed() -> None:
    failed = {"directory": "member-1", "reason": "the loss was not finite"}
    runs = [{"directory": "member-0"}, failed, {"directory": "member-2"}]
    text = members_summary(
        {**MEMBERS, "status": "failed", "finished": 2, "without_return": 1, "runs": runs}, "runs/all"
    )
    assert "finished    2 of 3" in text
    assert "left out    1 member without a return" in text
    assert "member-1   the loss was not finite" in text


def test_the_summary_of_several_runs_without_an_episode() -> None:
    without = {name: value for name, value in MEMBERS.items() if not name.endswith(("return", "interval"))}
    assert "no episode ended" in members_summary({**without, "without_return": 3}, "runs/all")
