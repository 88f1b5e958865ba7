"""The people who logged in with the OpenID Connect provider. An admin ends their sessions."""

from __future__ import annotations

from flask import Blueprint, Response, request

from memagent_server.http import oidc
from memagent_server.http.api_route import require_scope
from memagent_server.http.context import current
from memagent_server.http.problems import Problem
from memagent_server.store.people import end_sessions, list_people
from memagent_server.web.rendering import render_page

blueprint = Blueprint("people", __name__, url_prefix="/settings")


@blueprint.get("/people")
@require_scope("admin", of_server=True)
def show_people() -> Response:
    return _people_page()


@blueprint.post("/people")
@require_scope("admin", of_server=True)
def change_people() -> Response:
    """End the sessions of the person whose id the button `end` names."""
    number = request.form.get("end", "")
    if not number.isdecimal() or len(number) > 18:
        raise Problem(422, "end: expected the id of a person.", field="end")
    with current().database.write() as session:
        name = end_sessions(session, int(number))
        if name is None:
            raise Problem(404, f"Unknown person {number}.")
    return _people_page(f"All sessions of {name} have ended.")


def _people_page(message: str | None = None) -> Response:
    provider = oidc.current_provider()
    with current().database.read() as session:
        people, count = list_people(session)
        return render_page(
            "people.html",
            session,
            people=people,
            count=count,
            provider=provider.settings if provider is not None else None,
            message=message,
        )
