"""What a message can say: read from the store, one `AlertMessage` a notification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from memagent.diagnostics.console import display_path, display_roots
from memagent.forecast.types import PAGING_LEVELS
from memagent.wire.messages import Suspect
from memagent_server.compare import autopsy
from memagent_server.notify.channel import AlertMessage, EstimatedSaving, MemoryCurve
from memagent_server.store.models import (
    OPEN_ALERT_STATES,
    Alert,
    Event,
    Forecast,
    Incident,
    Notification,
    Prediction,
    Run,
    Stream,
    Transition,
)
from memagent_server.store.outbox import is_overtaken, last_receipt, topic_of
from memagent_server.store.predictions import prediction_for
from memagent_server.store.series import series
from memagent_server.store.snapshots import suspects_of

CURVE_POINTS = 400
_CURVE_FIELDS = ("peak_allocated_bytes", "allocated_bytes", "device_used_bytes")
_FORECAST_FACTS = (
    "step", "level", "oom_probability", "cause", "eta_step", "eta_low", "eta_high", "eta_s", "used_bytes", "limit_bytes",
    "growth_bytes_per_step", "growing_since_step",
)  # fmt: skip


def load_message(
    session: Session,
    notification: Notification,
    public_url: str,
    now: float,
    *,
    with_curve: bool = False,
) -> AlertMessage:
    """Everything a message about this notification's transition can say."""
    alert = session.get_one(Alert, notification.alert_id)
    transition = session.get_one(Transition, notification.transition_id)
    run = session.get_one(Run, alert.run_id)
    incident = (
        session.get(Incident, notification.incident_id)
        if notification.incident_id is not None
        else None
    )
    stream = session.get(Stream, alert.stream_id) if alert.stream_id is not None else None
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
        first_step=alert.first_step,
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
        ranks=_ranks(session, notification),
        checkpoint_step=_last_checkpoint(session, run.id, transition.step),
        suspect=_suspect(session, run),
        acked_by=(incident.acked_by or "somebody") if incident and incident.acked_at else None,
        snoozed_until=incident.snoozed_until if incident else None,
        error=run.error,
        autopsy=_autopsy(session, run, stream) if transition.to_state == "oom" else (),
        is_repeat=notification.attempts > 1,
        is_overtaken=is_overtaken(session, notification),
        delayed_s=max(0.0, now - notification.created_at),
        curve=_load_curve(session, stream) if with_curve and stream is not None else None,
        receipt=last_receipt(session, notification),
    )
    return _for_stream(session, message, stream)


def refresh_message(
    session: Session, notification: Notification, public_url: str, now: float
) -> AlertMessage:
    """The message of a sent notification as it is now: the nearest forecast of its open alerts, and what people have said of it since."""
    message = load_message(session, notification, public_url, now)
    forecast = _nearest_forecast(session, notification)
    if forecast is not None and forecast.step >= message.facts.get("step", 0):
        stream = session.get_one(Stream, forecast.stream_id)
        message = _for_stream(
            session,
            replace(message, facts={**message.facts, **_current_facts(forecast, stream)}),
            stream,
        )
        message = replace(message, step=message.facts["step"])
    return replace(message, delayed_s=0.0)


def edit_fingerprint(message: AlertMessage) -> dict[str, Any]:
    """What of a message is worth an edit when it changes; kept with the receipt. Steps left to two digits."""
    eta = message.facts.get("eta_step")
    left = None if eta is None else float(f"{max(0.0, eta - message.facts.get('step', 0)):.1e}")
    return {
        "steps_left": left,
        "ranks": list(message.ranks),
        "acked_by": message.acked_by,
        "snoozed_until": message.snoozed_until,
    }


def _current_facts(forecast: Forecast, stream: Stream) -> dict[str, Any]:
    """The forecast as of the stream's newest step: a steady leak keeps its forecast, and comes nearer all the same."""
    facts = {name: getattr(forecast, name) for name in _FORECAST_FACTS}
    step = max(forecast.step, stream.last_step or 0)
    if (
        forecast.eta_step is not None
        and forecast.eta_s is not None
        and forecast.eta_step > forecast.step
    ):
        share = max(0.0, forecast.eta_step - step) / (forecast.eta_step - forecast.step)
        facts["eta_s"] = forecast.eta_s * share
    return {**facts, "step": step, "used_step": forecast.step}


def _for_stream(session: Session, message: AlertMessage, stream: Stream | None) -> AlertMessage:
    """The message as this rank and device have it."""
    if stream is None:
        return message
    prediction = prediction_for(session, stream.run_id, stream)
    return replace(
        message,
        rank=stream.rank,
        device_name=stream.name,
        predicted_peak_bytes=prediction.peak_allocated_bytes if prediction else None,
        observed_peak_bytes=stream.peak_bytes,
        saving=_saving(prediction),
        advice=tuple(prediction.advice) if prediction else (),
    )


def _ranks(session: Session, notification: Notification) -> tuple[int, ...]:
    """The ranks that the topic is about."""
    query = (
        select(Stream.rank)
        .join(Alert, Alert.stream_id == Stream.id)
        .distinct()
        .order_by(Stream.rank)
    )
    if notification.incident_id is None:
        query = query.where(Alert.id == notification.alert_id)
    else:
        query = query.where(Alert.incident_id == notification.incident_id)
    return tuple(session.scalars(query))


def _nearest_forecast(session: Session, notification: Notification) -> Forecast | None:
    """Of the newest forecasts that page of the topic's open alerts, the one whose end is nearest."""
    streams = select(Alert.stream_id).where(Alert.state.in_(OPEN_ALERT_STATES))
    if notification.incident_id is None:
        streams = streams.where(Alert.id == notification.alert_id)
    else:
        streams = streams.where(Alert.incident_id == notification.incident_id)
    newest = (
        select(func.max(Forecast.id))
        .where(Forecast.stream_id.in_(streams))
        .group_by(Forecast.stream_id)
    )
    found = session.scalars(
        select(Forecast).where(Forecast.id.in_(newest), Forecast.level.in_(PAGING_LEVELS))
    )
    return min(
        found,
        key=lambda forecast: (forecast.eta_step is None, forecast.eta_step or 0.0),
        default=None,
    )


def _saving(prediction: Prediction | None) -> EstimatedSaving | None:
    first = prediction.advice[0] if prediction is not None and prediction.advice else None
    if not isinstance(first, Mapping) or not first.get("saving_bytes"):
        return None
    return EstimatedSaving(
        str(first.get("change", "")), int(first["saving_bytes"]), str(first.get("cost") or "")
    )


def _autopsy(session: Session, run: Run, stream: Stream | None) -> tuple[str, ...]:
    report = autopsy(session, run, stream)
    return (
        tuple(line[0].upper() + line[1:] for line in report.details()) if report is not None else ()
    )


def _last_checkpoint(session: Session, run_id: str, step: int) -> int | None:
    """The step at which the run last said that it saved a checkpoint."""
    query = select(Event.step).where(
        Event.run_id == run_id, Event.kind == "checkpoint", Event.step <= step
    )
    return session.scalar(query.order_by(Event.id.desc()).limit(1))


def _suspect(session: Session, run: Run) -> Suspect | None:
    """The line that is blamed most, in the newest snapshots of the ranks."""
    first = next(iter(suspects_of(session, run.id)), None)
    if first is None or not first["file"]:
        return None
    file = display_path(first["file"], display_roots(run.environment))
    holder = f"{first['holder']} at step {first['step']:,}"
    fields = {name: value for name, value in first.items() if name in Suspect.__struct_fields__}
    return Suspect(**{**fields, "file": file, "holder": holder})


def _load_curve(session: Session, stream: Stream) -> MemoryCurve:
    found = series(
        session, stream.run_id, fields=_CURVE_FIELDS, rank=stream.rank, device=stream.device, attempt=stream.attempt,
        points=CURVE_POINTS,
    )  # fmt: skip
    peaks, held, whole = (found["series"][name]["max"] for name in _CURVE_FIELDS)
    used = [peak if peak is not None else size for peak, size in zip(peaks, held, strict=True)]
    return MemoryCurve(tuple(found["step"]), tuple(used), tuple(whole))
