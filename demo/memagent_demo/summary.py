"""Outcome of the demo, from the server's API and the receiver's clock, as JSON and text."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memagent.forecast.types import PAGING_LEVELS
from memagent.units import format_bytes, format_duration
from memagent_demo.fake_slack import Message
from memagent_demo.processes import GpuRehearsal, Server, TrainingResult

MAX_ERROR_LENGTH = 160
DEFAULT_GPU = "rtx4090"
DEFAULT_URL = "http://127.0.0.1:8420"
DOCS = "/docs/quickstart"
WEBHOOK = "https://hooks.slack.com/services/..."


@dataclass(frozen=True)
class HealthyRun:
    run_id: str
    status: str
    steps: int
    alerts: int
    peak_bytes: int | None
    limit_bytes: int | None


@dataclass(frozen=True)
class LeakingRun:
    """A run that ran out of memory.

    `warned_seconds_before`: time from the arrival of the Slack message to the end of the process.
    `checkpoint_step` is the step of the checkpoint that the script saved in `on_risk`.
    """

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
        """Return the error of the first warning's ETA as a share of the remaining steps."""
        if (
            self.eta_at_warning is None
            or self.first_warning_step is None
            or self.oom_step <= self.first_warning_step
        ):
            return None
        return (self.eta_at_warning - self.oom_step) / (self.oom_step - self.first_warning_step)


def read_healthy(server: Server, run_id: str) -> HealthyRun:
    run = server.get(f"/api/v1/runs/{run_id}")
    alerts = server.get(f"/api/v1/alerts?run={run_id}")["alerts"]
    return HealthyRun(
        run_id, run["status"], run["step"], len(alerts), run["peak_bytes"], run["limit_bytes"]
    )


def read_leaking(
    server: Server, run_id: str, process: TrainingResult, messages: list[Message]
) -> LeakingRun:
    """Return the end of the run, its first paging forecast and its first Slack message."""
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
        if run_id in str(message.payload) and message.received_at < process.ended_at
    ]
    return LeakingRun(
        run_id=run_id,
        status=run["status"],
        oom_step=run["step"] + 1,  # the step that it did not end
        first_warning_step=first.get("step"),
        eta_at_warning=first.get("eta_step"),
        warned_seconds_before=process.ended_at - early[0].received_at if early else None,
        slack_text=early[0].text if early else None,
        cause=first.get("cause"),
        peak_bytes=run["peak_bytes"],
        limit_bytes=run["limit_bytes"],
        error=run["error"],
        checkpoint_step=process.checkpoint_step,
    )


def is_success(healthy: HealthyRun, leaking: LeakingRun) -> bool:
    """Return True if the healthy run raised no alert, and the leaking one was warned in time.

    In time means before the crash, with a checkpoint saved.
    """
    is_silent = healthy.status == "completed" and healthy.alerts == 0
    is_warned = leaking.warned_seconds_before is not None and leaking.checkpoint_step is not None
    return is_silent and leaking.status == "oom" and is_warned


def to_json(
    healthy: HealthyRun, leaking: LeakingRun, server: Server, rehearsal: GpuRehearsal | None
) -> dict[str, Any]:
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
        "rehearsal": rehearsal and rehearsal.report,
        "database": server.database,
        "server": server.url,
    }


def pages(healthy: HealthyRun, leaking: LeakingRun) -> tuple[str, ...]:
    """Return the pages that the text links to."""
    return _run_page(healthy.run_id), _run_page(leaking.run_id), DOCS


def to_text(
    healthy: HealthyRun,
    leaking: LeakingRun,
    links: Mapping[str, str] | None,
    attach: str | None = None,
    rehearsal: GpuRehearsal | None = None,
) -> str:
    """Return the timeline, the Slack message and what to do next.

    `links` are those of `pages`, and `attach` the settings for a script, if the server stays up;
    otherwise the text has no links to it.
    """
    lines = [
        "",
        f"healthy  {healthy.steps:,} steps, peak {format_bytes(healthy.peak_bytes)} "
        f"of {format_bytes(healthy.limit_bytes)}: "
        f"{healthy.status}, {healthy.alerts} alerts",
        *_link(links, healthy.run_id),
        f"leaking  {_warning_line(leaking)}",
        f"         step {leaking.oom_step:,}: ended as {leaking.status} ({_short(leaking.error)})",
    ]
    if leaking.warned_seconds_before is not None:
        ahead = format_duration(leaking.warned_seconds_before)
        error = _eta_error_text(leaking)
        lines.append(f"         Slack had the warning {ahead} before the crash{error}")
    if leaking.checkpoint_step is not None:
        lines.append(f"         on_risk saved a checkpoint at step {leaking.checkpoint_step:,}")
    lines += [*_link(links, leaking.run_id), "", "The Slack message:", ""]
    message = leaking.slack_text or "none arrived before the crash"
    is_dead = re.compile(r"https?://127\.0\.0\.1|^Runbook:")
    lines += [f"  {line}" for line in message.splitlines() if links or not is_dead.search(line)]
    if rehearsal:
        lines += ["", "The healthy training on a GPU that isn't there:", ""]
        lines += [f"  {line}" for line in rehearsal.lines]
    gpu = rehearsal.gpu if rehearsal else DEFAULT_GPU
    return "\n".join([*lines, "", *_next_steps(links, attach, gpu)])


def _run_page(run_id: str) -> str:
    return f"/runs/{run_id}"


def _link(links: Mapping[str, str] | None, run_id: str) -> list[str]:
    return [f"         {links[_run_page(run_id)]}"] if links else []


def _next_steps(links: Mapping[str, str] | None, attach: str | None, gpu: str) -> list[str]:
    program = "memagent" if shutil.which("memagent") else Path(sys.executable).parent / "memagent"
    start = "" if attach else f"start `{program} serve`, then "
    return [
        "Next:",
        f"  attach  {start}put `run = memagent.attach(model, optimizer)` into your script, "
        f"and run it with {attach or f'MEMAGENT_SERVER={DEFAULT_URL}'}",
        f"  read    {links[DOCS] if links else DEFAULT_URL + DOCS}",
        f"  Slack   MEMAGENT_SLACK_WEBHOOK_URL={WEBHOOK} {program} serve",
        f"  GPU     {program} rehearse --gpu {gpu} SCRIPT: does yours fit one that you don't have?",
    ]


def _warning_line(leaking: LeakingRun) -> str:
    if leaking.first_warning_step is None:
        return "no warning before the crash"
    eta = (
        f", predicted to run out at step {leaking.eta_at_warning:,.0f}"
        if leaking.eta_at_warning is not None
        else ""
    )
    return f"step {leaking.first_warning_step:,}: first warning{eta} (cause: {leaking.cause})"


def _eta_error_text(leaking: LeakingRun) -> str:
    ratio = leaking.eta_error_ratio
    if ratio is None:
        return ""
    return (
        f"; its ETA was {abs(ratio):.0%} too {'late' if ratio > 0 else 'early'}"
        if abs(ratio) >= 0.005
        else "; its ETA was exact"
    )


def _short(error: str | None) -> str:
    if not error:
        return "no error reported"
    return error if len(error) <= MAX_ERROR_LENGTH else f"{error[: MAX_ERROR_LENGTH - 3]}..."
