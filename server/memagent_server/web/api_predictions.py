"""Routes of what is known before a run: estimates, sizes of CUDA contexts, and rehearsals."""

from __future__ import annotations

from flask import Blueprint, Response, request

from memagent.wire.messages import RehearsalMessage
from memagent_server.http import auth
from memagent_server.http.api_route import operation
from memagent_server.http.context import current
from memagent_server.http.problems import json_answer, page_answer
from memagent_server.ingest.body import read_message
from memagent_server.ingest.validate import storable
from memagent_server.schemas import base, predictions, queries
from memagent_server.store.cuda_contexts import page_contexts
from memagent_server.store.rehearsals import add_rehearsal, page_rehearsals
from memagent_server.web import query
from memagent_server.web.api_estimate import EstimateBody, answer

blueprint = Blueprint("api_predictions", __name__)

_V1 = "/api/v1"


@blueprint.post(f"{_V1}/estimate")
@operation("estimates", "read", predictions.Estimate, body=EstimateBody)
def post_estimate() -> Response:
    """Estimate a training step by formula, from a model's name, its config.json or its shape."""
    body = read_message(request, EstimateBody)
    with current().database.read() as session:
        return json_answer(answer(session, body))


@blueprint.get(f"{_V1}/contexts")
@operation("estimates", "read", predictions.ContextPage, query=queries.Paged)
def get_contexts() -> Response:
    """List the measured sizes of CUDA contexts: GPU memory apart from tensors, newest first."""
    params = query.read(queries.Paged)
    with current().database.read() as session:
        page = page_contexts(session, limit=params.limit, cursor=params.cursor)
    return page_answer(page)


@blueprint.post(f"{_V1}/rehearsals")
@operation("agents", "ingest", {201: base.Created}, body=RehearsalMessage)
def post_rehearsal() -> Response:
    """Store a rehearsal: runs that start with its fingerprint get its prediction."""
    context = current()
    message = storable(read_message(request, RehearsalMessage))
    auth.check_project(message.project)
    with context.database.write() as session:
        rehearsal = add_rehearsal(session, message, context.clock())
        reply = base.Created(rehearsal.id)
    return json_answer(reply, 201)


@blueprint.get(f"{_V1}/rehearsals")
@operation("estimates", "read", predictions.RehearsalPage, query=queries.RehearsalsQuery)
def get_rehearsals() -> Response:
    """List rehearsals, newest first."""
    params = query.read(queries.RehearsalsQuery)
    with current().database.read() as session:
        page = page_rehearsals(
            session, limit=params.limit, cursor=params.cursor, project=params.project
        )
    return page_answer(page)
