"""Curves of several runs, by any metric."""

import json

import numpy as np
import pytest
from made_runs import make_members, make_run, write

from runnel.recording import members_file
from runnel.reporting import group_curves, group_view, report
from runnel.reporting.run_view import run_view


def record(path, values, metric="learn/entropy"):
    """A member's metrics: a value every 100 steps."""
    lines = [json.dumps({"env_steps": 100 * i, metric: value}) for i, value in enumerate(values)]
    (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def test_a_band_of_any_metric_has_the_mean_and_the_quartiles_of_its_members(tmp_path):
    group = make_members(tmp_path / "group", seeds=5)
    for k, level in enumerate((0.0, 1.0, 2.0, 3.0, 40.0)):
        record(group / f"member-{k}", [level + i for i in range(20 + k)])
    (band,) = run_view(group)["bands"]["learn/entropy"]
    assert (band["members"], band["steps"][0], band["steps"][-1]) == (5, 0, 1900)
    at = np.array(band["steps"]) / 100
    assert band["values"] == pytest.approx(2 + at, rel=1e-3)  # of the middle three
    assert band["low"] == pytest.approx(1 + at, rel=1e-3)
    assert band["high"] == pytest.approx(3 + at, rel=1e-3)
    evaluated = run_view(group)["bands"]["eval/return"][0]
    assert (evaluated["steps"][0], evaluated["values"][0], evaluated["values"][-1]) == (1000, 70, 90)


def test_members_of_each_of_their_settings_have_a_band_of_one_colour(tmp_path):
    group = make_members(tmp_path / "group")
    found = json.loads((group / "members.json").read_text())
    for each, rate in zip(found["members"], (0.1, 0.2, 0.2), strict=True):
        each["settings"] = {"learning_rate": rate}
    write(group, "members.json", found)
    record(group / "member-0", [])
    bands = run_view(group)["bands"]
    named = {metric: [(b["name"], b["members"], b["colour"]) for b in found] for metric, found in bands.items()}
    assert named["eval/return"] == [("learning_rate=0.1", 1, 0), ("learning_rate=0.2", 2, 1)]
    assert named["mean_return"] == named["learn/value_loss"] == [("learning_rate=0.2", 2, 1)]
    listed = members_file.read(group)
    lines, names = group_curves.compared(group, listed, "eval/return")
    assert [(line["name"], line["values"][0], settings) for line, settings in lines] == [
        ("learning_rate=0.1", 70, {"learning_rate": "0.1"}), ("learning_rate=0.2", 70, {"learning_rate": "0.2"}),
    ]  # fmt: skip
    assert {"eval/return", "learn/value_loss", "mean_return"} <= names
    assert [line for line, _ in group_curves.compared(group, listed, "nothing")[0]] == [
        {"name": "learning_rate=0.1"}, {"name": "learning_rate=0.2"}
    ]  # fmt: skip


def test_stacked_members_have_the_metrics_that_a_stack_keeps_of_each(tmp_path):
    group = make_members(tmp_path)
    write(group, "stacks.json", {"stacks": [[0, 1, 2]]})
    line = {"env_steps": 100, "members": [0, 1, 2]}
    later = {**line, "env_steps": 300, "returns": [2.0, None, 7.0]}
    write(group / "stack-0", "returns.jsonl", {**line, "returns": [1.0, 2.0, 3.0]})
    with (group / "stack-0" / "returns.jsonl").open("a") as file:
        file.write("\n" + json.dumps(later) + "\n")
    write(group / "stack-0", "evaluations.jsonl", {**line, "returns": [[3.0, 5.0], [4.0], [4.0]], "scores": [1, 1, 1]})
    bands = run_view(group)["bands"]
    assert list(bands) == ["mean_return", "eval/return"]
    assert (bands["mean_return"][0]["steps"], bands["mean_return"][0]["values"]) == ([100], [2])
    assert (bands["eval/return"][0]["steps"], bands["eval/return"][0]["values"]) == ([100], [4])


def test_bands_of_many_metrics_are_bounded_and_begin_with_the_return(tmp_path):
    group = make_members(tmp_path)
    found = json.loads((group / "members.json").read_text())
    for k, each in enumerate(found["members"]):
        each["settings"] = {"unroll": k}
        many = {f"learn/m{n}": float(n) for n in range(200)}
        lines = [json.dumps({"env_steps": i, "mean_return": 1.0, "busy": 0.5, **many}) for i in range(100)]
        (group / each["directory"] / "metrics.jsonl").write_text("\n".join(lines))
    write(group, "members.json", found)
    bands = run_view(group)["bands"]
    assert list(bands)[:3] == ["mean_return", "eval/return", "busy"]
    assert 50 < len(bands) < 200
    report.write(group)
    assert (group / report.FILE).stat().st_size < 300_000


def test_what_is_left_out_of_many_members_is_said(tmp_path):
    one = make_run(tmp_path / "member-0000")
    directories = [f"member-{k:04d}" for k in range(1200)]
    listed = [{"directory": d, "seed": k, "settings": {"unroll": k % 13}} for k, d in enumerate(directories)]
    write(one.parent, "members.json", {"runnel_version": "0.1.0", "format": 1, "members": listed})
    view = run_view(one.parent)
    assert view["problems"] == []
    assert view["notes"] == [
        "The table has the first 1,000 of 1,200 members.",
        "There are bands of the first 12 of 13 settings.",
        "A band is of the first 64 members of its settings, which up to 93 share.",
        "The first 64 of 1,200 members have a report of their own.",
    ]
    assert group_view.notes(members_file.read(one.parent)[:12]) == []
    report.write(one.parent)
    html = (one.parent / report.FILE).read_text()
    assert view["notes"][-1] in html
    assert len(html) < 500_000
