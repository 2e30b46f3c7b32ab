"""Nothing that a run directory, a worker or an environment says controls the terminal it is shown on."""

import io
import json
import os
import stat

import pytest
from toys import Reinforce

import runnel
from runnel.cli import main as cli
from runnel.errors import EnvironmentFailed, RunFailed, UserError, WorkerFailed, printable
from runnel.recording import events
from runnel.reporting.live_view import LiveView
from runnel.reporting.run_summary import summary
from runnel.runtime.usage import UsageReport

EVIL = "\x1b]0;owned\x07\x1b[2Jx\x9b31m\x7f\r\u202egnp.\u2066\u200b\ud800"


def tame(text):
    return not any(c != "\n" and not c.isprintable() for c in text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, 1,000 steps", "plain, 1,000 steps"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("ünïcode 東京 🙂", "ünïcode 東京 🙂"),
        ("\x1b[31m\x00\x7f\x9b", r"\x1b[31m\x00\x7f\x9b"),
        ("a\rb", r"a\rb"),
        ("\u202e\u2066\u2028\ud800\ufeff", r"\u202e\u2066\u2028\ud800\ufeff"),
    ],
)
def test_what_is_not_seen_is_shown_as_an_escape(text, shown):
    assert printable(text) == shown


@pytest.mark.parametrize("kind", [UserError, RunFailed, WorkerFailed, EnvironmentFailed])
def test_errors_quote_anything(kind):
    assert tame(str(kind(f"found {EVIL}")))


@pytest.mark.parametrize("terminal", [False, True])
def test_the_live_view_shows_anything(terminal, monkeypatch):
    class Stream(io.StringIO):
        def isatty(self):
            return terminal

    monkeypatch.setenv("TERM", "xterm")
    stream = Stream()
    record = {"env_steps": 10, "mean_return": 1.0, f"learn/{EVIL}": 2.0, f"return/{EVIL}": 1.0}
    with LiveView(100, title=f"ppo on {EVIL}", stream=stream) as view:
        view.note(f"note {EVIL}")
        view.event(f"event {EVIL}")
        view.update(record, UsageReport())
    shown = stream.getvalue()
    assert r"\x1b]0;owned" in shown
    for piece in ("\x1b]0;", "\x1b[2Jx", "\x9b", "\u202e", "\u2066", "\x07", "\x7f"):
        assert piece not in shown


def test_a_summary_and_an_event_tell_anything():
    evil = dict.fromkeys(("algorithm", "environment", "distribution", "seed", "reason", "bottleneck"), EVIL)
    result = {"status": "interrupted", "restarts": 2, "restart_reasons": {EVIL: 2}, "mean_return": 1.0, **evil}
    assert tame(summary({**result, "group_returns": {EVIL: 1.0}, "run_dir": EVIL}))
    assert EVIL not in json.dumps({"event": EVIL})  # as events.jsonl has it


@pytest.fixture
def run_dir(tmp_path):
    """With escapes in all that a stranger can write into it."""
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "algorithm": {"class": f"runnel.algorithms.ppo:{EVIL}", "settings": {EVIL: EVIL}},
                "environment": {"name": f"{EVIL}-v1", "settings": {EVIL: EVIL}},
                "distribution": {"class": "runnel.distributions.inline:Inline", "settings": {}},
                "envs": 2, "steps": 10, "seed": 0, "stop_at_return": None, "checkpoint_every_s": 60.0,
            }
        )
    )  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"env_steps": 1, "mean_return": EVIL}) + "\n")
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [["eval"], ["eval", "--json"], ["resume"], ["plot", "--out", "x.png"], ["train", EVIL, EVIL, "--run-dir"]],
)
def test_commands_on_a_run_full_of_escapes(command, run_dir, capsys, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    argv = [command[0], str(run_dir), *command[1:]] if command[0] != "train" else [*command, str(run_dir)]
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert err
    assert tame(out)
    assert tame(err)


@pytest.mark.parametrize(("umask", "file", "folder"), [(0o027, 0o640, 0o750), (0o002, 0o664, 0o775)])
def test_a_run_directory_honours_the_umask(umask, file, folder, tmp_path):
    before = os.umask(umask)
    try:
        run_dir = tmp_path / "runs" / "run"
        runnel.train(Reinforce(), "toys:Corridor", "fused", envs=4, steps=96, run_dir=run_dir, quiet=True)
        events.EventLog(run_dir).record("restart")
    finally:
        os.umask(before)
    there = [path for path in (tmp_path / "runs").rglob("*") if not path.is_symlink()]
    assert {path.name for path in there} > {"config.json", "metrics.jsonl", "events.jsonl", "result.json", ".lock"}
    for path in there:
        assert stat.S_IMODE(path.stat().st_mode) == (folder if path.is_dir() else file), path
        assert not path.is_socket()
