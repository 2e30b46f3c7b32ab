"""What docs/learning.md says in words of its tables is what the raw results have."""

import json
import re
from collections import defaultdict

from paths import ROOT

PAGE = (ROOT / "docs" / "learning.md").read_text()
TASKS = {"memory-*": "1,000", "smax-*": "100", "spread-*": "100", "*-10m-ppo": "100", "pong-*": "5", "*": "20"}
"""Whose last policy played how many episodes: the first pattern that fits."""


def test_the_page_says_how_many_episodes_were_played_greedily():
    (said,) = re.findall(
        r"a mean over ([\d,]+) episodes in the memory task, (.*?) in SMAX, simple_spread and the Atari runs of 10 "
        r"million steps, (.*?) in Pong to 18 points and (.*?) in all other tasks",
        " ".join(PAGE.split()),
    )
    assert said == tuple(TASKS[pattern] for pattern in ("memory-*", "smax-*", "pong-*", "*"))
    played = defaultdict(set)
    for path in (ROOT / "benchmarks" / "results").glob("learning-*.json"):
        for task, seeds in json.loads(path.read_text())["tasks"].items():
            played[task] |= {f"{result['evaluation']['episodes']:,}" for result in seeds.values()}
    fitting = {
        task: next(count for pattern, count in TASKS.items() if re.fullmatch(pattern.replace("*", ".*"), task))
        for task in played
    }
    assert played == {task: {count} for task, count in fitting.items()}
