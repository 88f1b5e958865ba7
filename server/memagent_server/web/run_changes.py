"""Changes of runs by people: name, notes, tags, archive, deletion, and requests to its script.

Each has a route of the API; the run's page has forms for some.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager, suppress
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from flask import Blueprint, Response, request
from msgspec import Meta

from memagent.wire.messages import SCRIPT_COMMANDS, Identifier
from memagent_server.http import auth, change_log
from memagent_server.http.api_route import operation, require_scope
from memagent_server.http.context import current
from memagent_server.http.problems import Problem, json_answer
from memagent_server.ingest.body import read_message
from memagent_server.schemas.queries import MAX_RUNS, RunsToDelete
from memagent_server.schemas.runs import ChangedRuns, Run, RunCommand, RunCommands
from memagent_server.store.alerts import list_alerts
from memagent_server.store.engine import Session
from memagent_server.store.errors import UnknownRunError
from memagent_server.store.events import add_command, list_commands
from memagent_server.store.run_edits import MAX_NOTES, MAX_TAGS, edit_run, edit_runs, edited_parts
from memagent_server.store.runs import delete_run, get_run, lock_run, lock_runs
from memagent_server.store.summaries import describe
from memagent_server.web import query
from memagent_server.web.rendering import redirect_to

blueprint = Blueprint("run_changes", __name__)

MAX_NAME = 200
_NO_NUL = r"^[^\x00]*$"
_Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME, pattern=_NO_NUL)]


class RunEdit(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Changes of a run; a missing part stays as it is."""

    name: _Name | None = None
    notes: Annotated[str, Meta(max_length=MAX_NOTES, pattern=_NO_NUL)] | None = None
    tags: Annotated[list[_Name], Meta(max_length=MAX_TAGS)] | None = None
    is_archived: bool | None = None


class RunsEdit(RunEdit, kw_only=True, forbid_unknown_fields=True):
    """Changes of several runs; `tags` replace those that they have."""

    runs: Annotated[list[Identifier], Meta(min_length=1, max_length=MAX_RUNS)]
    add_tags: Annotated[list[_Name], Meta(max_length=MAX_TAGS)] = []
    remove_tags: Annotated[list[_Name], Meta(max_length=MAX_TAGS)] = []
    add_notes: Annotated[str, Meta(max_length=MAX_NOTES, pattern=_NO_NUL)] = ""


class CommandRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Something for a script to do at its next step."""

    kind: Literal["stop", "checkpoint"]


@blueprint.patch("/api/v1/runs/<run_id>")
@operation("runs", "admin", Run, body=RunEdit)
def patch_run(run_id: str) -> Response:
    """Change a run's name, notes, tags or archive. A launch that resumes it leaves them alone."""
    edit, context = read_message(request, RunEdit), current()
    with context.database.write() as session:
        with watch_runs(session, [run_id]):
            edit_run(session, lock_run(session, run_id), **msgspec.structs.asdict(edit))
        run = lock_run(session, run_id)
        alerts = list_alerts(session, run_id=run_id).alerts
        settings = context.settings
        described = describe(
            session, run, alerts, settings.gpu_prices, public_url=settings.public_url
        )
    return json_answer(described)


@blueprint.patch("/api/v1/runs")
@operation("runs", "admin", ChangedRuns, body=RunsEdit, problems=(404,))
def patch_runs() -> Response:
    """Change up to 200 runs, all or none: names, notes, tags or the archive."""
    edit = read_message(request, RunsEdit)
    parts = msgspec.structs.asdict(edit)
    run_ids = list(dict.fromkeys(parts.pop("runs")))
    with current().database.write() as session, watch_runs(session, run_ids):
        edit_runs(session, run_ids, **parts)
    return json_answer(ChangedRuns(len(run_ids)))


@blueprint.delete("/api/v1/runs")
@operation("runs", "admin", {204: None}, query=RunsToDelete, problems=(404,))
def delete_runs() -> Response:
    """Delete up to 200 runs and everything that belongs to them; none if one is unknown."""
    delete_all(query.read(RunsToDelete).runs)
    return Response(status=204)


def delete_all(run_ids: Iterable[str]) -> None:
    """Delete runs, each in its own transaction. Raises UnknownRunError before the first."""
    ids, database = list(dict.fromkeys(run_ids)), current().database
    # a wrong id must not leave half of the runs deleted
    with database.read() as session:
        for run_id in ids:
            if get_run(session, run_id) is None:
                raise UnknownRunError(run_id)
    for run_id in ids:
        # others write meanwhile, and may delete the same
        with database.write() as session, suppress(UnknownRunError):
            lock_run(session, run_id)
            delete_run(session, run_id)


@blueprint.delete("/api/v1/runs/<run_id>")
@operation("runs", "admin", {204: None})
def delete_one_run(run_id: str) -> Response:
    """Delete a run and everything that belongs to it."""
    with current().database.write() as session:
        lock_run(session, run_id)
        delete_run(session, run_id)
    return Response(status=204)


@blueprint.post("/runs/<run_id>")
@require_scope("admin")
def change_run(run_id: str) -> Response:
    """Store the name and notes of the page's form, and show the run."""
    name, notes = form_text("name", 1, MAX_NAME), form_text("notes", 0, MAX_NOTES)
    with current().database.write() as session, watch_runs(session, [run_id]):
        run = lock_run(session, run_id)
        renamed = name if name != run.name else None
        edit_run(session, run, name=renamed, notes=notes)
    return _show(run_id)


def watch_runs(session: Session, run_ids: Collection[str]) -> AbstractContextManager[None]:
    """Log what the block changes of runs that people edit. Locks them, so that no other does."""
    lock_runs(session, run_ids)

    def read() -> dict[str, Any]:
        parts = edited_parts(session, run_ids)
        # the entry names a single run already
        return parts if len(run_ids) > 1 else next(iter(parts.values()), {})

    return change_log.watch(session, read)


def form_text(field: str, least: int, most: int) -> str:
    """Return a text of a form, with the line ends of Unix. Raises Problem 422."""
    text = request.form.get(field, "").replace("\r\n", "\n").strip()
    if not least <= len(text) <= most or "\0" in text:
        raise Problem(
            422,
            f"{field}: enter {least} to {most:,} characters without NUL, not {len(text):,}.",
            field=field,
        )
    return text


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
    return _show(run_id)


def _show(run_id: str) -> Response:
    return redirect_to(f"/runs/{quote(run_id, safe='')}")


def _request(run_id: str, kind: str) -> RunCommand:
    access, context = auth.current_access(), current()
    by = access.name if access is not None else None
    with context.database.write() as session:
        run = lock_run(session, run_id)
        return add_command(session, run, kind, by=by, now=context.clock())
