"""Requests to running scripts: the routes of the API, and the buttons of a run's page."""

from __future__ import annotations

from typing import Literal
from urllib.parse import quote

import msgspec
from flask import Blueprint, Response, request

from memagent.wire.messages import SCRIPT_COMMANDS
from memagent_server.http import auth
from memagent_server.http.api_route import operation, require_scope
from memagent_server.http.context import current
from memagent_server.http.problems import Problem, json_answer
from memagent_server.ingest.body import read_message
from memagent_server.schemas.runs import RunCommand, RunCommands
from memagent_server.store.errors import UnknownRunError
from memagent_server.store.events import add_command, list_commands
from memagent_server.store.runs import get_run, lock_run
from memagent_server.web.rendering import redirect_to

blueprint = Blueprint("commands", __name__)


class CommandRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Something for a script to do at its next step."""

    kind: Literal["stop", "checkpoint"]


@blueprint.get("/api/v1/runs/<run_id>/commands")
@operation("runs", "read", RunCommands)
def get_commands(run_id: str) -> Response:
    """Return the newest requests to a run's script, and what became of them."""
    with current().database.read() as session:
        if get_run(session, run_id) is None:
            raise UnknownRunError(run_id)
        return json_answer(RunCommands(list_commands(session, run_id)))


@blueprint.post("/api/v1/runs/<run_id>/commands")
@operation("runs", "admin", {201: RunCommand}, body=CommandRequest, problems=(409,))
def post_command(run_id: str) -> Response:
    """Ask a running script to save a checkpoint or to stop; its `on_command` decides.

    An open request of the same kind is returned instead of another. 409 if the run has ended, or
    its script takes no commands.
    """
    return json_answer(_request(run_id, read_message(request, CommandRequest).kind), 201)


@blueprint.post("/runs/<run_id>/commands")
@require_scope("admin")
def request_command(run_id: str) -> Response:
    """Record the request of the button that was pressed, and show the run."""
    kind = request.form.get("kind", "")
    if kind not in SCRIPT_COMMANDS:
        options = ", ".join(SCRIPT_COMMANDS)
        raise Problem(422, f"kind: {kind!r:.80} is not one of {options}.", field="kind")
    _request(run_id, kind)
    return redirect_to(f"/runs/{quote(run_id, safe='')}")


def _request(run_id: str, kind: str) -> RunCommand:
    access, context = auth.current_access(), current()
    by = access.name if access is not None else None
    with context.database.write() as session:
        run = lock_run(session, run_id)
        return add_command(session, run, kind, by=by, now=context.clock())
