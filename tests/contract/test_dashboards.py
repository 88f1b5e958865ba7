"""Dashboards as files: built from the program beside them, and well formed as Grafana wants them."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from memagent_server.metrics.definitions import BY_NAME

ROOT = Path(__file__).parents[2]
DASHBOARDS = ROOT / "dashboards"
FILES = ("fleet.json", "run.json")


def load(name: str) -> dict:
    return json.loads((DASHBOARDS / name).read_text())


def panels(name: str) -> list[dict]:
    return [panel for panel in load(name)["panels"] if panel["type"] != "row"]


def test_the_files_are_what_the_program_builds():
    spec = importlib.util.spec_from_file_location("dashboards_build", DASHBOARDS / "build.py")
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
        assert module.build() == {name: load(name) for name in FILES}
    finally:
        del sys.modules[spec.name]


@pytest.mark.parametrize("name", FILES)
def test_every_panel_has_what_people_need(name):
    for panel in panels(name):
        assert panel["title"] and panel["description"] and panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert [target["refId"] for target in panel["targets"]] == list("ABCDEF"[: len(panel["targets"])])
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


@pytest.mark.parametrize("name", FILES)
def test_ids_are_distinct_and_no_panel_lies_on_another(name):
    placed = load(name)["panels"]
    assert len({panel["id"] for panel in placed}) == len(placed)
    taken = set()
    for panel in placed:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells


@pytest.mark.parametrize("name", FILES)
def test_the_data_source_is_a_variable(name):
    assert load(name)["templating"]["list"][0]["type"] == "datasource"


def metric_names(text: str) -> set[str]:
    return set(re.findall(r"\bmemagent_[a-z_]+", text))


@pytest.mark.parametrize("path", [*FILES, "prometheus/rules.yml"])
def test_only_metrics_that_exist_are_asked_for(path):
    text = (DASHBOARDS / path).read_text()
    expressions = " ".join(re.findall(r'"?expr"?: "?(.*)', text)) + " ".join(re.findall(r'"definition": "(.*)"', text))
    assert metric_names(expressions) and metric_names(expressions) <= set(BY_NAME)


def test_every_metric_has_a_heading_in_the_docs():
    assert re.findall(r"^## (\w+)$", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE) == list(BY_NAME)


def test_every_rules_runbook_exists():
    anchors = {
        heading.lower().replace(" ", "-")
        for heading in re.findall(r"^## (.+)$", (ROOT / "docs/alerts.md").read_text(), re.MULTILINE)
    }
    links = re.findall(r"runbook_url: .*/docs/alerts\.md#(\S+)", (DASHBOARDS / "prometheus/rules.yml").read_text())
    assert links and set(links) <= anchors
