"""The dashboard has what Grafana's classic model asks for. `test_prometheus.py` checks its expressions."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

from runnel.reporting.metrics_server import DASHBOARD

BOARD: dict[str, Any] = json.loads(DASHBOARD.read_text())
PANELS: list[dict[str, Any]] = BOARD["panels"]
CHOSEN = {"type": "prometheus", "uid": "${datasource}"}
"""The data source that is chosen at the top of the page."""
COLUMNS = 24
BUILT_IN = {"__all", "__rate_interval", "__interval", "__range"}


def test_a_new_dashboard_has_a_name_of_its_own_and_a_schema() -> None:
    assert BOARD.get("id") is None, "a number is Grafana's to give; with one, it replaces another dashboard"
    assert re.fullmatch(r"[\w-]{1,40}", BOARD["uid"])
    assert BOARD["title"]
    assert BOARD["schemaVersion"] >= 36  # from there on, data sources are objects
    assert BOARD["time"].keys() == {"from", "to"}


def test_the_variables_are_the_data_source_and_what_is_asked_of_it() -> None:
    first, *others = BOARD["templating"]["list"]
    assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", "prometheus")
    assert others
    for variable in others:
        assert variable["type"] == "query"
        assert variable["datasource"] == CHOSEN
        assert re.fullmatch(r"label_values\(\w+, \w+\)", variable["query"]["query"])
    known = {first["name"], *(variable["name"] for variable in others)} | BUILT_IN
    assert set(re.findall(r"\$\{?(\w+)", DASHBOARD.read_text())) <= known
    assert "__inputs" not in BOARD  # of exported dashboards: Grafana would ask for them, and curl could not answer


@pytest.mark.parametrize("panel", PANELS, ids=[panel["title"] for panel in PANELS])
def test_a_panel_has_a_place_a_kind_and_queries(panel: dict[str, Any]) -> None:
    place = panel["gridPos"]
    assert place.keys() == {"x", "y", "w", "h"}
    assert place["x"] + place["w"] <= COLUMNS
    assert panel["type"] in {"timeseries", "table", "bargauge", "stat"}
    assert panel["datasource"] == CHOSEN
    assert {"defaults", "overrides"} <= panel["fieldConfig"].keys()
    assert panel["targets"]
    for target in panel["targets"]:
        assert target["datasource"] == CHOSEN
        assert target["expr"].count("(") == target["expr"].count(")")
    names = [target["refId"] for target in panel["targets"]]
    assert len(set(names)) == len(names)


def test_panels_have_numbers_and_places_of_their_own() -> None:
    numbers = [panel["id"] for panel in PANELS]
    assert len(set(numbers)) == len(numbers)
    for a, b in itertools.combinations([panel["gridPos"] for panel in PANELS], 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        assert beside or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
