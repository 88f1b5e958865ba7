"""Grafana's alert rules, built from prometheus/rules.yml, for teams whose alerts Grafana evaluates.

Each rule has two queries: A is the value for the message, B is 1 for each series of A. Grafana
treats 0 as normal, so `up == 0` alone would never fire. If A has no series, all is well.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from boards.panels import json_of
from grafana_foundation_sdk.builders import alerting, prometheus
from grafana_foundation_sdk.models.alerting import RelativeTimeRange

DATASOURCE_UID = "memagent-prometheus"
FOLDER = "memagent"
EVERY = "1m"
_QUERY_RANGE_S = 600
_API_FIELDS = ("folderUID", "orgID", "ruleGroup")


def provisioning(rules_file: Path) -> dict[str, Any]:
    """Return a provisioning file. Recorded series are replaced by their expressions."""
    source_groups = yaml.safe_load(rules_file.read_text())["groups"]
    recorded = {
        rule["record"]: rule["expr"]
        for group in source_groups
        for rule in group["rules"]
        if "record" in rule
    }
    groups = [
        {"orgId": 1, "name": group["name"], "folder": FOLDER, "interval": EVERY, "rules": rules}
        for group in source_groups
        if (rules := [_rule(rule, recorded) for rule in group["rules"] if "alert" in rule])
    ]
    return {"apiVersion": 1, "groups": groups}


def _rule(rule: dict[str, Any], recorded: dict[str, str]) -> dict[str, Any]:
    expression = rule["expr"]
    for name, recorded_expression in recorded.items():
        expression = expression.replace(name, f"({recorded_expression})")
    builder = (
        alerting.Rule(rule["alert"])
        .uid(re.sub(r"(?<!^)(?=[A-Z])", "-", rule["alert"]).lower())
        .condition("B")
        .with_query(_query("A", expression))
        .with_query(_query("B", f"({expression}) * 0 + 1"))
        .for_val(rule.get("for", "0s"))
        .no_data_state("OK")
        .exec_err_state("Error")
        .labels(rule["labels"])
        .annotations(
            {
                name: text.replace("$value", "$values.A.Value")
                for name, text in rule["annotations"].items()
            }
        )
    )
    return {
        name: value for name, value in json_of(builder.build()).items() if name not in _API_FIELDS
    }


def _query(ref_id: str, expression: str) -> alerting.Query:
    query = prometheus.Dataquery().ref_id(ref_id).expr(expression).instant()
    return (
        alerting.Query(ref_id)
        .datasource_uid(DATASOURCE_UID)
        .relative_time_range(RelativeTimeRange(from_val=_QUERY_RANGE_S, to=0))
        .model(query)
    )
