"""Grafana's alert rules: those of prometheus/rules.yml, for teams whose alerts Grafana evaluates instead of Prometheus.

Each rule asks twice: A gives the value for the message, B is 1 for each series that A finds. Grafana takes 0 for calm, and `up == 0`
would never fire. Where A finds nothing, all is well.
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
_ASKED_OVER_S = 600
_OF_THE_API = ("folderUID", "orgID", "ruleGroup")


def provisioning(rules_file: Path) -> dict[str, Any]:
    """A provisioning file. Recorded series are written out, for Grafana records nothing here."""
    read = yaml.safe_load(rules_file.read_text())["groups"]
    recorded = {
        rule["record"]: rule["expr"]
        for group in read
        for rule in group["rules"]
        if "record" in rule
    }
    groups = [
        {"orgId": 1, "name": group["name"], "folder": FOLDER, "interval": EVERY, "rules": rules}
        for group in read
        if (rules := [_rule(rule, recorded) for rule in group["rules"] if "alert" in rule])
    ]
    return {"apiVersion": 1, "groups": groups}


def _rule(rule: dict[str, Any], recorded: dict[str, str]) -> dict[str, Any]:
    expression = rule["expr"]
    for name, meant in recorded.items():
        expression = expression.replace(name, f"({meant})")
    made = (
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
    return {name: value for name, value in json_of(made.build()).items() if name not in _OF_THE_API}


def _query(ref_id: str, expression: str) -> alerting.Query:
    asked = prometheus.Dataquery().ref_id(ref_id).expr(expression).instant()
    return (
        alerting.Query(ref_id)
        .datasource_uid(DATASOURCE_UID)
        .relative_time_range(RelativeTimeRange(from_val=_ASKED_OVER_S, to=0))
        .model(asked)
    )
