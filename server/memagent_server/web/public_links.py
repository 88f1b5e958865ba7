"""Public links of runs: opened and closed by who may change the run, on its page or by the API.

An address has the link's id with a signature: a stolen database opens no page.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import msgspec
from flask import Blueprint, Response, request
from itsdangerous import BadData, URLSafeSerializer
from msgspec import Meta

from memagent.units import DAY_S
from memagent_server.http import auth
from memagent_server.http.api_route import operation, require_scope
from memagent_server.http.context import current
from memagent_server.http.problems import Problem, json_answer
from memagent_server.ingest.body import read_message
from memagent_server.schemas.runs import PublicLink
from memagent_server.store.engine import Session
from memagent_server.store.errors import UnknownRunError
from memagent_server.store.models import PublicLinkRow
from memagent_server.store.public_links import close_link, link_of, open_link, run_of_link
from memagent_server.store.reading import to_schema
from memagent_server.store.runs import get_run, lock_run
from memagent_server.web.rendering import redirect_to

blueprint = Blueprint("public_links", __name__)

LIFETIMES = {"30": "in 30 days", "7": "in 7 days", "90": "in 90 days", "": "never"}
"""When a link ends, by the value of the form's field; the first is the default."""
_MAX_DAYS = 3_650


class LinkRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How long a link is valid; without `days`, until it is revoked."""

    days: Annotated[int, Meta(ge=1, le=_MAX_DAYS)] | None = None


@blueprint.get("/api/v1/runs/<run_id>/public-link")
@operation("runs", "read", PublicLink)
def get_public_link(run_id: str) -> Response:
    """Return a run's public link; 404 if it has none."""
    with current().database.read() as session:
        if get_run(session, run_id) is None:
            raise UnknownRunError(run_id)
        link = link_of(session, run_id, current().clock())
    if link is None:
        raise Problem(404, f"Run {run_id!r} has no public link. PUT the same address opens one.")
    return json_answer(describe_link(link))


@blueprint.put("/api/v1/runs/<run_id>/public-link")
@operation("runs", "admin", PublicLink, body=LinkRequest)
def put_public_link(run_id: str) -> Response:
    """Open a page of the run to anyone who has its address. An open link only gets a new end."""
    return json_answer(_open(run_id, read_message(request, LinkRequest).days))


@blueprint.delete("/api/v1/runs/<run_id>/public-link")
@operation("runs", "admin", {204: None})
def delete_public_link(run_id: str) -> Response:
    """Revoke a run's public link. A later one has another address."""
    _close(run_id)
    return Response(status=204)


@blueprint.post("/runs/<run_id>/public-link")
@require_scope("admin")
def change_public_link(run_id: str) -> Response:
    """Open or revoke the link by a button of the run's page, and show the run."""
    what, days = request.form.get("what", ""), request.form.get("days", "")
    if what == "revoke":
        _close(run_id)
    elif what != "open":
        raise Problem(422, f"what: {what!r:.80} is not one of open, revoke.", field="what")
    elif days not in LIFETIMES:
        options = ", ".join(filter(None, LIFETIMES))
        raise Problem(422, f"days: {days!r:.80} is not one of {options}.", field="days")
    else:
        _open(run_id, int(days) if days else None)
    return redirect_to(f"/runs/{quote(run_id, safe='')}?share=1#share")


def run_of_secret(session: Session, secret: str) -> str:
    """Return the id of the run that an address shows. Raises Problem 404."""
    try:
        link_id = _serializer().loads(secret) if current().settings.has_public_links else None
    except BadData:
        link_id = None
    run_id = run_of_link(session, link_id, current().clock()) if isinstance(link_id, str) else None
    if run_id is None:
        raise Problem(404, "This link doesn't exist, was revoked or has expired. Ask who sent it.")
    return run_id


def describe_link(link: PublicLinkRow) -> PublicLink:
    url = f"{current().settings.public_url}/public/{_serializer().dumps(link.id)}"
    return to_schema(PublicLink, link, url=url, embed_url=f"{url}/embed")


def _open(run_id: str, days: int | None) -> PublicLink:
    access, context = auth.current_access(), current()
    if not context.settings.has_public_links:
        raise Problem(403, "This server opens no public links: MEMAGENT_PUBLIC_LINKS is 0.")
    now, by = context.clock(), access.name if access is not None else None
    expires_at = now + days * DAY_S if days is not None else None
    with context.database.write() as session:
        lock_run(session, run_id)
        return describe_link(open_link(session, run_id, by=by, now=now, expires_at=expires_at))


def _close(run_id: str) -> None:
    with current().database.write() as session:
        lock_run(session, run_id)
        close_link(session, run_id)


def _serializer() -> URLSafeSerializer:
    return URLSafeSerializer(current().settings.secret_key, salt="memagent-public-link")
