"""The page of retention: what is kept how long, how much there is, and what `memagent prune` would let go of."""

from __future__ import annotations

from flask import Blueprint, Response

from memagent.units import DAY_S
from memagent_server.http.context import current
from memagent_server.store.retention import Limits, find_old
from memagent_server.store.usage import usage
from memagent_server.web import query
from memagent_server.web.pages.runs import answer_page, shared_facts

blueprint = Blueprint("retention", __name__)

MOST_SHOWN = 100


@blueprint.get("/settings/retention")
def show_retention() -> Response:
    """`older_than` in days asks what would go; that looks at each old run, so it is not done unasked."""
    context, settings = current(), current().settings
    days = query.number("older_than", least=1, most=36_500)
    with context.database.read() as session:
        used = usage(session)
        old = find_old(session, Limits(context.clock() - days * DAY_S)) if days is not None else []
        shared = shared_facts(session)
    return answer_page(
        "retention.html", **shared, used=used, retention_days=settings.retention_days, rollup_days=settings.rollup_days,
        days=days, old=old[:MOST_SHOWN],
        old_runs=len(old), old_bytes=sum(run.packed_bytes for run in old),
    )  # fmt: skip
