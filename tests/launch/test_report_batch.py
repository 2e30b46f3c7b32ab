"""The reports of many workers travel as few messages, and say as much as if each had travelled alone."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from runnel.launch.agent import HostAgent
from runnel.launch.agent_messages import FromWorker, FromWorkers, LogTexts, Pulse, parse_news
from runnel.launch.framing import Received
from runnel.launch.report_batch import ReportBatch
from runnel.launch.standalone import StandaloneProcesses
from runnel.runtime.control_messages import EpisodesEnded, Paused, Saved, Status, parse_report
from runnel.runtime.workers.usage_meter import UsageMeter


def status(elapsed_s: float, phase: str = "working", steps: float = 0.0) -> dict:
    return Status(phase, elapsed_s, {"room": elapsed_s / 2}, {"env_steps": steps}).to_json()  # type: ignore[arg-type]


def test_of_a_worker_the_newest_status_of_each_phase_is_kept_and_episodes_are_added_up() -> None:
    batch = ReportBatch()
    for k in (1.0, 2.0, 3.0):
        batch.add("a", 0, EpisodesEnded({"return": (k, 1), f"at {k:.0f}": (1.0, 2)}).to_json())
        batch.add("a", 0, status(k, "compiling"))
        batch.add("b", 0, status(k))
    batch.add("a", 0, status(0.1))
    batch.add("a", 0, status(0.2))
    assert not batch.urgent
    found = [(worker, parse_report(message)) for worker, _, message in batch.take()]
    sums = {"return": (6.0, 3), "at 1": (1.0, 2), "at 2": (1.0, 2), "at 3": (1.0, 2)}
    assert found == [
        ("a", EpisodesEnded(sums)),
        ("a", parse_report(status(3.0, "compiling"))),
        ("b", parse_report(status(3.0))),
        ("a", parse_report(status(0.2))),
    ]
    assert batch.take() == []


def test_what_a_run_waits_for_is_urgent_and_comes_after_what_was_held() -> None:
    batch = ReportBatch()
    batch.add("a", 0, status(1.0))
    batch.add("a", 0, Paused(3).to_json())
    assert batch.urgent
    assert [message["type"] for _, _, message in batch.take()] == ["status", "paused"]
    assert not batch.urgent


def test_a_replacement_and_the_worker_before_it_are_two() -> None:
    batch = ReportBatch()
    for life in (0, 1):
        batch.add("a", life, EpisodesEnded({"return": (1.0, 1)}).to_json())
        batch.add("a", life, status(1.0))
    assert [life for _, life, _ in batch.take()] == [0, 0, 1, 1]


def test_reports_that_cannot_be_read_are_passed_on() -> None:
    batch = ReportBatch()
    for sums in ("none", {"return": [1.0, 1]}, {"return": "many"}):
        batch.add("a", 0, {"type": "episodes_ended", "sums": sums})
    assert [message["sums"] for _, _, message in batch.take()] == ["none", {"return": [1.0, 1]}, {"return": "many"}]


def test_usage_is_the_same_for_the_statuses_that_are_left() -> None:
    reports = [status(k / 10, steps=k) for k in range(60)]
    clock = SimpleNamespace(now=0.0)

    def usage(statuses: list[dict]) -> object:
        meter = UsageMeter({"a": "actor"}, [], lambda: clock.now)
        for each in statuses:
            meter.add("a", parse_report(each))  # type: ignore[arg-type]
        return meter.report().workers

    batch, left = ReportBatch(), []
    for k, each in enumerate(reports):
        batch.add("a", 0, each)
        if k == 0 or k % 3 == 2:
            left += [message for _, _, message in batch.take()]
    assert len(left) == 21
    assert usage(left) == usage(reports)


class _Process:
    """A worker of an agent that has sent messages, and written to its log."""

    def __init__(self, name: str, messages: list[Received], log: Path):
        self.name, self.control, self._messages, self.log = name, self, messages, log
        log.write_text(f"{name} was here\n")

    def receive(self) -> Received | None:
        return self._messages.pop(0) if self._messages else None

    def ended(self) -> bool:
        return False

    def stopped(self) -> bool:
        return False


class _Host:
    """A machine's workers."""

    def __init__(self, processes: dict[str, _Process]):
        self.processes, self.watch, self.streams = processes, self, {}

    def poll(self, seconds: float) -> set[str]:
        return {*self.processes}

    def beats(self, name: str) -> int:
        return 1

    def oom_kills(self) -> int:
        return 0


@pytest.mark.parametrize("workers", [2, 50])
def test_a_machine_sends_as_many_messages_a_pulse_however_many_workers_it_has(workers: int, tmp_path: Path) -> None:
    sent: list = []
    agent = object.__new__(HostAgent)
    names = [f"actor-{i}" for i in range(workers)]
    ended = EpisodesEnded({"return": (1.0, 1)}).to_json()
    messages = [[Received(status(1.0)), Received(ended), Received(status(2.0))] for _ in names]
    agent.logs, agent.lives = tmp_path, dict.fromkeys(names, 0)
    agent.host = _Host(
        {name: _Process(name, own, tmp_path / f"{name}.log") for name, own in zip(names, messages, strict=True)}
    )  # type: ignore[assignment]
    agent.standalone = StandaloneProcesses(tmp_path)
    agent.courier = SimpleNamespace(rejected=lambda: {"reasons": {}, "addresses": {}})  # type: ignore[assignment]
    agent.mail = SimpleNamespace(send=lambda value, arrays=None: sent.append(parse_news(value)))  # type: ignore
    agent._ended, agent._read, agent._pulsed, agent._reports = set(), {}, 0.0, ReportBatch()
    agent._relay(agent._speaking())
    assert sent == []
    agent._pulse()
    logs, reports, pulse = sent
    assert isinstance(logs, LogTexts)
    assert isinstance(reports, FromWorkers)
    assert isinstance(pulse, Pulse)
    assert len(reports.reports) == 2 * workers
    assert logs.texts == {name: f"{name} was here\n" for name in names}
    assert {*pulse.beats} == {*names}
    sent.clear()
    agent.host.processes["actor-1"]._messages += [Received(status(3.0)), Received(Paused(3).to_json())]  # type: ignore
    agent._relay(["actor-1"])
    (paused,) = sent
    assert [message["type"] for _, _, message in paused.reports] == ["status", "paused"]
    sent.clear()
    saved = Received(Saved().to_json(), (), {"x": np.zeros(1)})
    agent.host.processes["actor-1"]._messages += [Received(status(4.0)), saved]  # type: ignore
    agent._relay(["actor-1"])
    assert [type(each) for each in sent] == [FromWorkers, FromWorker]
