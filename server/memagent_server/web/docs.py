"""The manual of the version that runs here, offline: `/docs`, and `/runbooks`, where messages about alerts lead."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path, PurePosixPath
from posixpath import normpath

from flask import Blueprint, Response, url_for

from memagent_server.http.context import current
from memagent_server.http.problems import Problem
from memagent_server.resources import resource_dir
from memagent_server.web.markdown import Document, render
from memagent_server.web.pages.runs import answer_page, shared_facts

blueprint = Blueprint("manual", __name__)

CONTENTS, RUNBOOKS = "index", "alerts"
_NAME = r"[a-z0-9-]+(/[a-z0-9-]+)?"
"""Of a page: letters and dashes, at most one folder deep. Nothing that could lead out of the folder."""


@blueprint.get("/runbooks")
def show_runbooks() -> Response:
    return _show(RUNBOOKS)


@blueprint.get("/docs")
def show_contents() -> Response:
    return _show(CONTENTS)


@blueprint.get("/docs/<path:page>")
def show_manual(page: str) -> Response:
    return _show(page)


def _show(name: str) -> Response:
    path = _path(name)
    if path is None:
        raise Problem(404, f"the manual has no page {name!r}; /docs lists those that there are")
    with current().database.read() as session:
        shared = shared_facts(session)
    return answer_page("manual.html", **shared, document=_document(name, path), name=name)


def _path(name: str) -> Path | None:
    if not re.fullmatch(_NAME, name):
        return None
    path = resource_dir("docs") / f"{name}.md"
    return path if path.is_file() else None


@lru_cache(maxsize=64)
def _document(name: str, path: Path) -> Document:
    """The docs change with the program only. Needs a request, for the addresses of its links."""
    return render(path.read_text(encoding="utf-8"), lambda href: _leads(name, href))


def _leads(page: str, href: str) -> str | None:
    """Where a link on `page` leads: to a page of the manual, or away; None for a file that is in the repository only."""
    if re.match(r"[a-z]+:|#", href):
        return href
    target, _, anchor = href.partition("#")
    name = normpath(str(PurePosixPath(page).parent / target)).removesuffix(".md")
    if not target.endswith(".md") or _path(name) is None:
        return None
    return _address(name) + (f"#{anchor}" if anchor else "")


def _address(name: str) -> str:
    short = {CONTENTS: "manual.show_contents", RUNBOOKS: "manual.show_runbooks"}.get(name)
    return url_for(short) if short else url_for("manual.show_manual", page=name)
