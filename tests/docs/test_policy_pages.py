"""Every code block of the pages about policies, evaluation and several runs runs, in the order of the page."""

import re
import shlex

import pytest
from paths import EXAMPLES, ROOT

from runnel.cli.main import main

SLOW = ("many-runs.md", "sweeps.md", "populations.md", "self-play.md", "league.md")
PAGES = ("use-a-policy.md", "evaluate.md", *(pytest.param(page, marks=pytest.mark.slow) for page in SLOW))
BLOCK = re.compile(r"^```(python|)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs(page: str, tmp_path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    blocks = BLOCK.findall((ROOT / "docs" / page).read_text())
    assert len(blocks) >= 4
    names: dict[str, object] = {}
    for language, block in blocks:
        if language == "python":
            exec(compile(block, page, "exec"), names)
            continue
        for line in block.splitlines():
            program, *arguments = shlex.split(line)
            assert program == "runnel"
            assert main([*arguments, *(["--quiet"] if arguments[0] in ("train", "sweep") else [])]) == 0, line
    printed = capsys.readouterr().out
    if page == "use-a-policy.md":
        assert "True" in printed  # the policy that was saved acts like the one it was saved from
        assert "latest" in printed
    elif page == "evaluate.md":
        assert "95%" in printed
    elif page == "sweeps.md":
        assert "interquartile mean of 4 unseen seeds" in printed
    elif page == "many-runs.md":
        assert "runs/fast over runs/slow: " in printed
