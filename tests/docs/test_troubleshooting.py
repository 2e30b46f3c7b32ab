"""What the page about troubleshooting quotes is what the code prints, and its numbers are those that were measured."""

import json
import re
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from paths import ROOT

from runnel.cli import doctor, doctor_checks
from runnel.execution.session.end import SessionEnd
from runnel.reporting.bottleneck import FragmentSetting, RunSetting, bottleneck
from runnel.runtime.usage import single_process_usage
from runnel.system import startup

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
SLOW = PAGE.partition("## Slow start\n")[2].partition("\n## ")[0]
IDLE = PAGE.partition("## The GPU or the cores are idle\n")[2].partition("\n## ")[0]
SENTENCES = re.findall(r"^\| `([^`]+)` \|", IDLE, re.M)


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_sentence_about_an_idle_gpu_is_the_one_that_a_run_prints(sentence):
    shares = {name: float(share) for name, share in re.findall(r"(\w+) (\d+)%", sentence)}
    process = FragmentSetting("process", 1, frozenset({"environment", "act", "rollout", "learn"}))
    of = RunSetting(flags={}, fragments=(process,), envs=8, column_blocks=8, cpus=2, gpus=1, host=bool(shares))
    assert bottleneck(single_process_usage("process", shares or {"program": 1.0}), of) == sentence


def test_the_speeds_of_more_environments_are_measured():
    measured = (ROOT / "docs" / "performance.md").read_text().partition("## Measured")[2]
    (found,) = re.findall(r"from ([\d,]+) to ([\d,]+) of .* ([\d.]+) M to ([\d.]+) M steps/s", IDLE)
    fewer, more, slow, fast = found
    for envs, speed in ((fewer, slow), (more, fast)):
        assert re.search(rf"gymnax CartPole-v1, {envs} environments \| H200 \|[^|]*\|[^|]*\| {speed} M \|", measured)


def test_doctor_says_that_a_gpu_is_unused_as_the_page_has_it():
    check = doctor_checks.gpus(["/dev/nvidia0"], ["cpu"], {})
    assert "\n".join(doctor.lines(check)) in IDLE


def test_the_phases_of_a_slow_start_are_those_of_the_code():
    (every_s,) = re.findall(r"^EVERY_S = ([\d.]+)$", Path(startup.__file__).read_text(), re.M)  # tests change its value
    assert f"printed nothing for {float(every_s):g} seconds" in SLOW
    shown = re.findall(r"^(.+) \((\d+) s\)$", SLOW, re.M)
    assert [int(seconds) for _, seconds in shown] == [float(every_s) * k for k in (1, 2, 4)]
    source = "\n".join(path.read_text() for path in (ROOT / "runnel").rglob("*.py"))
    first, tracing, compiling = (text for text, _ in shown)
    assert f'"{first}"' in source
    assert tracing == "tracing Reinforce"
    assert 'startup.phase(f"tracing {type(chosen).__name__}")' in source
    unwatched: Any = SimpleNamespace(watch=None)
    assert SessionEnd.at_start(unwatched) == compiling


def test_the_seconds_of_a_slow_start_are_measured():
    found = json.loads((ROOT / "benchmarks" / "results" / "startup-cpu-2026-11-15.json").read_text())
    cold, warm = re.findall(r"\| ([\d.]+) \| (?:`benchmarks/startup.py`|the same)", SLOW)
    assert float(cold) == round(found["cold"]["process_s"], 1)
    assert float(warm) == round(statistics.median(run["process_s"] for run in found["warm"]), 1)
    assert f"median of {'five' if len(found['warm']) == 5 else len(found['warm'])} runs" in SLOW
    measured = (ROOT / "docs" / "performance.md").read_text().partition("## Measured")[2]
    took = {
        (task, machine): [int(one) for one in seconds]
        for task in ("CartPole-v1", "Breakout-MinAtar") for machine in ("2 cores", "H200")
        if (seconds := re.findall(rf"gymnax {task}, [^|]+\| {machine} \|.* / (\d+) s \|$", measured, re.M))
    }  # fmt: skip
    said = r"(\d+) s for PPO on gymnax CartPole-v1, (\d+) s on Breakout-MinAtar, and on an H200 (\d+) to (\d+) s"
    (found,) = re.findall(said, SLOW)
    cartpole, breakout, least, most = map(int, found)
    assert {cartpole} == set(took["CartPole-v1", "2 cores"])
    assert {breakout} == set(took["Breakout-MinAtar", "2 cores"])
    on_gpu = took["CartPole-v1", "H200"] + took["Breakout-MinAtar", "H200"]
    assert (least, most) == (min(on_gpu), max(on_gpu))
