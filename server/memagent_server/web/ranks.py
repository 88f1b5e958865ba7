"""The ranks of a run beside each other, for programs and for the heat map of the run page."""

from __future__ import annotations

from flask import Blueprint, Response

from memagent_server.answers import json_answer
from memagent_server.context import current
from memagent_server.store.errors import UnknownRunError
from memagent_server.store.rank_grid import rank_grid
from memagent_server.store.runs import get_run
from memagent_server.web import query

blueprint = Blueprint("ranks", __name__)

_FAR = 2**62


@blueprint.get("/api/v1/runs/<run_id>/ranks")
def get_ranks(run_id: str) -> Response:
    first, last = query.number("from", least=0, most=_FAR), query.number("to", least=0, most=_FAR)
    field, columns = query.text("field") or "peak_allocated_bytes", query.number("points", least=10, most=1000) or 60
    with current().database.read() as session:
        if get_run(session, run_id) is None:
            raise UnknownRunError(run_id)
        found = rank_grid(session, run_id, field=field, first=first, last=last, columns=columns)
    return json_answer(found)
