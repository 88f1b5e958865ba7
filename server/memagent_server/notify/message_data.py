"""Content of a message: one `AlertMessage` per notification, read from the store.

A test message is clearly marked, and sent by the same code as a real one, without the outbox.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from memagent.diagnostics import display_path, display_roots
from memagent.wire.messages import Suspect
from memagent_server.alerts.routing import DEATHS
from memagent_server.alerts.summaries import regression, seen_in
from memagent_server.compare import oom_report_of
from memagent_server.notify.channel import (
    AlertMessage,
    Channel,
    DeliveryFailedError,
    EstimatedSaving,
    MemoryCurve,
    mask,
)
from memagent_server.notify.message_text import folded_suspect_lines, headline
from memagent_server.schemas.base import JsonObject
from memagent_server.settings import SEVERITIES
from memagent_server.store.engine import Session
from memagent_server.store.events import last_checkpoint_step
from memagent_server.store.failures import failures_of
from memagent_server.store.forecasts import FORECAST_COLUMNS
from memagent_server.store.incidents import alerts_of, feedback_on, first_step_of
from memagent_server.store.models import (
    AlertRow,
    ForecastRow,
    IncidentRow,
    NotificationRow,
    RunRow,
    StreamRow,
    TransitionRow,
)
from memagent_server.store.notifications import nearest_forecast, ranks_of_topic, topic_of
from memagent_server.store.outbox import is_follow_up, is_overtaken, last_receipt
from memagent_server.store.predictions import advice_for, prediction_for
from memagent_server.store.series import series
from memagent_server.store.snapshots import suspects_of

CURVE_POINTS = 400
_CURVE_FIELDS = ("peak_allocated_bytes", "allocated_bytes", "device_used_bytes")


def load_message(
    session: Session,
    notification: NotificationRow,
    public_url: str,
    now: float,
    *,
    with_curve: bool = False,
) -> AlertMessage:
    """Return the message about a notification's transition."""
    alert = session.get_one(AlertRow, notification.alert_id)
    transition = session.get_one(TransitionRow, notification.transition_id)
    run = session.get_one(RunRow, alert.run_id)
    incident = (
        session.get(IncidentRow, notification.incident_id)
        if notification.incident_id is not None
        else None
    )
    stream = (
        session.get(StreamRow, (alert.run_id, alert.stream_id))
        if alert.stream_id is not None
        else None
    )
    message = AlertMessage(
        alert_id=alert.id,
        transition_id=transition.id,
        topic=topic_of(notification),
        dedup_key=notification.dedup_key,
        rule=alert.rule,
        severity=transition.severity,
        from_state=transition.from_state,
        to_state=transition.to_state,
        reason=transition.reason,
        at=transition.at,
        step=transition.step,
        first_step=_first_step(session, alert, incident),
        opened_at=(incident.fired_at if incident else None) or alert.opened_at,
        facts=transition.data,
        run_id=run.id,
        run_name=run.name,
        project=run.project,
        run_url=f"{public_url}/runs/{run.id}",
        alert_url=f"{public_url}/alerts#{topic_of(notification)}",
        runbook_url=f"{public_url}/runbooks#{alert.rule}",
        summary=alert.summary,
        host=run.host,
        world_size=run.world_size,
        ranks=tuple(ranks_of_topic(session, notification)),
        checkpoint_step=last_checkpoint_step(session, run.id, transition.step),
        suspect=_suspect(session, run),
        acked_by=(incident.acked_by or "somebody") if incident and incident.acked_at else None,
        snoozed_until=incident.snoozed_until if incident else None,
        false_alarm_at=incident.false_alarm_at if incident else None,
        handling=_handling_lines(session, incident, now) if incident else (),
        error=run.error,
        failure=_failure_lines(session, run, now) if transition.to_state in DEATHS else (),
        autopsy=_oom_report_lines(session, run, stream) if transition.to_state == "oom" else (),
        is_follow_up=is_follow_up(notification),
        is_repeat=notification.attempts > 1,
        is_overtaken=is_overtaken(session, notification),
        delayed_s=max(0.0, now - notification.created_at),
        curve=_load_curve(session, stream) if with_curve and stream is not None else None,
        receipt=last_receipt(session, notification),
    )
    return _for_stream(session, message, stream)


def _first_step(session: Session, alert: AlertRow, incident: IncidentRow | None) -> int:
    """Return the step of the incident's first warning."""
    first = None if incident is None else first_step_of(alerts_of(session, incident))
    return alert.first_step if first is None else first


def refresh_message(
    session: Session, notification: NotificationRow, public_url: str, now: float
) -> AlertMessage:
    """Return a sent notification's message as of now.

    It has the nearest forecast of its open alerts, and the latest acknowledgement and snooze.
    """
    message = load_message(session, notification, public_url, now)
    forecast = nearest_forecast(session, notification)
    if forecast is not None and forecast.step >= message.facts.get("step", 0):
        stream = session.get_one(StreamRow, (forecast.run_id, forecast.stream_id))
        facts = {**message.facts, **_current_facts(forecast, stream)}
        message = replace(message, facts=facts, step=facts["step"])
        message = _for_stream(session, message, stream)
    return replace(message, delayed_s=0.0)


def lacks_suspect(session: Session, notification: NotificationRow) -> bool:
    """Return True if a sent message named no suspect, and one is known by now."""
    if notification.receipt.get("names_suspect", True):
        return False
    alert = session.get_one(AlertRow, notification.alert_id)
    is_firing = session.get_one(TransitionRow, notification.transition_id).to_state == "firing"
    return is_firing and _suspect(session, session.get_one(RunRow, alert.run_id)) is not None


def fold(messages: Sequence[AlertMessage], public_url: str) -> AlertMessage:
    """Return one message that stands for several of a project, a rule and a state.

    Its dedup key is of all of them: with another message in it, it is another one.
    """
    first = messages[0]
    if len(messages) == 1:
        return first
    keys = " ".join(sorted(message.dedup_key for message in messages))
    return replace(
        first,
        dedup_key=f"folded-{hashlib.sha256(keys.encode()).hexdigest()}",
        run_url=f"{public_url}/alerts",
        alert_url=f"{public_url}/alerts",
        folded=tuple(f"{_headline(message)} · {message.run_url}" for message in messages),
        folded_suspects=folded_suspect_lines(messages),
        is_repeat=any(message.is_repeat for message in messages),
        curve=None,
        receipt={},
    )


def _headline(message: AlertMessage) -> str:
    """Return the headline, or run and rule: one odd alert must not hold back all the others."""
    try:
        return headline(message)
    except (KeyError, TypeError, ValueError, OverflowError):
        return f"{message.run_name}: {message.rule}"


def edit_fingerprint(message: AlertMessage) -> JsonObject:
    """Return the parts of a message whose change is worth an edit; the receipt keeps them.

    The remaining steps are rounded to two digits.
    """
    eta = message.facts.get("eta_step")
    steps_left = None
    if eta is not None:
        steps_left = float(f"{max(0.0, eta - message.facts.get('step', 0)):.1e}")
    return {
        "steps_left": steps_left,
        "ranks": list(message.ranks),
        "suspect": message.suspect.location if message.suspect is not None else None,
        "handling": list(message.handling),
    }


def _current_facts(forecast: ForecastRow, stream: StreamRow) -> JsonObject:
    """Return a forecast as of the newest step: a steady leak's ETA stays, but gets closer."""
    facts = {name: getattr(forecast, name) for name in FORECAST_COLUMNS}
    step = max(forecast.step, stream.last_step or 0)
    eta_step, eta_s = forecast.eta_step, forecast.eta_s
    if eta_step is not None and eta_s is not None and eta_step > forecast.step:
        facts["eta_s"] = eta_s * max(0.0, eta_step - step) / (eta_step - forecast.step)
    return {**facts, "step": step, "used_step": forecast.step}


def _for_stream(session: Session, message: AlertMessage, stream: StreamRow | None) -> AlertMessage:
    """Return the message with the details of a stream's rank and device."""
    if stream is None:
        return message
    prediction = prediction_for(session, stream.run_id, stream)
    advice = advice_for(session, stream.run_id, stream)
    return replace(
        message,
        rank=stream.rank,
        device_name=stream.name,
        on_host=stream.device == "host",
        predicted_peak_bytes=prediction.peak_allocated_bytes if prediction else None,
        observed_peak_bytes=stream.peak_bytes,
        saving=_saving(advice),
        advice=tuple(advice),
    )


def _saving(advice: Sequence[Any]) -> EstimatedSaving | None:
    first = next(iter(advice), None)
    if not isinstance(first, Mapping) or not first.get("saving_bytes"):
        return None
    return EstimatedSaving(
        str(first.get("change", "")), int(first["saving_bytes"]), str(first.get("cost") or "")
    )


def _handling_lines(session: Session, incident: IncidentRow, now: float) -> tuple[str, ...]:
    people = {item.kind: item.by for item in feedback_on(session, incident.id)}

    def by(kind: str) -> str:
        return f" by {people[kind]}" if people.get(kind) else ""

    lines = []
    if incident.acked_at is not None:
        lines.append(f"Acknowledged by {incident.acked_by or 'somebody'}")
    if incident.snoozed_until is not None and incident.snoozed_until > now:
        until = datetime.fromtimestamp(incident.snoozed_until, timezone.utc)
        lines.append(f"Snoozed until {until:%Y-%m-%d %H:%M} UTC{by('snooze')}")
    if incident.false_alarm_at is not None:
        lines.append(f"Marked as a false alarm{by('false_alarm')}")
    return tuple(lines)


def _failure_lines(session: Session, run: RunRow, now: float) -> tuple[str, ...]:
    failure = failures_of(session, [run.failure]).get(run.failure or "")
    if failure is None or failure.runs == 1:
        return ()
    text, returned = seen_in(failure, now), regression(failure, now)
    return (text,) if returned is None else (f"Regressed: {returned}", text)


def _oom_report_lines(session: Session, run: RunRow, stream: StreamRow | None) -> tuple[str, ...]:
    report = oom_report_of(session, run, stream)
    if report is None:
        return ()
    return tuple(line[0].upper() + line[1:] for line in report.details())


def _suspect(session: Session, run: RunRow) -> Suspect | None:
    """Return the most likely suspect from the newest snapshots of the ranks."""
    first = next(iter(suspects_of(session, run.id)), None)
    if first is None or not first.file:
        return None
    file = display_path(first.file, display_roots(run.environment))
    holder = f"{first.holder} at step {first.step:,}"
    return Suspect(
        kind=first.kind,
        holder=holder,
        file=file,
        line=first.line,
        function=first.function,
        bytes_per_step=first.bytes_per_step,
        confidence=first.confidence,
        fix=first.fix,
        source=first.source,
        source_first_line=first.source_first_line,
    )


def _load_curve(session: Session, stream: StreamRow) -> MemoryCurve:
    chart = series(
        session,
        stream.run_id,
        fields=_CURVE_FIELDS,
        rank=stream.rank,
        device=stream.device,
        attempt=stream.attempt,
        points=CURVE_POINTS,
    )
    columns: list[list[Any]] = [chart.series[name].max for name in _CURVE_FIELDS]
    peaks, allocated, device = columns
    steps: list[Any] = [*chart.step]
    used = [peak if peak is not None else size for peak, size in zip(peaks, allocated, strict=True)]
    return MemoryCurve(tuple(steps), tuple(used), tuple(device))


def send_test(channel: Channel, public_url: str, now: float) -> str:
    """Send a test message and return the channel's response.

    Raises DeliveryFailedError, with all secrets masked.
    """
    try:
        receipt = channel.send(sample_message(public_url, now))
    except DeliveryFailedError as error:
        raise DeliveryFailedError(
            mask(str(error), channel.secrets),
            retry_after_s=error.retry_after_s,
            is_final=error.is_final,
        ) from None
    fields = [f"{name} {value}" for name, value in receipt.items() if isinstance(value, str | int)]
    return mask(", ".join(fields) or "accepted", channel.secrets)


def sample_message(public_url: str, now: float) -> AlertMessage:
    """Return a message that belongs to no run and no alert."""
    key = f"test:{secrets.token_hex(8)}"
    return AlertMessage(
        alert_id=0,
        transition_id=0,
        topic=key,
        dedup_key=key,
        rule="test",
        severity=SEVERITIES[0],
        from_state="ok",
        to_state="test",
        reason="a test message was requested",
        at=now,
        step=0,
        first_step=0,
        opened_at=now,
        facts={},
        run_id="test",
        run_name="test",
        project="test",
        run_url=public_url,
        alert_url=f"{public_url}/alerts",
    )
