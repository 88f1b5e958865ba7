"""Configuration of the rules per project: stored settings on top of the rules' defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from memagent.forecast.types import PAGING_LEVELS
from memagent_server.alerts.rule_definition import Rule
from memagent_server.alerts.rules import RULES
from memagent_server.settings import Severity
from memagent_server.store.engine import Session
from memagent_server.store.models import RuleSettingRow
from memagent_server.store.rules import EVERY_PROJECT, all_rule_settings, rule_settings


@dataclass(frozen=True)
class RuleConfig:
    """Configuration of one rule; `tells` is the lowest level that notifies, or `never`."""

    rule: Rule
    is_on: bool
    tells: str
    thresholds: Mapping[str, float]
    is_default: bool = True
    updated_at: float = 0.0

    def severity(self, level: str) -> Severity | None:
        """Return the severity of a result of `level`, None for a calm one.

        A notice is calm, unless the project notifies from it.
        """
        if level == "notice" and self.tells == "notice":
            return "warning"
        if level not in PAGING_LEVELS:
            return None
        if self.tells == "never" or (self.tells == "critical" and level != "critical"):
            return "note"
        return "critical" if level == "critical" else "warning"


Policy = Mapping[str, RuleConfig]
"""Configuration of every rule, by name."""


class Policies:
    """Policies of all projects, from all stored settings."""

    def __init__(self, stored: Iterable[RuleSettingRow]) -> None:
        self._stored: dict[str, dict[str, RuleSettingRow]] = {}
        for row in stored:
            self._stored.setdefault(row.project, {})[row.rule] = row
        self._cache: dict[str, Policy] = {}

    def of(self, project: str) -> Policy:
        """Return a project's policy."""
        if project not in self._cache:
            rows = {**self._stored.get(EVERY_PROJECT, {}), **self._stored.get(project, {})}
            self._cache[project] = _policy(rows)
        return self._cache[project]


def read_policies(session: Session) -> Policies:
    return Policies(all_rule_settings(session))


def read_policy(session: Session, project: str) -> Policy:
    """Return a project's policy, without those of other projects."""
    return _policy(rule_settings(session, project))


def _policy(stored: Mapping[str, RuleSettingRow]) -> Policy:
    policy: dict[str, RuleConfig] = {}
    for rule in RULES.values():
        row = stored.get(rule.name)
        if row is None:
            policy[rule.name] = configure_rule(rule)
        else:
            policy[rule.name] = configure_rule(
                rule,
                row.is_on,
                row.tells,
                row.thresholds,
                is_default=False,
                updated_at=row.updated_at,
            )
    return policy


def configure_rule(
    rule: Rule,
    is_on: bool | None = None,
    tells: str | None = None,
    thresholds: Mapping[str, Any] | None = None,
    *,
    is_default: bool = True,
    updated_at: float = 0.0,
) -> RuleConfig:
    """Return a rule's configuration, with defaults for missing values."""
    stored = thresholds or {}
    numbers = {item.name: float(stored.get(item.name, item.default)) for item in rule.thresholds}
    return RuleConfig(
        rule,
        rule.is_on if is_on is None else is_on,
        tells if tells in rule.tells_options else rule.tells,
        numbers,
        is_default,
        updated_at,
    )
