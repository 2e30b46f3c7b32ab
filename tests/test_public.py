"""What `import runnel` offers."""

import subprocess
import sys

import runnel


def test_everything_public_is_shown_and_is_there() -> None:
    assert dir(runnel) == sorted(runnel.__all__)
    assert {"train", "resume", "build", "Algorithm", "Run", "UserError"} <= set(dir(runnel))
    for name in runnel.__all__:
        assert getattr(runnel, name) is not None


def test_names_can_be_completed_before_anything_is_imported() -> None:
    code = (
        "import rlcompleter, sys, runnel\n"
        "complete = rlcompleter.Completer({'runnel': runnel}).attr_matches\n"
        "assert 'runnel.train(' in complete('runnel.tr'), complete('runnel.tr')\n"
        "assert not [name for name in dir(runnel) if name in ('importlib', 'Any', 'TYPE_CHECKING')]\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "'jax'" not in subprocess.run(
        [sys.executable, "-c", "import sys, runnel; dir(runnel); print(list(sys.modules))"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
