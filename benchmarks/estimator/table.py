"""Output: the agreement of the truths, a table of summaries, and every case with every estimator's
error.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.estimator.estimators import ESTIMATORS
from benchmarks.estimator.replayed import Repeated
from benchmarks.estimator.score import Result, Summary
from benchmarks.estimator.truths import Truth

_HEAD = (
    "",
    "cases",
    "median",
    "p90",
    "worst",
    "exact",
    "covered",
    "s",
    "worst case; what is missing",
)
_ALIKE = 1e-4
_SHORT = {
    "memagent, trace": "trace", "memagent, formula": "formula", "torch MemTracker": "MemTracker",
    "DeepSpeed ZeRO-2": "ZeRO-2", "DeepSpeed ZeRO-3": "ZeRO-3", "parameters x 16": "x 16",
}  # fmt: skip


def printed(
    truths: Sequence[Truth],
    results: Sequence[Result],
    summaries: Sequence[Summary],
    histories: Sequence[Repeated],
) -> str:
    """Format everything."""
    return "\n\n".join(
        [
            _checked(truths),
            _histories(histories),
            _summaries(summaries),
            _verdicts(summaries),
            *_cases(results),
        ]
    )


def percent(ratio: float | None, *, signed: bool = False) -> str:
    """Format three significant digits: `0`, `0.0107 %`, `-12.2 %`; a dash for None."""
    if ratio is None:
        return "-"
    size = abs(100 * ratio)
    digits = (
        0
        if size >= 100 or size == 0
        else 1
        if size >= 10
        else 2
        if size >= 1
        else 3
        if size >= 0.1
        else 4
    )
    return f"{100 * ratio:{'+' if signed and size else ''}.{digits}f} %"


def _checked(truths: Sequence[Truth]) -> str:
    """Format the difference between the two methods, and the cases without a truth."""
    pairs = [
        (truth.profiled_bytes / truth.counted_bytes - 1, truth)
        for truth in truths
        if truth.profiled_bytes and truth.counted_bytes
    ]
    alike = sum(abs(difference) <= _ALIKE for difference, _ in pairs)
    rows = [
        f"-- peaks by torch.profiler less those of the storages counted: {alike} of {len(pairs)} within 0.01 %"
    ]
    rows += [
        f"   {truth.case.name}: {percent(gap, signed=True)}"
        for gap, truth in pairs
        if abs(gap) > _ALIKE
    ]
    unmeasured = [
        f"   {truth.case.name}: {truth.note}" for truth in truths if not truth.levels and truth.note
    ]
    return "\n".join(rows + ["-- not measured"] * bool(unmeasured) + unmeasured)


def _histories(histories: Sequence[Repeated]) -> str:
    """Format the results of the simulator alone."""
    if not histories:
        return "-- the allocator simulator alone: no history has been recorded on a GPU yet"
    exact = sum(one.exact is True for one in histories)
    rows = [
        f"-- the allocator simulator alone: {exact} of {len(histories)} recorded histories exact"
    ]
    wrong = (one for one in histories if not one.exact)
    return "\n".join(
        rows
        + [
            f"   {one.source}, {one.case}: {one.note or f'off by {one.worst_bytes} bytes'}"
            for one in wrong
        ]
    )


def _summaries(summaries: Sequence[Summary]) -> str:
    rows: list[tuple[str, ...]] = [_HEAD]
    for title in dict.fromkeys((summary.source, summary.level) for summary in summaries):
        rows.append((f"-- {title[0]}: {title[1]}", *[""] * (len(_HEAD) - 1)))
        rows += [
            _summary_row(summary)
            for summary in summaries
            if (summary.source, summary.level) == title
        ]
    return aligned(rows)


def _summary_row(summary: Summary) -> tuple[str, ...]:
    judged = summary.cases - summary.failed - summary.left_out
    missing = [f"{summary.failed} failed"] * bool(summary.failed) + [
        f"{summary.left_out} left out"
    ] * bool(summary.left_out)
    return (
        f"   {summary.estimator}",
        str(judged),
        percent(summary.median_ratio),
        percent(summary.p90_ratio),
        percent(summary.worst_ratio, signed=True),
        percent(summary.exact_ratio),
        percent(summary.covered_ratio),
        "-" if summary.median_s is None else f"{summary.median_s:.3f}",
        "; ".join([summary.worst_case] * bool(summary.worst_case) + missing),
    )


def _verdicts(summaries: Sequence[Summary]) -> str:
    """Format the verdicts at limits around the truth and at those of cards, over all limits and
    over those outside intervals.
    """
    rows: list[tuple[str, ...]] = [
        (
            "fits / won't fit",
            "OOM recall",
            "false alarms",
            "in doubt",
            "else recall",
            "false alarms",
            "",
        )
    ]
    for title in dict.fromkeys((summary.source, summary.level) for summary in summaries):
        rows.append((f"-- {title[0]}: {title[1]}", *[""] * 6))
        for one in summaries:
            if (one.source, one.level) == title and one.recall_ratio is not None:
                ratios = (
                    one.recall_ratio,
                    one.false_alarm_ratio,
                    one.doubt_ratio,
                    one.sure_recall_ratio,
                    one.sure_false_alarm_ratio,
                )
                rows.append((f"   {one.estimator}", *map(percent, ratios), ""))
    return aligned(rows)


def _cases(results: Sequence[Result]) -> list[str]:
    parts = []
    for source, level in dict.fromkeys((result.source, result.level) for result in results):
        chosen = [result for result in results if (result.source, result.level) == (source, level)]
        rows: list[tuple[str, ...]] = [
            ("", "MiB", *(_SHORT.get(name, name) for name in ESTIMATORS), "")
        ]
        rows.append(
            (f"-- {source}: {level}, predicted over true less one", *[""] * (len(rows[0]) - 1))
        )
        for case in dict.fromkeys(result.case for result in chosen):
            rows.append(
                _case_row(
                    case, {result.estimator: result for result in chosen if result.case == case}
                )
            )
        parts.append(aligned(rows))
    return parts


def _case_row(case: str, by_estimator: dict[str, Result]) -> tuple[str, ...]:
    true = next(iter(by_estimator.values())).true_bytes
    failures = [
        f"{_SHORT.get(r.estimator, r.estimator)}: {r.note}"
        for r in by_estimator.values()
        if r.note and not r.left_out
    ]
    errors = (percent(by_estimator[name].error_ratio, signed=True) for name in ESTIMATORS)
    return (
        f"   {case}",
        "died" if true is None else f"{true / 2**20:,.2f}",
        *errors,
        "; ".join(failures),
    )


def aligned(rows: Sequence[tuple[str, ...]]) -> str:
    """Align columns: the first left, the last unchanged, the others right. A title doesn't widen
    its column.
    """
    last = len(rows[0]) - 1
    widths = [
        max(len(row[at]) for row in rows if at or not row[0].startswith("--")) for at in range(last)
    ]
    lines = []
    for row in rows:
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:last], widths[1:], strict=True)),
            row[last],
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
