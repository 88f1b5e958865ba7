"""All alert rules, by name and in the order of pages.

To add a rule, copy its neighbour in `memory_rules` or `event_rules` and add it to RULES. Add its
sentence to `summaries`, and a heading to docs/alerts.md.
"""

from __future__ import annotations

from memagent_server.alerts import event_rules, memory_rules
from memagent_server.alerts.rule_definition import Rule

RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        memory_rules.OOM_FORECAST,
        event_rules.OOM,
        event_rules.LOST_CONTACT,
        memory_rules.HOST_MEMORY,
        memory_rules.LEAK,
        memory_rules.HIGH_WATER,
        memory_rules.FRAGMENTATION,
        memory_rules.PREDICTION_MISMATCH,
        memory_rules.RANK_IMBALANCE,
        event_rules.STALLED,
        event_rules.SCRIPT,
        event_rules.COLUMN,
        event_rules.FIRST_STEP,
        event_rules.FINISHED,
    )
}
