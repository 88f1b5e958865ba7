"""What happened in the demo, from the server's API and the receiver's clock, and how it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memagent.forecast.types import PAGING_LEVELS
from memagent.units import format_bytes, format_duration
from memagent_demo.fake_slack import Message
from memagent_demo.processes import Ended, Server


@dataclass(frozen=True)
class Healthy:
    run_id: str
    status: str
    steps: int
    alerts: int
    peak_bytes: int | None
    limit_bytes: int | None


@dataclass(frozen=True)
class Leaking:
    """Steps are the run's; `warned_seconds_before` is from the Slack message's arrival to the process's end, `checkpoint_step` that of the
    checkpoint which the script saved in its `on_risk`."""

    run_id: str
    status: str
    oom_step: int
    first_warning_step: int | None
    eta_at_warning: float | None
    warned_seconds_before: float | None
    slack_text: str | None
    cause: str | None
    peak_bytes: int | None
    limit_bytes: int | None
    error: str | None
    checkpoint_step: int | None

    @property
    def eta_error_ratio(self) -> float | None:
        """How far off the first warning's ETA was, as a share of the steps that were left."""
        if (
            self.eta_at_warning is None
            or self.first_warning_step is None
            or self.oom_step <= self.first_warning_step
        ):
            return None
        return (self.eta_at_warning - self.oom_step) / (self.oom_step - self.first_warning_step)


def read_healthy(server: Server, run_id: str) -> Healthy:
    run = server.get(f"/api/v1/runs/{run_id}")
    alerts = server.get(f"/api/v1/alerts?run={run_id}")["alerts"]
    return Healthy(
        run_id, run["status"], run["step"], len(alerts), run["peak_bytes"], run["limit_bytes"]
    )


def read_leaking(server: Server, run_id: str, ended: Ended, messages: list[Message]) -> Leaking:
    """The first page-worthy forecast, and the first Slack message about this run, beside the death."""
    run = server.get(f"/api/v1/runs/{run_id}")
    history = server.get(f"/api/v1/runs/{run_id}/forecast")["history"]
    warnings = sorted(
        (item for item in history if item["level"] in PAGING_LEVELS),
        key=lambda item: int(item["step"]),
    )
    first: dict[str, Any] = warnings[0] if warnings else {}
    early = [
        message
        for message in messages
        if run_id in str(message.payload) and message.received_at < ended.ended_at
    ]
    return Leaking(
        run_id=run_id,
        status=run["status"],
        oom_step=run["step"],
        first_warning_step=first.get("step"),
        eta_at_warning=first.get("eta_step"),
        warned_seconds_before=ended.ended_at - early[0].received_at if early else None,
        slack_text=early[0].text if early else None,
        cause=first.get("cause"),
        peak_bytes=run["peak_bytes"],
        limit_bytes=run["limit_bytes"],
        error=run["error"],
        checkpoint_step=ended.checkpoint_step,
    )


def holds(healthy: Healthy, leaking: Leaking) -> bool:
    """Whether the product did its job: silence where nothing was wrong, a warning before the death, and time to save a checkpoint."""
    silent = healthy.status == "completed" and healthy.alerts == 0
    warned = leaking.warned_seconds_before is not None and leaking.checkpoint_step is not None
    return silent and leaking.status == "oom" and warned


def to_json(healthy: Healthy, leaking: Leaking, server: Server) -> dict[str, Any]:
    return {
        "healthy": {
            "run_id": healthy.run_id,
            "status": healthy.status,
            "steps": healthy.steps,
            "alerts": healthy.alerts,
        },
        "leaking": {
            "run_id": leaking.run_id,
            "status": leaking.status,
            "oom_step": leaking.oom_step,
            "first_warning_step": leaking.first_warning_step,
            "eta_at_warning": leaking.eta_at_warning,
            "warned_seconds_before": leaking.warned_seconds_before,
            "slack_text": leaking.slack_text,
            "checkpoint_step": leaking.checkpoint_step,
        },
        "database": server.database,
        "server": server.url,
    }


def tell_story(healthy: Healthy, leaking: Leaking, server: Server) -> str:
    """The timeline for people."""
    lines = [
        "",
        f"healthy  {healthy.steps:,} steps, peak {format_bytes(healthy.peak_bytes)} of {format_bytes(healthy.limit_bytes)}: "
        f"{healthy.status}, {healthy.alerts} alerts",
        f"         {server.url}/runs/{healthy.run_id}",
        f"leaking  {_warning_line(leaking)}",
        f"         step {leaking.oom_step:,}: ended as {leaking.status} ({_short(leaking.error)})",
    ]
    if leaking.warned_seconds_before is not None:
        lines.append(
            f"         Slack had the warning {format_duration(leaking.warned_seconds_before)} before the process died{_eta_words(leaking)}"
        )
    if leaking.checkpoint_step is not None:
        lines.append(
            f"         checkpoint saved at step {leaking.checkpoint_step:,} before it died (on_risk)"
        )
    lines += [f"         {server.url}/runs/{leaking.run_id}", "", "The Slack message:", ""]
    lines += [
        f"  {line}"
        for line in (leaking.slack_text or "none came before the process died").splitlines()
    ]
    return "\n".join(lines)


def _warning_line(leaking: Leaking) -> str:
    if leaking.first_warning_step is None:
        return "no warning before it died"
    eta = (
        f", predicted to run out at step {leaking.eta_at_warning:,.0f}"
        if leaking.eta_at_warning is not None
        else ""
    )
    return f"step {leaking.first_warning_step:,}: first warning{eta} (cause: {leaking.cause})"


def _eta_words(leaking: Leaking) -> str:
    ratio = leaking.eta_error_ratio
    if ratio is None:
        return ""
    return (
        f"; its ETA was {abs(ratio):.0%} too {'late' if ratio > 0 else 'early'}"
        if abs(ratio) >= 0.005
        else "; its ETA was exact"
    )


def _short(error: str | None) -> str:
    return "no error told" if not error else error if len(error) <= 160 else f"{error[:157]}..."
