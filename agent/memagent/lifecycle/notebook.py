"""How a notebook shows a run: one small card. Values in, HTML out; every text is escaped, and styles stand inline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from memagent.units import format_bytes

_CARD = "display:inline-block;min-width:24em;padding:.7em 1em;border:1px solid rgba(128,128,128,.4);border-radius:6px"
_BAR = "height:.5em;border-radius:3px;background:rgba(128,128,128,.25);overflow:hidden;margin:.1em 0 .4em"
_COLOURS = {"completed": "#2e9e5b", "running": "#2f7fd1", "failed": "#d64545", "oom": "#d64545"}
_CALM, _NEAR, _FULL = "#2e9e5b", "#d99a1c", "#d64545"


def card(
    report: Mapping[str, Any],
    *,
    place: str,
    name: str | None = None,
    url: str | None = None,
    total_steps: int | None = None,
) -> str:
    """HTML of a run. `report` is that of `Run.report()`, `place` says where the run is recorded when there is no `url`."""
    parts = [
        _title(report, name),
        f"<div>step {report['steps']:,}{f' of {total_steps:,}' if total_steps else ''}</div>",
        *_peaks(report["peaks"]),
        *_outlook(report),
        f'<a href="{escape(url)}" target="_blank" rel="noopener">{escape(url)}</a>'
        if url
        else f"<code>{escape(place)}</code>",
    ]
    return f'<div class="memagent-run" style="{_CARD}">{"".join(parts)}</div>'


def _title(report: Mapping[str, Any], name: str | None) -> str:
    status, run_id = str(report["status"]), str(report["run_id"])
    colour = _COLOURS.get(status, "#808080")
    beside = (
        f' <span style="opacity:.65">{escape(run_id)}</span>' if name and name != run_id else ""
    )
    return f'<div><b>{escape(name or run_id)}</b>{beside} <span style="color:{colour}">{escape(status)}</span></div>'


def _peaks(peaks: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for device, peak in peaks.items():
        used, limit = peak["peak_allocated_bytes"] or 0, peak["limit_bytes"]
        label = escape(str(peak["name"] or device))
        yield f"<div>{label}: peak {format_bytes(used)}{f' of {format_bytes(limit)}' if limit else ''}</div>"
        if limit:
            yield _bar(used / limit)


def _bar(share: float) -> str:
    colour = _FULL if share >= 0.95 else _NEAR if share >= 0.85 else _CALM
    width = f"{100 * min(1.0, max(0.0, share)):.1f}%"
    return (
        f'<div role="img" aria-label="{share:.0%} of the limit" style="{_BAR}">'
        f'<div style="width:{width};height:100%;background:{colour}"></div></div>'
    )


def _outlook(report: Mapping[str, Any]) -> Iterator[str]:
    """The estimator's prediction, and the newest forecast where it is not calm."""
    prediction, risk = report["prediction"], report["forecast"]
    if prediction:
        yield f"<div>predicted peak {format_bytes(prediction['peak_allocated_bytes'])}</div>"
    if risk and risk["level"] != "ok":
        eta, cause = risk.get("eta_step"), risk.get("cause")
        text = risk["level"] + (
            f": expected to run out at step {eta:,.0f}" if eta is not None else ""
        )
        text += f" (cause: {cause})" if cause else ""
        yield f'<div style="color:{_FULL}">{escape(text)}</div>'
