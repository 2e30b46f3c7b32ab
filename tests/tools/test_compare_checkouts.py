"""Two checkouts are compared: every difference is found, and fails."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools import compare_checkouts as compare

RUN = {"counters": {"updates": 8}, "arrays": {"state params": "aa", "state count": "bb"}}


@pytest.mark.parametrize(
    ("new", "found"),
    [
        (RUN, []),
        (None, ["only on the old side"]),
        ({"refused": "no"}, ["refused on the new side alone: no"]),
        (RUN | {"counters": {"updates": 9}}, ["updates: 8, 9"]),
        (RUN | {"arrays": {"state params": "aa", "state count": "cc"}}, ["state count: bb, cc"]),
        (RUN | {"arrays": {"state params": "aa"}}, ["state count: bb, absent"]),
    ],
)
def test_every_difference_is_named(new: dict[str, Any] | None, found: list[str]):
    assert compare.differences(RUN, new) == found


def test_refusals_in_other_words_are_no_difference():
    assert compare.differences({"refused": "no"}, {"refused": "it cannot be"}) == []


@pytest.mark.parametrize(("hash_", "status"), [("aa", 0), ("cc", 1)])
def test_the_exit_status_says_whether_runs_differ(tmp_path: Path, hash_: str, status: int):
    for name, array in (("old", "aa"), ("new", hash_)):
        runs = {"ppo, inline": {"counters": {}, "arrays": {"state params": array}}}
        (tmp_path / name).write_text(json.dumps({"about": {}, "runs": runs}))
    command = [sys.executable, compare.__file__, "diff", tmp_path / "old", tmp_path / "new"]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == status


def test_a_digest_depends_on_type_shape_and_bits():
    arrays = [
        np.zeros(2, np.float32),
        np.zeros((1, 2), np.float32),
        np.zeros(2, np.int32),
        np.array([0, -0.0], np.float32),
    ]
    assert len({compare.digest(array) for array in arrays}) == len(arrays)


@pytest.mark.slow
def test_training_again_gives_the_same_hashes_and_another_seed_others():
    task = compare.CARTPOLE._replace(steps=128)
    first, again, other = (compare.trained("reinforce", task, compare.SMALL, "inline", seed) for seed in (1, 1, 2))
    assert not compare.differences(first, again)
    changed = " ".join(compare.differences(first, other))
    assert all(part in changed for part in ("params", "seed"))
