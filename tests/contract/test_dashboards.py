"""Dashboards as files: built from the program, and well formed for Grafana."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from memagent_server.metrics.collector import BY_NAME
from memagent_server.metrics.grafana import PLACEHOLDER_URL
from memagent_server.web.docs import anchor_of

ROOT = Path(__file__).parents[2]
DASHBOARDS = ROOT / "dashboards"
FILES = ("fleet.json", "run.json", "server.json")


def load(name: str) -> dict:
    return json.loads((DASHBOARDS / name).read_text())


def panels(name: str) -> list[dict]:
    return [panel for panel in load(name)["panels"] if panel["type"] != "row"]


def test_the_files_match_what_the_builder_writes():
    done = subprocess.run(
        [sys.executable, DASHBOARDS / "build.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", FILES)
def test_grafanas_types_read_it_without_loss(name):
    """The types are made from Grafana's published schema: a field that they do not know would be lost on the way."""
    code = (
        "import json, sys, warnings\nwarnings.simplefilter('ignore')\n"
        "from grafana_foundation_sdk.cog.encoder import JSONEncoder\n"
        "from grafana_foundation_sdk.models.dashboard import Dashboard\n"
        "given = json.load(open(sys.argv[1]))\n"
        "again = json.loads(JSONEncoder().encode(Dashboard.from_json(given)))\n"
        "assert again == given, 'something is lost'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, DASHBOARDS / name], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", FILES)
def test_every_panel_has_a_title_a_description_and_a_unit(name):
    for panel in panels(name):
        assert (
            panel["title"] and panel["description"] and panel["fieldConfig"]["defaults"]["unit"]
        ), panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert [target["refId"] for target in panel["targets"]] == list(
            "ABCDEF"[: len(panel["targets"])]
        )
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


@pytest.mark.parametrize("name", FILES)
def test_ids_are_unique_and_panels_do_not_overlap(name):
    placed = load(name)["panels"]
    assert len({panel["id"] for panel in placed}) == len(placed)
    occupied = set()
    for panel in placed:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & occupied and max(x for x, _ in cells) < 24, panel["title"]
        occupied |= cells


@pytest.mark.parametrize("name", FILES)
def test_the_data_source_is_a_variable(name):
    assert load(name)["templating"]["list"][0]["type"] == "datasource"


@pytest.mark.parametrize("name", FILES)
def test_units_thresholds_and_legends_are_set(name):
    for panel in panels(name):
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert steps[0]["value"] is None and [step["value"] for step in steps[1:]] == sorted(
            step["value"] for step in steps[1:]
        )
        if panel["type"] == "timeseries":
            assert panel["options"]["legend"]["displayMode"] == "table", panel["title"]
            assert all(target["range"] and not target["instant"] for target in panel["targets"])
            assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]
        else:
            assert all(target["instant"] for target in panel["targets"]), panel["title"]
        if "_bytes" in panel["targets"][0]["expr"] and " / " not in panel["targets"][0]["expr"]:
            assert panel["fieldConfig"]["defaults"]["unit"] == "bytes", panel["title"]


@pytest.mark.parametrize("name", FILES)
def test_counters_are_queried_as_rates(name):
    for panel in panels(name):
        for target in panel["targets"]:
            for counter in re.findall(
                r"memagent_(?:ingested|dropped)\w*_total|memagent_ooms_total", target["expr"]
            ):
                assert re.search(rf"(rate|increase)\({counter}", target["expr"]), panel["title"]


@pytest.mark.parametrize("name", FILES)
def test_it_shows_the_servers_annotations_and_links_to_its_pages(name):
    (annotations,) = load(name)["annotations"]["list"]
    assert annotations["enable"] and annotations["target"]["tags"][0] == "memagent"
    assert [variable["name"] for variable in load(name)["templating"]["list"]][:2] == [
        "datasource",
        "memagent",
    ]
    tables = [panel for panel in panels(name) if panel["type"] == "table"]
    links = [
        link["url"]
        for panel in tables
        for override in panel["fieldConfig"]["overrides"]
        for item in override["properties"]
        if item["id"] == "links"
        for link in item["value"]
    ]
    assert len(links) == 2 * len(tables) and all("${__data.fields.run}" in url for url in links)


def test_grafana_has_the_alerts_of_prometheus():
    read = yaml.safe_load((DASHBOARDS / "prometheus/rules.yml").read_text())["groups"]
    alerts = {rule["alert"]: rule for group in read for rule in group["rules"] if "alert" in rule}
    groups = json.loads((DASHBOARDS / "provisioning/alerting/rules.json").read_text())["groups"]
    results = {rule["title"]: rule for group in groups for rule in group["rules"]}
    assert list(results) == list(alerts) and len({rule["uid"] for rule in results.values()}) == len(
        results
    )
    datasource = yaml.safe_load(
        (DASHBOARDS / "provisioning/datasources/prometheus.yml").read_text()
    )["datasources"][0]
    for name, rule in results.items():
        assert rule["labels"] == alerts[name]["labels"] and rule["for"] == alerts[name].get(
            "for", "0s"
        )
        assert rule["annotations"]["runbook_url"] == alerts[name]["annotations"]["runbook_url"]
        assert {query["datasourceUid"] for query in rule["data"]} == {datasource["uid"]}
        assert "memagent:" not in json.dumps(rule["data"]), "Grafana records no series"


def test_every_rule_is_tested_firing_and_silent():
    read = yaml.safe_load((DASHBOARDS / "prometheus/rules.yml").read_text())["groups"]
    tests = yaml.safe_load((DASHBOARDS / "prometheus/rules_test.yml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    for name in (rule["alert"] for group in read for rule in group["rules"] if "alert" in rule):
        ends = {bool(case["exp_alerts"]) for case in cases if case["alertname"] == name}
        assert ends == {True, False}, name
    queries = " ".join(case["expr"] for test in tests for case in test.get("promql_expr_test", []))
    assert all(
        rule["record"] in queries for group in read for rule in group["rules"] if "record" in rule
    )


def metric_names(text: str) -> set[str]:
    """Remove the suffixes that Prometheus adds to the name of a histogram."""
    return {
        re.sub(r"_(bucket|count|sum)$", "", name)
        for name in re.findall(r"\bmemagent_[a-z_]+", text)
    }


@pytest.mark.parametrize("path", [*FILES, "prometheus/rules.yml"])
def test_queries_use_existing_metrics_only(path):
    text = (DASHBOARDS / path).read_text()
    queries = " ".join(re.findall(r'"?expr"?: "?(.*)', text)) + " ".join(
        re.findall(r'"definition": "(.*)"', text)
    )
    assert metric_names(queries) and metric_names(queries) <= set(BY_NAME)


def test_every_rules_runbook_is_a_section_of_the_servers_page():
    sections = re.findall(r"^## (.+)$", (ROOT / "docs/alerts.md").read_text(), re.MULTILINE)
    links = re.findall(r"runbook_url: (\S+)", (DASHBOARDS / "prometheus/rules.yml").read_text())
    assert links and set(links) <= {
        f"{PLACEHOLDER_URL}/runbooks#{anchor_of(section)}" for section in sections
    }
