"""From estimates with a change made to lines of advice: what each saves in this run, ranked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from memagent.estimator.advice.catalog import NAMES, PAIN, Change
from memagent.estimator.advice.script_facts import Script
from memagent.estimator.estimate import Estimate
from memagent.wire.messages import AdviceItem

WORTH = 0.01
"""Savings below this share of what the run needs are not worth a line."""
TOGETHER = "Together: "


@dataclass(frozen=True)
class EvaluatedChange:
    """A change, and the run's estimate with it made."""

    change: Change
    then: Estimate


def is_worth(now: Estimate, then: Estimate) -> bool:
    return now.needed_bytes - then.needed_bytes >= WORTH * now.needed_bytes


def ranked(now: Estimate, tried: Iterable[EvaluatedChange], script: Script) -> list[AdviceItem]:
    """Changes that are worth a line, the largest saving first; what costs less first where they save the same."""
    worth = [one for one in tried if is_worth(now, one.then)]
    worth.sort(key=lambda one: (one.then.needed_bytes, one.change.pain))
    return [item(now, (one.change,), one.then, script) for one in worth]


def is_enough(then: Estimate) -> bool:
    """Whether it fits with room for the allocator's cache: what fits only by giving that back is no advice."""
    return then.limit_bytes is not None and then.needed_bytes <= then.limit_bytes


def needs_a_set(now: Estimate, tried: Iterable[EvaluatedChange]) -> bool:
    """Whether it does not fit, and no change on the GPUs there are makes it fit alone."""
    return now.fits is False and not any(
        is_enough(one.then) for one in tried if not one.change.more_gpus
    )


def item(now: Estimate, chosen: tuple[Change, ...], then: Estimate, script: Script) -> AdviceItem:
    """The line of advice for one change, or for several together."""
    name = " + ".join(change.name for change in chosen)
    return AdviceItem(
        change=name if len(chosen) == 1 else (TOGETHER + name)[:200],
        saving_bytes=now.needed_bytes - then.needed_bytes,
        cost="; ".join(
            change.cost for change in chosen if change.cost != "none" or len(chosen) == 1
        ),
        code="\n\n".join(change.code(script) for change in chosen),
    )


def cheapest_that_fits(found: Estimate) -> AdviceItem | None:
    """Of an estimate's own advice, what makes it fit and costs least speed; None where it fits already or nothing does."""
    if found.fits is not False or found.limit_bytes is None:
        return None
    enough = [
        one for one in found.advice if found.needed_bytes - one.saving_bytes <= found.limit_bytes
    ]
    return min(enough, key=lambda one: PAIN.get(NAMES.get(one.change, ""), 3), default=None)
