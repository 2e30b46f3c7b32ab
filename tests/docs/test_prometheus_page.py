"""The table of docs/prometheus.md has every metric that a run serves, with its labels."""

import re

import pytest
from paths import ROOT

pytest.importorskip("prometheus_client")

from runnel.reporting.prometheus import COUNTERS, GAUGES, NAMED, ScrapedRun, families
from runnel.runtime.usage import StreamUsage, UsageReport, WorkerUsage

INFO = ("run", "algorithm", "environment", "distribution", "seed", "version")


def test_the_table_has_every_metric_with_its_labels():
    numbers = dict.fromkeys((*COUNTERS, *GAUGES, "mean_return", "more", *(f"{prefix}/x" for prefix in NAMED)), 1.0)
    report = UsageReport(
        (WorkerUsage("actor-0", "actor", 0.5),), (StreamUsage("actor", "learner", "unroll", 0.5, 10.0, 1.0),)
    )
    run = ScrapedRun(dict.fromkeys(INFO, "x"), 8, numbers, report, {"member-0": (8, 1.5)}, 1.0)
    served = {sample.name: set(sample.labels) for family in families(run) for sample in family.samples}
    table = {}
    for names, labels in re.findall(
        r"^\| (`runnel_.*?) \| (.*?) \|", (ROOT / "docs" / "prometheus.md").read_text(), re.M
    ):
        for name in re.findall(r"`(\w+)`", names):
            table[name] = set(re.findall(r"`(\w+)`", labels))
    assert table == served
