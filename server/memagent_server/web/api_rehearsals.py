"""`/api/v1/rehearsals`: what scripts needed on cards that weren't there."""

from __future__ import annotations

from flask import Blueprint, Response, request

from memagent.wire.messages import RehearsalMessage
from memagent_server.http import auth
from memagent_server.http.api_route import operation
from memagent_server.http.context import current
from memagent_server.http.problems import json_answer, page_answer
from memagent_server.ingest.body import read_message
from memagent_server.ingest.validate import storable
from memagent_server.schemas import predictions, queries
from memagent_server.schemas.base import Created
from memagent_server.store.rehearsals import add_rehearsal, page_rehearsals
from memagent_server.web import query

blueprint = Blueprint("api_rehearsals", __name__)


@blueprint.post("/api/v1/rehearsals")
@operation("agents", "ingest", {201: Created}, body=RehearsalMessage)
def post_rehearsal() -> Response:
    """Store a rehearsal: runs that start with its fingerprint get its prediction."""
    context = current()
    message = storable(read_message(request, RehearsalMessage))
    auth.check_project(message.project)
    with context.database.write() as session:
        rehearsal = add_rehearsal(session, message, context.clock())
        reply = Created(rehearsal.id)
    return json_answer(reply, 201)


@blueprint.get("/api/v1/rehearsals")
@operation("estimates", "read", predictions.RehearsalPage, query=queries.RehearsalsQuery)
def get_rehearsals() -> Response:
    """List rehearsals, newest first."""
    params = query.read(queries.RehearsalsQuery)
    with current().database.read() as session:
        page = page_rehearsals(
            session, limit=params.limit, cursor=params.cursor, project=params.project
        )
    return page_answer(page)
