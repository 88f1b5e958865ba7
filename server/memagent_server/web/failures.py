"""Failures that runs share: the API, their page, and what pages of runs and alerts show of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

import msgspec
from flask import Blueprint, Response, request
from msgspec import Meta

from memagent_server.alerts.summaries import regression, seen_in
from memagent_server.http import auth
from memagent_server.http.api_route import operation, require_scope
from memagent_server.http.context import current
from memagent_server.http.problems import Problem, json_answer
from memagent_server.ingest.body import read_message
from memagent_server.schemas import runs
from memagent_server.schemas.queries import FailuresQuery
from memagent_server.schemas.runs import Failure, FailureState
from memagent_server.store.engine import Session
from memagent_server.store.failures import (
    failures_by_run,
    find_failure,
    list_failures,
    reopen,
    resolve,
)
from memagent_server.web import query
from memagent_server.web.labels import Badge
from memagent_server.web.rendering import REFRESH_ENDED_S, redirect_to, render_page
from memagent_server.web.shared_pages import share_refreshes

blueprint = Blueprint("failures", __name__)

_API = "/api/v1/failures"
_ACTION = "<any(resolve, reopen):action>"
_BADGES = {
    "open": Badge("plain", "open", "Not resolved yet"),
    "resolved": Badge("ok", "resolved", "No run that began since then ended by it"),
    "regressed": Badge(
        "critical", "regressed", "A run that began after the resolution ended by it"
    ),
}
_STATES = {"": "Unresolved", "resolved": "Resolved", "all": "All"}
_STATES_OF: dict[str, tuple[FailureState | None, ...]] = {
    "": ("open", "regressed"),
    "resolved": ("resolved",),
    "all": (None,),
}
MAX_LISTED = 100


class FailureAction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Name of the person who acts; by default the token's."""

    by: Annotated[str, Meta(max_length=200, pattern=r"^[^\x00]*$")] | None = None


@dataclass(frozen=True)
class SharedFailure:
    """A failure as the page of one of its runs shows it."""

    id: str
    title: str
    badge: Badge
    text: str
    runs_url: str | None
    """The list of its runs, None if there is only one."""
    regression: str | None
    is_resolved: bool


@blueprint.get(_API)
@operation("runs", "read", runs.Failures, query=FailuresQuery)
def get_failures() -> Response:
    """List failures that runs share, the one that was seen last first."""
    params = query.read(FailuresQuery)
    with current().database.read() as session:
        failures = list_failures(session, project=params.project, state=params.state)
    return json_answer(runs.Failures(failures))


@blueprint.get(f"{_API}/<fingerprint>")
@operation("runs", "read", runs.Failure)
def get_failure(fingerprint: str) -> Response:
    """Return a failure: how many runs and people had it, since when, and whether it's resolved."""
    with current().database.read() as session:
        return json_answer(_require(session, fingerprint))


@blueprint.get("/failures")
@share_refreshes()
def show_failures() -> Response:
    """Show the failures that were seen last: unresolved ones, resolved ones, or all."""
    state = query.choice("state", tuple(_STATES)) or ""
    project, now = query.text("project"), current().clock()
    with current().database.read() as session:
        failures = [
            item
            for name in _STATES_OF[state]
            for item in list_failures(session, project=project, state=name)
        ]
        failures.sort(key=lambda item: item.last_seen_at, reverse=True)
        return render_page(
            "failures.html",
            session,
            failures=[(item, _shared(item, now)) for item in failures[:MAX_LISTED]],
            is_cut=len(failures) > MAX_LISTED,
            states=_STATES,
            state=state,
            project=project,
            refresh_s=REFRESH_ENDED_S,
        )


@blueprint.post(f"{_API}/<fingerprint>/{_ACTION}")
@operation("runs", "read", runs.Failure, body=FailureAction, is_body_optional=True)
def post_failure(fingerprint: str, action: str) -> Response:
    """Resolve a failure, or take the resolution back.

    A launch that begins after the resolution and ends by the failure makes it `regressed`.
    """
    details = read_message(request, FailureAction) if request.content_length else FailureAction()
    return json_answer(_change(fingerprint, action, details.by))


@blueprint.post(f"/failures/<fingerprint>/{_ACTION}")
@require_scope("read")
def change_failure(fingerprint: str, action: str) -> Response:
    _change(fingerprint, action, None)
    return redirect_to(request.form.get("next"))


def _change(fingerprint: str, action: str, by: str | None) -> Failure:
    access, context = auth.current_access(), current()
    by = by or (access.name if access is not None else None)
    with context.database.write() as session:
        failure = _require(session, fingerprint)
        if action == "resolve":
            resolve(session, failure, by=by, now=context.clock())
        else:
            reopen(session, failure)
        session.flush()
        # as it's stored now: a run may have ended by it in the meantime
        return _require(session, fingerprint)


def _require(session: Session, fingerprint: str) -> Failure:
    failure = find_failure(session, fingerprint)
    if failure is None:
        raise Problem(
            404, f"No run has the failure {fingerprint!r}. {_API} lists those that runs have."
        )
    return failure


def shared_failures(session: Session, run_ids: Collection[str]) -> dict[str, SharedFailure]:
    """Return the failures of those of these runs that have one."""
    now = current().clock()
    failures = failures_by_run(session, run_ids)
    return {run_id: _shared(failure, now) for run_id, failure in failures.items()}


def _shared(failure: Failure, now: float) -> SharedFailure:
    # the same filter as anyone would write, so that others can be added to it
    runs_url = f"/?{urlencode({'where': f'failure = {failure.id!r}'})}"
    return SharedFailure(
        id=failure.id,
        title=failure.title,
        badge=_BADGES[failure.state],
        text=seen_in(failure, now),
        runs_url=runs_url if failure.runs > 1 else None,
        regression=regression(failure, now),
        is_resolved=failure.state == "resolved",
    )
