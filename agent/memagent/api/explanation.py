"""Why a run ended as it did: cause, line, fix and evidence, from what is stored. Pure.

1. A run that ran out of memory is explained by its OOM report (`memagent.oom.report`).
2. Another run is explained by its error, its open alerts, and its newest forecast.
3. The first suspect has its source and, if a change of its line is enough, a patch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from typing import Any

from memagent.estimator.advice.by_cause import advice_for_cause
from memagent.estimator.advice.line_fixes import change_in_source
from memagent.leaks.source_excerpt import MAX_LINE_CHARACTERS
from memagent.oom.cause import EventData, location_text
from memagent.oom.report import OomReport
from memagent.record.masking import MASK
from memagent.units import format_bytes

_STATUS_TEXTS = {
    "running": "The run is active.",
    "completed": "The run completed.",
    "stopped": "The run was stopped from outside.",
    "failed": "The run failed.",
    "oom": "The run ran out of memory.",
    "lost_contact": "The run stopped reporting: its process was killed, or its machine is gone.",
}
_MAX_EVIDENCE = 20
LAST_LINES = 20


@dataclass(frozen=True)
class Explanation:
    """`title` and `cause` are sentences, `evidence` lists more; `line` is `train.py:42`.

    `source` are numbered lines around it, `changes` what to do: (sentence, code).
    """

    run_id: str
    status: str
    title: str
    cause: str | None
    line: str | None
    holder: str | None
    source: tuple[tuple[int, str], ...]
    patch: str | None
    changes: tuple[tuple[str, str], ...]
    evidence: tuple[str, ...]
    console: tuple[str, ...] = ()
    """The last lines that it printed."""

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {
            "run_id": self.run_id,
            "status": self.status,
            "title": self.title,
            "cause": self.cause,
            "line": self.line,
            "holder": self.holder,
            "source": [{"line": number, "text": text} for number, text in self.source],
            "patch": self.patch,
            "changes": [{"change": change, "code": code} for change, code in self.changes],
            "evidence": list(self.evidence),
            "console": list(self.console),
        }

    def text(self) -> str:
        """Return it for a person in a terminal."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.run_id}: {self.title}"
        if self.cause:
            yield f"cause: {self.cause}"
        if self.line:
            yield f"line: {self.line}" + (f": {self.holder}" if self.holder else "")
        for number, text in self.source:
            mark = ">" if self.line and self.line.endswith(f":{number}") else " "
            yield f"  {mark} {number:>5} | {text}"
        for change, code in self.changes:
            yield f"change: {change}"
            # the patch below has the same change with its surroundings
            if not (self.patch and code.startswith("- ")):
                yield from (f"    {text}" for text in code.splitlines())
        if self.patch:
            yield "patch (a proposal; apply it with `git apply` or `patch -p1`):"
            yield from (f"    {text}" for text in self.patch.splitlines())
        if self.evidence:
            yield "evidence:"
            yield from (f"  - {text}" for text in self.evidence)
        if self.console:
            yield "the last lines of its console:"
            yield from (f"    {text}" for text in self.console)


def explain(
    run: EventData,
    *,
    death: OomReport | None,
    suspects: Sequence[EventData],
    forecasts: Sequence[EventData],
    alerts: Sequence[EventData],
    prediction: EventData | None,
    console: Sequence[str] = (),
) -> Explanation:
    """Explain a run from its fields and what `StoredRun` reads about it."""
    suspect = next(iter(death.suspects if death else suspects), None)
    forecast = max(forecasts, key=lambda item: item["oom_probability"], default=None)
    if death is not None:
        title, cause = f"{death.title}.", death.cause.sentence if death.cause else None
        changes = [(change, code) for change, _, code in death.changes]
        evidence = list(_evidence_of_death(death))
    else:
        title = _STATUS_TEXTS.get(run["status"], f"The run is {run['status']}.")
        cause = run.get("error") or _cause_of(forecast)
        changes = _changes_for(forecast, suspect, prediction)
        evidence = list(_evidence(run, forecast, alerts, prediction))
    # agents before the excerpts, and OOM events, have no source
    first = (suspect.get("source_first_line") or 0) if suspect else 0
    source = enumerate(suspect.get("source") or (), first) if suspect else ()
    return Explanation(
        run_id=run["id"],
        status=run["status"],
        title=title,
        cause=cause,
        line=location_text(suspect) if suspect else None,
        holder=_holder_text(suspect) if suspect else None,
        source=tuple(source),
        patch=patch_of(suspect, on_host=run.get("device") == "host") if suspect else None,
        changes=tuple(changes),
        evidence=tuple(evidence[:_MAX_EVIDENCE]),
        console=tuple(console[-LAST_LINES:]),
    )


def patch_of(suspect: EventData, *, on_host: bool = False) -> str | None:
    """Return a unified diff of the suspect's line, None if it needs more than that line."""
    change = change_in_source(suspect, on_host=on_host)
    lines, first = list(suspect.get("source") or ()), suspect.get("source_first_line") or 0
    # masked or cut, it isn't what the file has
    if change is None or any(MASK in text or len(text) >= MAX_LINE_CHARACTERS for text in lines):
        return None
    index, line, changed = change
    after = [*lines[:index], lines[index].replace(line, changed, 1), *lines[index + 1 :]]
    name = str(suspect.get("file") or "script.py").lstrip("/")
    diff = list(unified_diff(lines, after, f"a/{name}", f"b/{name}", lineterm="", n=len(lines)))
    # the excerpt begins inside of the file
    diff[2] = f"@@ -{first},{len(lines)} +{first},{len(after)} @@"
    # without a line break at its end, which `git apply` wants: printing adds it
    return "\n".join(diff)


def _holder_text(suspect: EventData) -> str:
    rate = suspect.get("bytes_per_step")
    growth = f", {format_bytes(rate)} a step" if rate else ""
    return f"{suspect['holder']}{growth}"


def _evidence_of_death(death: OomReport) -> Iterator[str]:
    if death.cause and death.cause.without_growth:
        yield death.cause.without_growth
    if death.search:
        yield death.search
    yield from death.findings
    if death.components:
        sizes = (
            f"{name.replace('_', ' ')} {format_bytes(size)}" for name, size in death.components
        )
        yield f"Held: {', '.join(sizes)}."


def _cause_of(forecast: EventData | None) -> str | None:
    if forecast is None or forecast["level"] == "ok" or not forecast.get("cause"):
        return None
    return (
        f"{str(forecast['cause']).replace('_', ' ')}. {advice_for_cause(forecast['cause']).summary}"
    )


def _changes_for(
    forecast: EventData | None, suspect: EventData | None, prediction: EventData | None
) -> list[tuple[str, str]]:
    if suspect is not None:
        change = f"At {location_text(suspect)}: {suspect.get('fix') or 'store less there.'}"
        return [(change, "")]
    if forecast is None or forecast["level"] == "ok":
        return []
    advice = advice_for_cause(forecast.get("cause"), (prediction or {}).get("advice") or ())
    return [(advice.change, advice.code)]


def _evidence(
    run: EventData,
    forecast: EventData | None,
    alerts: Sequence[EventData],
    prediction: EventData | None,
) -> Iterator[str]:
    peak, limit = run.get("peak_bytes"), run.get("limit_bytes")
    if peak:
        of_limit = f" of {format_bytes(limit)}, {peak / limit:.0%}" if limit else ""
        yield f"The peak was {format_bytes(peak)}{of_limit}, by step {run['step'] or 0:,}."
    if prediction:
        yield f"The predicted peak was {format_bytes(prediction['peak_allocated_bytes'])}."
    if forecast is not None:
        share = f"{forecast['oom_probability']:.0%}"
        eta = f", at about step {forecast['eta_step']:,.0f}" if forecast.get("eta_step") else ""
        yield f"The newest forecast: out of memory with a probability of {share}{eta}."
    for alert in alerts[:5]:
        yield f"Alert {alert['id']}, {alert['rule'].replace('_', ' ')}: {alert['state']}."
