"""The imports of a command before its first output: importing JAX alone takes seconds on a busy machine."""

import subprocess
import sys
from pathlib import Path

import pytest

LARGE = {
    "jax", "jaxlib", "flax", "optax", "orbax", "numpy", "scipy", "gymnasium", "matplotlib", "rich",
    "asyncio", "email", "socket", "subprocess",  # of Python's own library
}  # fmt: skip


def imported(*words: str | Path, until: str | None = None) -> tuple[set[str], str]:
    """The top-level modules that a command has imported when it prints its first line (or has ended), and that line."""
    command = [sys.executable, "-X", "importtime", "-m", "runnel", *map(str, words)]
    found, line = set(), ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith("import time:"):
                    found.add(line.rpartition("|")[2].strip().partition(".")[0])
                elif until is not None:
                    break
        finally:
            if until is not None:
                process.kill()
    return found, line.strip()


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"]], ids=" ".join)
def test_help_imports_nothing_large(words: list[str]) -> None:
    modules, _ = imported(*words)
    assert "runnel" in modules
    assert not modules & LARGE


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["train", "ppo", "CartPole-v1"], "training ppo on CartPole-v1"),
        (["sweep", "ppo", "CartPole-v1", "--over", "learning_rate=log:1e-4:1e-2"], "sweeping ppo on CartPole-v1"),
        (["train", "--config", "runs/mine/config.json"], "training runs/mine/config.json"),
        (["resume", "runs/mine"], "resuming runs/mine"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_run_says_what_it_is_about_to_do_before_it_imports_anything_large(
    words: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    modules, said = imported(*words, until="the first line")
    assert said == line
    assert "runnel" in modules
    assert not modules & LARGE
