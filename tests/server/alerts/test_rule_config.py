"""Configuration of rules: a project's own settings, else those of every project, else defaults."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from memagent_server.alerts.event_rules import MILESTONES
from memagent_server.alerts.memory_rules import FRAGMENTATION, HOST_MEMORY
from memagent_server.alerts.rule_config import (
    Policies,
    RuleConfig,
    configure_rule,
    read_policies,
    read_policy,
)
from memagent_server.alerts.rules import RULES
from memagent_server.store.models import RuleSettingRow
from memagent_server.store.rules import EVERY_PROJECT, put_rule


def setting(project: str, rule: str, **fields) -> RuleSettingRow:
    values = {"is_on": True, "tells": "never", "thresholds": {}, **fields}
    return RuleSettingRow(project=project, rule=rule, **values)


def test_without_settings_each_rule_has_its_defaults():
    policy = Policies([]).of("any")
    assert list(policy) == list(RULES)
    assert policy["host_memory"] == RuleConfig(
        HOST_MEMORY, True, "critical", {"used_ratio": 0.9, "critical_ratio": 0.96}, True
    )
    assert all(config.is_default for config in policy.values())
    assert {name for name, config in policy.items() if not config.is_on} == set(MILESTONES)


def test_a_projects_setting_replaces_that_of_every_project():
    policies = Policies(
        [
            setting(EVERY_PROJECT, "leak", is_on=False),
            setting(EVERY_PROJECT, "stalled", tells="warning", thresholds={"silent_s": 60}),
            setting("vision", "stalled", thresholds={"silent_s": 90}),
        ]
    )
    vision, speech = policies.of("vision"), policies.of("speech")
    assert (vision["leak"].is_on, speech["leak"].is_on) == (False, False)
    assert vision["stalled"].thresholds == {"silent_s": 90, "silent_steps": 20}
    assert (speech["stalled"].tells, speech["stalled"].thresholds["silent_s"]) == ("warning", 60)
    assert (vision["stalled"].is_default, vision["high_water"].is_default) == (False, True)
    assert policies.of("vision") is vision


def test_one_project_is_read_like_all(sqlite_database):
    with sqlite_database.write() as session:
        put_rule(
            session, project="vision", rule="leak", is_on=False, tells="never", thresholds={},
            by=None, now=1.0,
        )  # fmt: skip
    with sqlite_database.read() as session:
        alone, among_all = read_policy(session, "vision"), read_policies(session).of("vision")
        assert alone == among_all
        assert (alone["leak"].is_on, alone["leak"].is_default) == (False, False)
        assert read_policy(session, "speech")["leak"].is_on


def test_missing_and_invalid_values_are_the_defaults():
    config = configure_rule(HOST_MEMORY, True, "shout", {"used_ratio": 1, "unknown": 3})
    assert (config.tells, config.thresholds) == (
        "critical",
        {"used_ratio": 1.0, "critical_ratio": 0.96},
    )
    assert configure_rule(FRAGMENTATION, False).is_on is False
    assert configure_rule(FRAGMENTATION) == RuleConfig(
        FRAGMENTATION, True, "never", {"split_ratio": 0.15}, True
    )


@pytest.mark.parametrize(
    ("tells", "severities"),
    [
        ("warning", [None, None, "warning", "critical"]),
        ("critical", [None, None, "note", "critical"]),
        ("never", [None, None, "note", "note"]),
    ],
)
def test_the_severity_of_a_result_depends_on_what_notifies(tells, severities):
    config = configure_rule(HOST_MEMORY, tells=tells)
    assert [
        config.severity(level) for level in ("ok", "notice", "warning", "critical")
    ] == severities


def test_a_configuration_is_immutable():
    with pytest.raises(FrozenInstanceError):
        configure_rule(FRAGMENTATION).is_on = False
