"""What shells are told to offer, in real shells, without JAX."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from commands import run_command
from paths import ROOT

from runnel.cli.shells import SHELLS


@pytest.fixture
def offered(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is offered after some words, in a directory with runs."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "mine"
    (run / "policies").mkdir(parents=True)
    (run / "config.json").write_text("{}")
    (run / "policies" / "tags.json").write_text(json.dumps({"champion": {}, "evil\n$(touch pwned)": {}}))
    (tmp_path / "runs" / "more").mkdir()
    (tmp_path / "runs" / "notes.txt").write_text("")
    (tmp_path / "mine.py").write_text("raise SystemExit('executed')\n")
    (tmp_path / "mixed.py").write_text("raise SystemExit('executed')\nclass Two(runnel.distributions.Async): pass\n")

    def ask(*words: str) -> list[str]:
        ended = run_command(capsys, "_complete", "zsh", *words)
        assert (ended.status, ended.err) == (0, "")
        return ended.out.split()

    return ask


def test_every_kind_of_word_is_offered(offered: Any, tmp_path: Path) -> None:
    assert {"train", "doctor", "completion", "--version"} <= set(offered(""))
    assert offered("tr") == ["train"]
    assert offered("nonsense", "") == []
    assert offered("train", "pp") == ["ppo"]
    assert offered("train", "mi") == ["mine:", "mixed:"]
    assert offered("train", "ppo", "X", "--distribution", "mi") == ["mixed:"]
    assert offered("train", "ppo", "CartPole") == ["CartPole-v0", "CartPole-v1"]
    assert offered("train", "ppo", "gymnax:CartP") == ["gymnax:CartPole-v1"]
    assert offered("train", "ppo", "jaxmarl:3s5z_") == ["jaxmarl:3s5z_vs_3s6z"]
    assert offered("train", "--seed", "3", "impal") == ["impala"]
    assert offered("train", "ppo", "X", "--distribution", "co") == ["coarse"]
    assert offered("train", "ppo", "X", "--distribution=co") == ["--distribution=coarse"]
    assert offered("train", "ppo", "X", "--on-nan", "") == ["rollback", "skip", "stop"]
    assert offered("train", "ppo", "X", "--metrics-") == ["--metrics-address", "--metrics-port"]
    assert offered("train", "ppo", "X", "--set", "learning_r") == ["learning_rate="]
    assert offered("train", "impala", "X", "--set", "unroll=2", "memory=") == [
        "memory=gru",
        "memory=lstm",
        "memory=none",
    ]
    assert offered("train", "impala", "X", "--set", "unroll=2", "--see") == ["--seed", "--seeds"]
    assert "distribution.env_splits=" in offered("train", "ppo", "X", "--distribution", "fine", "--set", "dist")
    assert offered("resume", "runs/") == ["runs/mine", "runs/more/"]
    assert offered("eval", "runs/mine@") == ["runs/mine@best", "runs/mine@champion", "runs/mine@latest"]
    assert offered("policies", "runs/mine", "--untag", "ch") == ["champion"]
    assert offered("train", "ppo", "X", "--frozen", "prey=runs/m") == ["prey=runs/mine", "prey=runs/more/"]
    assert offered("plot", "runs/mine", "--out", "runs/n") == ["runs/notes.txt"]
    assert offered("plot", "runs/mine", "runs/m") == ["runs/mine", "runs/more/"]
    assert offered("help", "faults#when-a-n") == ["faults#when-a-number-is-not-finite"]
    assert offered("completion", "") == ["bash", "fish", "zsh"]
    assert not (tmp_path / "pwned").exists()


def test_jax_is_not_imported_and_nothing_of_the_users_is_executed(tmp_path: Path) -> None:
    lines = ["runnel train ppo gymnax:C", "runnel train ppo CartP", "runnel train ppo X --set ", "runnel eval ./"]
    code = (
        "import sys\nfrom runnel.cli.main import main\n"
        f"for line in {lines!r}:\n    assert main(['_complete', 'bash', line]) == 0\n"
        "assert not {'jax', 'flax', 'numpy.random'} & {'jax', 'flax'} & set(sys.modules), 'it imports JAX'\n"
    )
    (tmp_path / "gymnasium.py").write_text("raise SystemExit('executed')\n")
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "Pong" not in ended.stdout
    assert "learning_rate=" in ended.stdout or "rate=" in ended.stdout


def in_bash(line: str, cwd: Path) -> list[str]:
    """What bash would insert for the last word, which it begins anew at a colon, an equals sign or an @."""
    script = (
        f'runnel() {{ "{sys.executable}" -m runnel "$@"; }}\n'
        f"{SHELLS['bash']}\n"
        f"COMP_LINE={line!r}; COMP_POINT=${{#COMP_LINE}}; _runnel\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    ended = subprocess.run(
        ["bash", "-c", script], cwd=cwd, capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(cwd)},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_replaces_what_follows_a_colon(tmp_path: Path) -> None:
    (tmp_path / "a run").mkdir()
    (tmp_path / "$(touch pwned)").mkdir()
    assert in_bash("runnel train ppo gymnax:CartP", tmp_path) == ["CartPole-v1"]
    assert in_bash("runnel train ppo 'Cart", tmp_path) == ["CartPole-v0", "CartPole-v1"]
    assert "$(touch" in " ".join(in_bash("runnel eval ", tmp_path))
    assert not (tmp_path / "pwned").exists()


ZSH = """
compdef() { :; }
compadd() { [[ $1 == -S ]] && shift 2; shift; (( $# )) && print -l -- "$@"; return 0; }
runnel() { "$PYTHON" -m runnel "$@"; }
eval "$SCRIPT"
words=("$@") CURRENT=$# _runnel
"""
"""Outside of its line editor zsh has no `compadd`, which takes what is offered."""

FISH = """
function runnel; $PYTHON -m runnel $argv; end
eval (string collect -- $SCRIPT)
complete --do-complete "$argv"
"""


def in_shell(shell: str, words: list[str], cwd: Path) -> list[str]:
    """What zsh or fish are given to offer for the last word."""
    environ = {
        "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(cwd), "PYTHON": sys.executable,
        "SCRIPT": SHELLS[shell],
    }  # fmt: skip
    path = str(shutil.which(shell))
    (cwd / f".{shell}").write_text(ZSH if shell == "zsh" else FISH)
    command = [path, "-f", f".{shell}", *words] if shell == "zsh" else [path, "-N", f".{shell}", " ".join(words)]
    ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=environ, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    return [line.partition("\t")[0] for line in ended.stdout.splitlines()]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_offer_what_runnel_says(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    (tmp_path / "$(touch pwned)").mkdir()
    assert in_shell(shell, ["runnel", "tr"], tmp_path) == ["train"]
    assert in_shell(shell, ["runnel", "train", "ppo", "gymnax:CartP"], tmp_path) == ["gymnax:CartPole-v1"]
    assert in_shell(shell, ["runnel", "train", "ppo", "X", "--set", "learning_r"], tmp_path) == ["learning_rate="]
    assert "$(touch pwned)/" in in_shell(shell, ["runnel", "eval", ""], tmp_path)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(("shell", "check"), [("zsh", "-n"), ("fish", "--no-execute"), ("bash", "-n")])
def test_scripts_are_what_the_shell_reads(
    shell: str, check: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    printed = partial(run_command, capsys)("completion", shell)
    assert printed == (0, SHELLS[shell], "")
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    (tmp_path / "script").write_text(printed.out)
    ended = subprocess.run([shell, check, str(tmp_path / "script")], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
