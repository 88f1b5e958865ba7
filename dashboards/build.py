"""Writes fleet.json and run.json beside this file: `python dashboards/build.py`. A test keeps file and program the same.

A dashboard is a list of rows, a row a title and panels, a panel a title, a kind, a unit and queries; places and ids are reckoned.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
OF_RUN = 'run_id="$run", rank=~"$rank"'
NEAR = [(None, "green"), (0.85, "orange"), (0.95, "red")]
PLAIN = [(None, "blue")]


@dataclass(frozen=True)
class Panel:
    """`queries` are (expression, legend). `width` of 24."""

    title: str
    kind: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    about: str
    width: int = 12
    height: int = 8
    steps: list[tuple[float | None, str]] = field(default_factory=lambda: list(PLAIN))
    stacked: bool = False
    columns: tuple[str, ...] = ()
    """For tables: labels to show, in order; the values follow."""
    values: tuple[str, ...] = ()
    """For tables: a heading for each query."""


FLEET = (
    ("Now", (
        Panel("Running", "stat", "short", (('memagent_runs{status="running"}', "running"),), "Runs that are alive.", 4, 4),
        Panel("Alerts firing", "stat", "short", (("sum(memagent_alerts_firing)", "firing"),), "Alerts of all rules that are firing.", 4, 4,
              [(None, "green"), (1, "red")]),
        Panel("Ran out of memory", "stat", "short", (('memagent_runs{status="oom"}', "oom"),), "Runs that ended out of memory.", 4, 4,
              [(None, "green"), (1, "orange")]),
        Panel("Fullest device", "stat", "percentunit", (("max(memagent_peak_allocated_bytes / memagent_limit_bytes)", "fullest"),),
              "Peak of the newest step against the limit, of the run that is nearest to it.", 4, 4, NEAR),
        Panel("Likeliest to run out", "stat", "percentunit", (("max(memagent_oom_probability)", "probability"),),
              "Highest probability of running out of memory among the active runs.", 4, 4, [(None, "green"), (0.3, "orange"), (0.6, "red")]),
        Panel("Samples per second", "stat", "short", (("rate(memagent_ingested_samples_total[1m])", "samples/s"),), "What the server takes in.", 4, 4),
    )),
    ("Who is near the limit", (
        Panel("Runs by fullness", "table", "percentunit",
              (("max by (run_id, rank, device) (memagent_peak_allocated_bytes / memagent_limit_bytes)"
                " * on (run_id) group_left (name, project, user, host, status) memagent_run_info", "full"),),
              "Peak of the newest step against the limit. The name opens the run's page on the memagent server.", 24, 9, NEAR,
              columns=("name", "project", "user", "host", "rank", "device", "status", "run_id"), values=("Peak / limit",)),
        Panel("Used, as a share of the limit", "timeseries", "percentunit",
              (("max by (run_id) (memagent_peak_allocated_bytes / memagent_limit_bytes)", "{{run_id}}"),),
              "Every active run's peak against its limit.", 12, 8, NEAR),
        Panel("Probability of running out", "timeseries", "percentunit", (("max by (run_id) (memagent_oom_probability)", "{{run_id}}"),),
              "The forecaster's probability, by run.", 12, 8),
    )),
    ("Memory", (
        Panel("Headroom", "timeseries", "bytes", (("min by (run_id) (memagent_limit_bytes - memagent_peak_allocated_bytes)", "{{run_id}}"),),
              "Limit less the peak of the newest step.", 12, 8),
        Panel("Reserved but not used", "timeseries", "bytes",
              (("max by (run_id) (memagent_reserved_bytes - memagent_peak_allocated_bytes > 0)"
                " or max by (run_id) (0 * memagent_reserved_bytes)", "{{run_id}}"),),
              "What the allocator holds and even the peak does not need: waste.", 12, 8),
        Panel("Predicted and observed peak", "timeseries", "bytes",
              (('max by (run_id) (memagent_predicted_bytes{component="peak"})', "predicted {{run_id}}"),
               ("max by (run_id) (memagent_peak_allocated_bytes)", "observed {{run_id}}")),
              "The estimator's answer beside the newest step.", 12, 8),
        Panel("Runs by status", "timeseries", "short", (("memagent_runs", "{{status}}"),), "All runs the server knows.", 12, 8, stacked=True),
    )),
    ("Server", (
        Panel("Notifications", "timeseries", "short", (("memagent_notifications_total or on() vector(0)", "{{channel}} {{outcome}}"),),
              "By channel and outcome; dead ones were given up.", 12, 7),
        Panel("Scrape", "timeseries", "s", (("memagent_scrape_duration_seconds", "reading the store"),), "Time a scrape takes.", 12, 7),
    )),
)  # fmt: skip

RUN = (
    ("Now", (
        Panel("Step", "stat", "short", ((f"max(memagent_step{{{OF_RUN}}})", "step"),), "Optimizer steps finished.", 4, 4),
        Panel("Peak / limit", "stat", "percentunit",
              ((f"max(memagent_peak_allocated_bytes{{{OF_RUN}}} / memagent_limit_bytes{{{OF_RUN}}})", "full"),),
              "Peak of the newest step against the limit.", 4, 4, NEAR),
        Panel("Headroom", "stat", "bytes",
              ((f"min(memagent_limit_bytes{{{OF_RUN}}} - memagent_peak_allocated_bytes{{{OF_RUN}}})", "headroom"),), "Limit less peak.", 4, 4),
        Panel("Runs out with probability", "stat", "percentunit", ((f"max(memagent_oom_probability{{{OF_RUN}}})", "p"),),
              "From the newest forecast.", 4, 4, [(None, "green"), (0.3, "orange"), (0.6, "red")]),
        Panel("Runs out in", "stat", "s",
              ((f"min(memagent_oom_eta_timestamp_seconds{{{OF_RUN}}}) - time() or on() vector(-1)", "eta"),),
              "Time until memory is expected to run out; below zero where it is not expected to.", 4, 4, [(None, "green"), (0, "red")]),
        Panel("Step time", "stat", "s", ((f"avg(memagent_step_seconds{{{OF_RUN}}})", "step"),), "Newest step.", 4, 4),
    )),
    ("Memory", (
        Panel("Memory over time", "timeseries", "bytes",
              ((f"memagent_allocated_bytes{{{OF_RUN}}}", "allocated {{rank}} {{device}}"),
               (f"memagent_peak_allocated_bytes{{{OF_RUN}}}", "peak {{rank}} {{device}}"),
               (f"memagent_reserved_bytes{{{OF_RUN}}}", "reserved {{rank}} {{device}}"),
               (f"memagent_device_used_bytes{{{OF_RUN}}}", "device used {{rank}} {{device}}"),
               (f"memagent_limit_bytes{{{OF_RUN}}}", "limit {{rank}} {{device}}"),
               (f'memagent_predicted_bytes{{{OF_RUN}, component="peak"}}', "predicted peak {{rank}} {{device}}")),
              "What the allocator holds and peaked at, what the device holds, the limit and the predicted peak.", 24, 11),
        Panel("What the bytes are for", "timeseries", "bytes", ((f"memagent_component_bytes{{{OF_RUN}}}", "{{component}} {{rank}}"),),
              "Observed components, stacked.", 12, 9, stacked=True),
        Panel("Predicted components", "timeseries", "bytes",
              ((f'memagent_predicted_bytes{{{OF_RUN}, component!="peak"}}', "{{component}} {{rank}}"),), "The estimator's answer, stacked.",
              12, 9, stacked=True),
        Panel("Peak by phase", "timeseries", "bytes", ((f"memagent_phase_peak_bytes{{{OF_RUN}}}", "{{phase}} {{rank}}"),),
              "Most allocated in each phase of the newest step.", 12, 8),
        Panel("Host memory", "timeseries", "bytes", ((f"memagent_host_rss_bytes{{{OF_RUN}}}", "resident {{rank}} {{device}}"),),
              "Resident memory of the process tree.", 12, 8),
    )),
    ("Forecast and pace", (
        Panel("Probability of running out", "timeseries", "percentunit",
              ((f"memagent_oom_probability{{{OF_RUN}}}", "{{rank}} {{device}}"),), "The forecaster's probability.", 12, 8),
        Panel("Steps", "timeseries", "short", ((f"memagent_step{{{OF_RUN}}}", "step {{rank}} {{device}}"),), "Optimizer steps finished.", 6, 8),
        Panel("Step time", "timeseries", "s", ((f"memagent_step_seconds{{{OF_RUN}}}", "{{rank}} {{device}}"),), "Seconds a step.", 6, 8),
    )),
)  # fmt: skip


def dashboard(uid: str, title: str, about: str, rows: Any, variables: list[dict[str, Any]]) -> dict[str, Any]:
    datasource = {
        "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}, "hide": 0,
        "refresh": 1, "regex": "", "multi": False, "includeAll": False, "options": [],
    }  # fmt: skip
    return {
        "uid": uid,
        "title": title,
        "description": about,
        "tags": ["memagent"],
        "timezone": "browser",
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "annotations": {"list": []},
        "links": [
            {"title": "memagent dashboards", "type": "dashboards", "tags": ["memagent"], "asDropdown": False, "includeVars": True,
             "keepTime": True, "icon": "external link", "targetBlank": False, "tooltip": "", "url": ""}
        ],
        "templating": {"list": [datasource, *variables]},
        "panels": _placed(rows),
    }  # fmt: skip


def _placed(rows: Any) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in rows:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "panels": [],
                "gridPos": _place(0, y, 24, 1),
            }
        )
        x, y, tallest = 0, y + 1, 0
        for panel in row:
            if x + panel.width > 24:
                x, y, tallest = 0, y + tallest, 0
            panels.append(_panel(panel, len(panels) + 1, x, y))
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
    return panels


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    instant = panel.kind in ("stat", "table")
    targets = [
        {"refId": chr(ord("A") + index), "datasource": DATASOURCE, "expr": expression, "legendFormat": legend, "instant": instant,
         "range": not instant, "format": "table" if panel.kind == "table" else "time_series"}
        for index, (expression, legend) in enumerate(panel.queries)
    ]  # fmt: skip
    found: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": DATASOURCE,
        "gridPos": _place(x, y, panel.width, panel.height),
        "targets": targets,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel),
    }
    if panel.kind == "table":
        _as_table(found, panel)
    return found


def _defaults(panel: Panel) -> dict[str, Any]:
    steps = [{"color": color, "value": value} for value, color in panel.steps]
    defaults: dict[str, Any] = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.unit == "percentunit":
        defaults |= {"min": 0, "max": 1}
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        defaults |= {
            "color": {"mode": "palette-classic"},
            "custom": {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 25 if panel.stacked else 5, "showPoints": "never",
                       "spanNulls": False, "stacking": stacking},
        }  # fmt: skip
    else:
        defaults["color"] = {"mode": "thresholds"}
    return defaults


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value", "graphMode": "none",
                "textMode": "value", "justifyMode": "auto", "orientation": "auto"}  # fmt: skip
    if panel.kind == "table":
        return {"showHeader": True, "cellHeight": "sm", "sortBy": [{"displayName": panel.values[0], "desc": True}]}
    return {"legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull", "max"]},
            "tooltip": {"mode": "multi", "sort": "desc"}}  # fmt: skip


def _as_table(found: dict[str, Any], panel: Panel) -> None:
    shown = (*panel.columns, "Value")
    found["transformations"] = [
        {"id": "organize", "options": {
            "excludeByName": {"Time": True, "__name__": True, "instance": True, "job": True},
            "indexByName": {name: index for index, name in enumerate(shown)},
            "renameByName": {"Value": panel.values[0], "run_id": "run"},
        }}
    ]  # fmt: skip
    found["fieldConfig"]["overrides"] = [
        {"matcher": {"id": "byName", "options": panel.values[0]}, "properties": [
            {"id": "custom.cellOptions", "value": {"type": "gauge", "mode": "basic"}}, {"id": "custom.width", "value": 260}]},
        {"matcher": {"id": "byName", "options": "name"}, "properties": [
            {"id": "links", "value": [{"title": "Open run", "url": "/d/memagent-run/memagent-run?var-run=${__data.fields.run}", "targetBlank": False}]}]},
    ]  # fmt: skip


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _variable(name: str, label: str, query: str, *, multi: bool = False) -> dict[str, Any]:
    return {
        "name": name, "label": label, "type": "query", "datasource": DATASOURCE, "query": {"query": query, "refId": name},
        "definition": query, "refresh": 2, "sort": 1, "regex": "", "hide": 0, "multi": multi, "includeAll": multi,
        "allValue": ".*" if multi else None, "current": {"text": "All", "value": "$__all"} if multi else {}, "options": [],
    }  # fmt: skip


def build() -> dict[str, dict[str, Any]]:
    """File name -> dashboard."""
    variables = [
        _variable("project", "Project", "label_values(memagent_run_info, project)"),
        _variable("run", "Run", 'label_values(memagent_run_info{project="$project"}, run_id)'),
        _variable("rank", "Rank", 'label_values(memagent_step{run_id="$run"}, rank)', multi=True),
    ]
    return {
        "fleet.json": dashboard(
            "memagent-fleet", "memagent / Fleet", "Who is near the limit, and who will run out of memory.", FLEET, []
        ),
        "run.json": dashboard(
            "memagent-run", "memagent / Run", "One run's memory, components, phases and forecast.", RUN, variables
        ),
    }


if __name__ == "__main__":
    for name, content in build().items():
        (HERE / name).write_text(json.dumps(content, indent=2) + "\n")
