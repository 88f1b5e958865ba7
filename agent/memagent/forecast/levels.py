"""The level of a projection: how urgent it is, and whether it is worth a page.

1. A trend pages only as far ahead as it has lasted: further if it has outgrown the prediction, less
   far below it. It's a notice up to a third further ahead, but no further than a leak's, and silent
   if it ends beyond the planned steps at the earliest, or with the epoch, or until the next one
   shows that it goes on. No level rises while the growth pauses for longer than it ever did.
2. A page is a decision under cost: it's sent if the probability of an OOM, times the
   cost of a lost run, exceeds the cost of a page. So `page_cost`, the second cost as a share of the
   first, is the probability from which a page is worth it.
3. A buffer whose bound is known doesn't run out of memory if the rest fits: a full one needs
   nothing. If the rest can't fit, it's as urgent as a list. One whose end is unknown is a cache.
4. Memory beyond its end shows that something else grows, of which nothing is known.
"""

from __future__ import annotations

import msgspec

from memagent.forecast.calibration import Evidence, death_probability
from memagent.forecast.predecessor import GrowthOutcome
from memagent.forecast.projection import LAST_STEPS, NEVER, NOTICE_AHEAD, PAGE_AHEAD, Projection
from memagent.forecast.types import LEAK_CAUSES, LEVELS, PAGING_LEVELS, Cause, Growing, Level

# Factors were fitted to the traces of the forecast benchmark (docs/forecast.md).
CRITICAL_S = 120.0
"""Seconds left from which there is only time to save: a choice, not fitted."""
CRITICAL_STEPS = 20
"""Used instead of CRITICAL_S if samples have no times."""
EXPECTED_GROWTH_FACTOR = 3
"""Growth up to the prediction is trusted less far ahead, by this factor."""
UNEXPECTED_GROWTH_FACTOR = 1.5
"""A leak above the estimator's prediction is trusted further ahead, by this factor."""
PREDICTION_ERROR = 1.02
"""Observed over predicted peak from which a leak has outgrown the prediction: its usual error."""
DIAGNOSIS_AHEAD: dict[Cause, float] = {"leak": 3.0, "host_memory": 1.3}
"""Steps ahead from which growth is worth a diagnosis, over the steps it has lasted. Nobody sees it,
so what it finds may come before the page. That of a host costs more."""
PAGE_AHEAD_BY_GROWING: dict[Growing, float] = {
    "list": 2.0,
    "buffer": 0.2,
    "cache": 0.1,
    "epoch": 0.1,
}
"""Steps ahead that growth may page, over the steps it has lasted, by what keeps it. Growth that
ends by itself mostly does so below the limit, but not always: it pages close to it."""
KNOWN_JUMPS_AHEAD = 0.05
"""The same for growth by few jumps of anything but a list."""
PAGE_COST = 0.25
"""A page costs a person a quarter of what a lost run costs. At 0.33 and 0.38 fewer of the real runs
that die are warned, in both halves of the programs, and those that live are paged as often in the
half held out (docs/forecast.md). A team that thinks otherwise sets its own."""
NOTICE_PROBABILITY = 0.4
"""A notice is worth a line from here on: growth that ends by itself more often than not isn't."""
MIN_REACH = 1e-3
"""Distance by which the one to a limit is divided if growth never pages."""
STEPS_TO_WAIT = 20
"""A page waits for a diagnosis while more steps than these are left."""
REST_ERROR = 0.1
"""Relative error of a buffer's rest: the average of its entries rarely changes by more."""
EPOCH_BEGINS = 0.1
"""Share of an epoch in which growth of the one before shows whether it goes on: as long as growth
must pause to have stopped."""
HELD_CAUSES = (*LEAK_CAUSES, "fragmentation")
"""Causes of growth that the finder may know: what is kept leaves free pieces around it."""
EVIDENCE_BY_CAUSE: dict[Cause, Evidence] = {
    "leak": "leak",
    "host_memory": "host_memory",
    "input": "input",
}
"""Evidence of growth of which nothing else is known."""
FREED_WITH_EPOCH = ("leak", "input", "host_memory")
"""Causes of growth that an epoch's end may free."""


class KnownGrowth(msgspec.Struct, frozen=True, gc=False):
    """What the leak finder knows of the growing memory: what keeps it, and where a buffer ends.

    grows: None if unknown. end_bytes: held once a buffer is full, None if unknown. error_bytes: by
    how much that may be off, a share of the rest: later entries may be larger.
    """

    grows: Growing | None = None
    end_bytes: int | None = None
    error_bytes: float = 0.0

    def learn(
        self, grows: Growing | None, end_bytes: int | None, floor: float | None
    ) -> KnownGrowth:
        """Return it with what is new; None changes nothing. floor: bytes held now, if known."""
        if end_bytes in (None, self.end_bytes):
            return KnownGrowth(grows or self.grows, self.end_bytes, self.error_bytes)
        rest = end_bytes - (floor or 0)
        error = REST_ERROR / (1 - REST_ERROR) * max(0.0, rest)
        return KnownGrowth(grows or self.grows, end_bytes, error)

    def fits(self, floor: float, headroom_bytes: float) -> bool:
        """Return True if it ends below the limit (rule 3). floor: bytes held now."""
        rest = self._rest_bytes(floor)
        return rest is not None and (1 + REST_ERROR) * rest <= max(0.0, headroom_bytes)

    def counts_as(self, floor: float, headroom_bytes: float) -> Growing | None:
        """Return what the growth is as urgent as (rules 3, 4)."""
        rest = self._rest_bytes(floor)
        if rest is None:
            if self.grows != "buffer":
                return self.grows
            return "cache" if self.end_bytes is None else None
        return "list" if (1 - REST_ERROR) * rest > max(0.0, headroom_bytes) else "buffer"

    def _rest_bytes(self, floor: float) -> float | None:
        end = self.end_bytes
        if self.grows != "buffer" or end is None or floor > end + self.error_bytes:
            return None
        return max(0.0, end - floor)


class Situation(msgspec.Struct, frozen=True, gc=False):
    """Facts about a run that decide how far a projection may page. Sizes are bytes."""

    step: int
    previous: Level
    """Level after the step before."""
    planned_steps_left: float
    """Infinite without a plan."""
    seconds_left: float | None
    """Until memory runs out; None if samples have no times."""
    peak_bytes: float
    """Peak of the recent steps."""
    epoch_steps: int | None
    predicted_peak_bytes: int | None
    grows: Growing | None = None
    is_diagnosed: bool = False
    """A diagnosis looks for what grows."""
    outcome: GrowthOutcome | None = None
    """The end of the same growth in the run's predecessor."""


def level_of(nearest: Projection, situation: Situation, reach: float) -> Level:
    """Return the level of the projection that ends first. reach: see `reach_of`."""
    is_paging = situation.previous in PAGING_LEVELS
    # double tolerance while paging, so that the level doesn't flap
    # the earliest: a plan that ends just after the death must not make its page later
    if nearest.steps_left_low > situation.planned_steps_left * (1.1 if is_paging else 1.0):
        return "ok"
    page_ahead = reach * (2.0 if is_paging else 1.0)
    is_near = nearest.ahead <= page_ahead and not _ends_with_epoch(nearest, situation)
    # a notice stays for any growth, so that it doesn't flap when evidence wavers
    noticed = min(reach, PAGE_AHEAD) if situation.previous == "ok" else PAGE_AHEAD
    level: Level = "notice" if nearest.ahead <= NOTICE_AHEAD * noticed else "ok"
    if is_near or situation.outcome == "died":
        level = "critical" if _is_close(nearest, situation) else "warning"
    if nearest.pauses and situation.outcome != "died":
        # it may have ended, so nobody hears more of it
        return min(level, situation.previous, key=LEVELS.index)
    return level


def is_worth_diagnosis(nearest: Projection | None) -> bool:
    """Return True for a leak that may page as soon as it's known what keeps it."""
    return nearest is not None and nearest.ahead <= DIAGNOSIS_AHEAD.get(nearest.cause, NEVER)


def worthwhile(level: Level, probability: float, page_cost: float) -> Level:
    """Return the level that's worth it by rule 2; a page that isn't is a notice, if anything."""
    if level in PAGING_LEVELS and probability > page_cost:
        return level
    return "ok" if level == "ok" or probability <= NOTICE_PROBABILITY else "notice"


def evidence_of(nearest: Projection, situation: Situation, reach: float) -> tuple[Evidence, float]:
    """Return what is known of growth, and the distance that `calibration` counts by."""
    if situation.outcome:
        return situation.outcome, 0.0
    if _ends_with_epoch(nearest, situation):
        return "epoch_end", 0.0
    distance = nearest.ahead / max(reach, MIN_REACH)
    known = situation.grows
    if nearest.cause in HELD_CAUSES and known is not None and known != "unknown":
        return known, distance
    if nearest.steps_left > situation.planned_steps_left:
        return "planned", nearest.steps_left / max(situation.planned_steps_left, 1.0)
    return EVIDENCE_BY_CAUSE.get(nearest.cause, "reserve"), distance


def probability_of(nearest: Projection, situation: Situation, reach: float) -> float:
    """Return the calibrated probability of an OOM by this growth."""
    return death_probability(*evidence_of(nearest, situation, reach))


def reach_of(nearest: Projection, situation: Situation) -> float:
    """Return up to which distance the projection may page (rule 1)."""
    reach = _page_ahead(nearest, situation)
    if nearest.steps_left > LAST_STEPS and _is_predicted(situation):
        return reach / EXPECTED_GROWTH_FACTOR
    if _exceeds_prediction(nearest, situation):
        return reach * UNEXPECTED_GROWTH_FACTOR
    return reach


def _page_ahead(nearest: Projection, situation: Situation) -> float:
    """Return up to which distance the projection may page, given what grows."""
    if nearest.cause not in LEAK_CAUSES:
        return nearest.page_ahead
    if situation.grows == "list":
        return PAGE_AHEAD_BY_GROWING["list"]
    is_first = situation.previous not in PAGING_LEVELS
    if is_first and situation.is_diagnosed and nearest.steps_left > STEPS_TO_WAIT:
        return NEVER
    if situation.grows is None:
        return nearest.page_ahead
    known = PAGE_AHEAD_BY_GROWING.get(situation.grows, nearest.page_ahead)
    return min(known, nearest.page_ahead, KNOWN_JUMPS_AHEAD if nearest.is_by_jumps else known)


def _is_close(nearest: Projection, situation: Situation) -> bool:
    tolerance = 1.2 if situation.previous == "critical" else 1.0
    if situation.seconds_left is None:
        return nearest.steps_left <= CRITICAL_STEPS * tolerance
    return situation.seconds_left <= CRITICAL_S * tolerance


def _ends_with_epoch(nearest: Projection, situation: Situation) -> bool:
    """Return True for growth of less than an epoch that may be freed at the epoch's end."""
    epoch = situation.epoch_steps
    if not epoch or nearest.cause not in FREED_WITH_EPOCH or nearest.span_steps > 1.2 * epoch:
        return False
    past = situation.step % epoch
    if situation.step >= epoch and past < EPOCH_BEGINS * epoch:
        return True  # what grew for the epoch has hardly had time to show that it stopped
    return 0.8 * nearest.steps_left > epoch - past


def _is_predicted(situation: Situation) -> bool:
    """Return True for growth up to the prediction, which needs more evidence."""
    predicted = situation.predicted_peak_bytes
    return bool(predicted) and situation.peak_bytes < 0.98 * (predicted or 0)


def _exceeds_prediction(nearest: Projection, situation: Situation) -> bool:
    """Return True for a leak that has outgrown the prediction, so nothing explains it.

    If the run was above it all along, the prediction is wrong. Growth by jumps, or that dies out,
    may be that of compiled graphs, which no estimate covers.
    """
    predicted = situation.predicted_peak_bytes
    if not predicted or nearest.cause != "leak" or nearest.page_ahead < PAGE_AHEAD:
        return False
    before = situation.peak_bytes - nearest.slope * nearest.span_steps
    return before < predicted < situation.peak_bytes / PREDICTION_ERROR
