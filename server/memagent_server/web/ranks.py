"""The ranks of a run beside each other, for programs and for the heat map of the run page."""

from __future__ import annotations

from flask import Blueprint, Response

from memagent_server.http.api_route import operation
from memagent_server.http.context import current
from memagent_server.http.responses import chart_answer
from memagent_server.schemas.queries import RanksQuery
from memagent_server.schemas.runs import RankGrid
from memagent_server.store.errors import UnknownRunError
from memagent_server.store.rank_grid import rank_grid
from memagent_server.store.runs import get_run
from memagent_server.web import query

blueprint = Blueprint("ranks", __name__)


@blueprint.get("/api/v1/runs/<run_id>/ranks")
@operation("runs", "read", RankGrid, query=RanksQuery)
def get_ranks(run_id: str) -> Response:
    """All ranks of the newest launch over the same steps, for a heat map."""
    asked = query.read(RanksQuery)
    with current().database.read() as session:
        if get_run(session, run_id) is None:
            raise UnknownRunError(run_id)
        found = rank_grid(
            session,
            run_id,
            field=asked.field,
            first=asked.first,
            last=asked.last,
            columns=asked.points,
        )
    return chart_answer(found)
