"""Score of the first alarms."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.forecast.baselines import Detector
from benchmarks.forecast.traces import Alarm, Trace

ENOUGH_STEPS, ENOUGH_LIFE = 10, 0.05


@dataclass(frozen=True)
class Score:
    """Shares are of 1; `lead` is the median share of the run's life left at the first page. A page
    that `recall` counts comes 10 steps ahead, one that `early` counts also a twentieth of the life.

    Without `planned` steps a slow leak can't be recognised, and without deaths there is no recall:
    such a figure is None.
    """

    name: str
    recall: float | None
    early: float | None
    false_alarms_per_1000: float | None
    lead: float | None
    eta_error: float | None
    eta_covered: float | None
    cause_right: float | None
    us_per_step: float
    families: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def score(name: str, detector: Detector, traces: Sequence[Trace]) -> Score:
    """`recall` and the ETA figures cover the trending families."""
    hits, early, false, leads, errors, covered, causes = ([] for _ in range(7))
    families: dict[str, list[bool]] = defaultdict(list)
    seconds, steps = 0.0, 0
    for trace in traces:
        begun = time.process_time()
        alarm = detector(trace)
        seconds += time.process_time() - begun
        steps += 1 + (alarm.step if alarm else len(trace.columns["step"]))
        if trace.death is None:
            false.append(alarm is not None)
            families[trace.family].append(alarm is not None)
            continue
        lead_steps = trace.death - alarm.step if alarm else 0
        families[trace.family].append(lead_steps >= (ENOUGH_STEPS if trace.trending else 1))
        if trace.trending:
            hits.append(lead_steps >= ENOUGH_STEPS)
            early.append(hits[-1] and lead_steps >= ENOUGH_LIFE * trace.death)
        if alarm and alarm.cause:
            causes.append(alarm.cause == trace.cause)
        if alarm and lead_steps >= 1 and trace.trending:
            leads.append(lead_steps / trace.death)
            _eta(alarm, trace.death, errors, covered)
    return Score(
        name, _mean(hits), _mean(early), None if not false else 1000 * statistics.fmean(false), _median(leads), _median(errors), _mean(covered),
        _mean(causes), 1e6 * seconds / steps, {family: statistics.fmean(outcomes) for family, outcomes in families.items()},
    )  # fmt: skip


def _eta(alarm: Alarm, death: int, errors: list[float], covered: list[bool]) -> None:
    if alarm.eta_step is not None:
        errors.append(abs(alarm.eta_step - death) / (death - alarm.step))
    if alarm.eta_low is not None and alarm.eta_high is not None:
        covered.append(alarm.eta_low <= death <= alarm.eta_high)


def table(scores: Sequence[Score]) -> str:
    """Format the detectors, then the families of the first of them."""
    lines = [
        _row(
            "",
            ("recall", "early", "false/1000", "lead", "ETA error", "covered", "cause", "us/step"),
        )
    ]
    lines += [_row(one.name, _cells(one)) for one in scores]
    first = scores[0]
    lines += ["", f"share of runs that {first.name} warned of, by family"]
    lines += [f"   {family:32} {share:.3f}" for family, share in sorted(first.families.items())]
    return "\n".join(lines)


def _cells(one: Score) -> tuple[str, ...]:
    shares = (one.lead, one.eta_error, one.eta_covered, one.cause_right)
    return (
        _cell(one.recall, ".3f"), _cell(one.early, ".3f"), _cell(one.false_alarms_per_1000, ".0f"), *(_cell(share, ".0%") for share in shares),
        f"{one.us_per_step:.1f}",
    )  # fmt: skip


def _row(name: str, cells: Sequence[str]) -> str:
    return f"{name:26}" + "".join(cell.rjust(12) for cell in cells)


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _mean(values: Sequence[bool]) -> float | None:
    return statistics.fmean(values) if values else None


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
