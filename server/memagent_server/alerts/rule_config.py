"""How a project wants its rules: the rules' defaults under what the store has. Pure but for what reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from memagent.forecast.types import PAGING_LEVELS
from memagent_server.alerts.rules import RULES, TELLS, Rule
from memagent_server.settings import Severity
from memagent_server.store.engine import Session
from memagent_server.store.models import RuleSetting
from memagent_server.store.rules import EVERY_PROJECT, all_rule_settings, rule_settings


@dataclass(frozen=True)
class RuleConfig:
    """How one rule is wanted. `tells` is the least severity that people are told of, or `never`."""

    rule: Rule
    is_on: bool
    tells: str
    thresholds: Mapping[str, float]
    is_default: bool = True

    def severity(self, level: str) -> Severity | None:
        """What a finding of `level` is to people; None for a calm one."""
        if level not in PAGING_LEVELS:
            return None
        if self.tells == "never" or (self.tells == "critical" and level != "critical"):
            return "note"
        return "critical" if level == "critical" else "warning"


Policy = Mapping[str, RuleConfig]


class Policies:
    """What every project wants, from all that is stored."""

    def __init__(self, stored: Iterable[RuleSetting]) -> None:
        self._stored: dict[str, dict[str, RuleSetting]] = {}
        for row in stored:
            self._stored.setdefault(row.project, {})[row.rule] = row
        self._made: dict[str, Policy] = {}

    def of(self, project: str) -> Policy:
        """Every rule by name, as `project` wants it."""
        if project not in self._made:
            rows = {**self._stored.get(EVERY_PROJECT, {}), **self._stored.get(project, {})}
            self._made[project] = _policy(rows)
        return self._made[project]


def read_policies(session: Session) -> Policies:
    return Policies(all_rule_settings(session))


def read_policy(session: Session, project: str) -> Policy:
    """Every rule by name, as `project` wants it."""
    return _policy(rule_settings(session, project))


def _policy(stored: Mapping[str, RuleSetting]) -> Policy:
    found: dict[str, RuleConfig] = {}
    for rule in RULES.values():
        row = stored.get(rule.name)
        found[rule.name] = (
            wanted(rule)
            if row is None
            else wanted(rule, row.is_on, row.tells, row.thresholds, is_default=False)
        )
    return found


def wanted(
    rule: Rule,
    is_on: bool = True,
    tells: str | None = None,
    thresholds: Mapping[str, Any] | None = None,
    *,
    is_default: bool = True,
) -> RuleConfig:
    """A rule with its defaults where nothing else is said."""
    stored = thresholds or {}
    numbers = {item.name: float(stored.get(item.name, item.default)) for item in rule.thresholds}
    return RuleConfig(rule, is_on, tells if tells in TELLS else rule.tells, numbers, is_default)
