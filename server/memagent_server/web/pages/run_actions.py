"""What people do to the runs that they chose in the list: tag them, archive them, take them back."""

from __future__ import annotations

from flask import Blueprint, Response, redirect, request
from sqlalchemy.orm import Session

from memagent_server.http.context import current
from memagent_server.http.permissions import permit
from memagent_server.http.problems import Problem
from memagent_server.store.tags import archive, retag
from memagent_server.web.pages.login import safe_target

blueprint = Blueprint("organising", __name__)

MOST_CHOSEN = 200
LONGEST_TAG = 200
ACTIONS = ("tag", "untag", "archive", "restore")


@blueprint.post("/runs")
@permit("admin")
def organise() -> Response:
    what, run_ids = request.form.get("what", ""), _chosen()
    if what not in ACTIONS:
        raise Problem(422, f"what: {what!r} is none of {', '.join(ACTIONS)}", field="what")
    with current().database.write() as session:
        _act(session, what, run_ids)
    response = redirect(safe_target(request.form.get("next")), 303)
    return Response(response.get_data(), response.status_code, response.headers)


def _act(session: Session, what: str, run_ids: list[str]) -> None:
    if what == "tag":
        retag(session, run_ids, add=_tags())
    elif what == "untag":
        retag(session, run_ids, remove=_tags())
    else:
        archive(session, run_ids, is_archived=what == "archive")


def _chosen() -> list[str]:
    found = list(dict.fromkeys(request.form.getlist("runs")))
    if not 1 <= len(found) <= MOST_CHOSEN:
        raise Problem(
            422, f"runs: choose 1 to {MOST_CHOSEN} runs; {len(found)} are chosen", field="runs"
        )
    if any("\0" in run_id for run_id in found):
        raise Problem(422, "runs: an id holds no NUL", field="runs")
    return found


def _tags() -> list[str]:
    """Tags as they are typed: one, or several separated by commas."""
    found = [part.strip() for part in request.form.get("tag", "").split(",") if part.strip()]
    if not found or any("\0" in tag or len(tag) > LONGEST_TAG for tag in found):
        raise Problem(
            422,
            f"tag: give a tag of 1 to {LONGEST_TAG} characters, or several separated by commas",
            field="tag",
        )
    return found
