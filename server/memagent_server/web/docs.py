"""The manual of the running version, offline: `/docs` with a search, and `/runbooks`, where
messages about alerts link to.

Pages are the Markdown of `docs/`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path, PurePosixPath
from posixpath import normpath

from flask import Blueprint, Response, request, url_for

from memagent_server.files import resource_dir
from memagent_server.http.context import current
from memagent_server.http.problems import Problem
from memagent_server.web.docs_search import (
    MAX_QUERY_CHARACTERS,
    Section,
    corrected,
    search,
    sections_of,
    vocabulary_of,
)
from memagent_server.web.markdown import Document, anchor_of, render
from memagent_server.web.rendering import render_page

blueprint = Blueprint("docs", __name__)

CONTENTS, RUNBOOKS = "index", "alerts"
_PAGE_NAME = r"[a-z0-9-]{1,100}(/[a-z0-9-]{1,100})?"
"""Letters and dashes, at most one folder deep: no name leads out of the folder, or is too long."""
_PAGE_LINK = re.compile(rf"\]\((?P<name>{_PAGE_NAME})\.md\)")
_IMAGE_LINK = re.compile(r"images/([a-z0-9-]{1,100}\.png)")


@blueprint.get("/runbooks")
def show_runbooks() -> Response:
    return _show(RUNBOOKS)


@blueprint.get("/docs")
def show_contents() -> Response:
    """Show the contents, or the results of the search `?q=`."""
    query = request.args.get("q", "").strip()[:MAX_QUERY_CHARACTERS]
    if not query:
        return _show(CONTENTS)
    results, other = search(_sections(), query), ""
    if not results and (nearest := corrected(_vocabulary(), query)) != query.lower():
        results, other = search(_sections(), nearest), nearest
    with current().database.read() as session:
        return render_page(
            "manual_search.html",
            session,
            query=query,
            results=results,
            other=other,
            address_of=_section_address,
        )


@blueprint.get("/docs/images/<name>")
def show_image(name: str) -> Response:
    path = resource_dir("docs") / "images" / name
    if not _IMAGE_LINK.fullmatch(f"images/{name}") or not path.is_file():
        raise Problem(404, f"The manual has no image {name!r}.")
    response = Response(path.read_bytes(), mimetype="image/png")
    response.headers["Cache-Control"] = "max-age=3600"
    return response


@blueprint.get("/docs/<path:page>")
def show_manual(page: str) -> Response:
    return _show(page)


def _show(name: str) -> Response:
    path = _path(name)
    if path is None:
        raise Problem(404, f"The manual has no page {name!r}. /docs lists all pages.")
    with current().database.read() as session:
        return render_page(
            "manual.html", session, document=_document(name, path), name=name, pages=_pages()
        )


def _path(name: str) -> Path | None:
    if not re.fullmatch(_PAGE_NAME, name):
        return None
    path = resource_dir("docs") / f"{name}.md"
    return path if path.is_file() else None


@lru_cache(maxsize=64)
def _document(name: str, path: Path) -> Document:
    """Render a page once: the docs change only with the program. Needs a request, for `url_for`."""
    return render(path.read_text(encoding="utf-8"), lambda href: _resolve_link(name, href))


@lru_cache(maxsize=1)
def _pages() -> tuple[tuple[str, str], ...]:
    """Return the name and title of each page, in the order of the contents."""
    folder = resource_dir("docs")
    text = (folder / f"{CONTENTS}.md").read_text(encoding="utf-8")
    names = dict.fromkeys(match["name"] for match in _PAGE_LINK.finditer(text))
    return tuple((name, _title(folder / f"{name}.md")) for name in names)


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        return next(lines).removeprefix("# ").strip()


@lru_cache(maxsize=1)
def _sections() -> tuple[Section, ...]:
    """Return the sections of all pages: the search index."""
    folder = resource_dir("docs")
    pages = sorted(folder.rglob("*.md"))
    return tuple(
        section
        for path in pages
        for section in sections_of(
            path.relative_to(folder).with_suffix("").as_posix(), path.read_text(encoding="utf-8")
        )
    )


@lru_cache(maxsize=1)
def _vocabulary() -> list[str]:
    return vocabulary_of(_sections())


def _section_address(section: Section) -> str:
    address = _page_address(section.page)
    return address if section.is_page_start else f"{address}#{anchor_of(section.heading)}"


def _resolve_link(page: str, href: str) -> str | None:
    """Return the address of a link on `page`; None for a file that is only in the repository."""
    if re.match(r"[a-z]+:|#", href):
        return href
    if image := _IMAGE_LINK.fullmatch(href):
        return url_for("docs.show_image", name=image[1])
    target, _, anchor = href.partition("#")
    name = normpath(str(PurePosixPath(page).parent / target)).removesuffix(".md")
    if not target.endswith(".md") or _path(name) is None:
        return None
    return _page_address(name) + (f"#{anchor}" if anchor else "")


def _page_address(name: str) -> str:
    endpoint = {CONTENTS: "docs.show_contents", RUNBOOKS: "docs.show_runbooks"}.get(name)
    return url_for(endpoint) if endpoint else url_for("docs.show_manual", page=name)
