"""The report of a run: a dict, as `memagent run --report` writes it, and a card in a notebook.

The card is HTML with inline styles; all text is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from memagent.delivery.buffer import DroppedSamples
from memagent.estimator.estimate import Estimate
from memagent.oom.report import OomReport, search_sentence
from memagent.record.identity import Identity
from memagent.sampling.sampler import Sampler
from memagent.units import format_bytes
from memagent.wire.codec import to_builtins
from memagent.wire.messages import Risk, Suspect

__all__ = ["build_report", "escape", "render_card"]


def predicted_peak_bytes(report: Mapping[str, Any]) -> int | None:
    """Return the expected peak of a report; None without a prediction, and for a bound."""
    prediction = report["prediction"]
    if prediction is None or prediction.get("method") == "bound":
        return None
    return int(prediction["peak_allocated_bytes"])


def build_report(
    identity: Identity,
    status: str,
    sampler: Sampler,
    drops: DroppedSamples,
    prediction: Estimate | None,
    risks: Sequence[Risk],
    suspects: Sequence[Suspect],
    search: Mapping[str, Any],
    oom: OomReport | None,
) -> dict[str, Any]:
    """Build a JSON-ready report (docs/cli.md).

    `peaks` is by device; `components`, `phases`, `prediction` and `forecast` are those of the
    device that the model trains on.
    """
    first = sampler.tracks[0]
    device_id = first.probe.device.id
    return {
        "run_id": identity.run_id,
        "rank": identity.rank,
        "status": status,
        "steps": sampler.step,
        "samples": sampler.samples,
        "dropped_samples": dict(drops),
        "peaks": {
            track.probe.device.id: {
                "name": track.probe.device.name,
                "peak_allocated_bytes": track.total_peak,
                "limit_bytes": track.probe.device.limit_bytes,
                "limit_source": track.probe.device.limit_source,
            }
            for track in sampler.tracks
        },
        "components": first.components_by_name(),
        "phases": dict(first.phase_peaks),
        "prediction": prediction.to_dict() if prediction else None,
        "forecast": next((to_builtins(risk) for risk in risks if risk.device == device_id), None),
        "suspects": [suspect.to_dict() for suspect in suspects],
        "suspect_search": None if suspects else search_sentence(search),
        "out_of_memory": oom.to_dict() if oom is not None else None,
    }


_CARD_STYLE = (
    "display:inline-block;min-width:24em;padding:.7em 1em;"
    "border:1px solid rgba(128,128,128,.4);border-radius:6px"
)
_BAR_STYLE = (
    "height:.5em;border-radius:3px;background:rgba(128,128,128,.25);"
    "overflow:hidden;margin:.1em 0 .4em"
)
_GREEN, _BLUE, _ORANGE, _RED = "#2e9e5b", "#2f7fd1", "#d99a1c", "#d64545"
_STATUS_COLORS = {"completed": _GREEN, "running": _BLUE, "failed": _RED, "oom": _RED}


def render_card(
    report: Mapping[str, Any],
    *,
    location: str,
    name: str | None = None,
    url: str | None = None,
    total_steps: int | None = None,
) -> str:
    """Render the result of `Run.report()`; `location` is shown if the run has no `url`."""
    link = (
        f'<a href="{escape(url)}" target="_blank" rel="noopener">{escape(url)}</a>' if url else ""
    )
    parts = [
        _title(report, name),
        f"<div>step {report['steps']:,}{f' of {total_steps:,}' if total_steps else ''}</div>",
        *_peaks(report["peaks"]),
        *_forecast(report),
        link or f"<code>{escape(location)}</code>",
    ]
    return f'<div class="memagent-run" style="{_CARD_STYLE}">{"".join(parts)}</div>'


def _title(report: Mapping[str, Any], name: str | None) -> str:
    status, run_id = str(report["status"]), str(report["run_id"])
    color = _STATUS_COLORS.get(status, "#808080")
    label = f"<b>{escape(name or run_id)}</b>"
    if name and name != run_id:
        label += f' <span style="opacity:.65">{escape(run_id)}</span>'
    return f'<div>{label} <span style="color:{color}">{escape(status)}</span></div>'


def _peaks(peaks: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for device, peak in peaks.items():
        used, limit = peak["peak_allocated_bytes"] or 0, peak["limit_bytes"]
        label = escape(str(peak["name"] or device))
        of_limit = f" of {format_bytes(limit)}" if limit else ""
        yield f"<div>{label}: peak {format_bytes(used)}{of_limit}</div>"
        if limit:
            yield _bar(used / limit)


def _bar(share: float) -> str:
    color = _RED if share >= 0.95 else _ORANGE if share >= 0.85 else _GREEN
    width = f"{100 * min(1.0, max(0.0, share)):.1f}%"
    return (
        f'<div role="img" aria-label="{share:.0%} of the limit" style="{_BAR_STYLE}">'
        f'<div style="width:{width};height:100%;background:{color}"></div></div>'
    )


def _forecast(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the predicted peak, and the newest forecast if it isn't calm."""
    predicted, risk = predicted_peak_bytes(report), report["forecast"]
    if predicted is not None:
        yield f"<div>predicted peak {format_bytes(predicted)}</div>"
    if risk and risk["level"] != "ok":
        eta, cause = risk.get("eta_step"), risk.get("cause")
        text = str(risk["level"])
        text += f": expected to run out of memory at step {eta:,.0f}" if eta is not None else ""
        text += f" (cause: {cause})" if cause else ""
        yield f'<div style="color:{_RED}">{escape(text)}</div>'
