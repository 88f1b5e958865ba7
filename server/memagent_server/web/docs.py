"""The manual of the running version, offline: `/docs` with a search, and `/runbooks`, where
messages about alerts link to.

Markdown of `docs/` becomes HTML. The pages' policy forbids inline style, and keyboard users must
reach everything that scrolls: see `_accessible`. Raw HTML is shown as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path, PurePosixPath
from posixpath import normpath

from flask import Blueprint, Response, request, url_for
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from memagent_server.files import resource_dir
from memagent_server.http.context import current
from memagent_server.http.problems import Problem
from memagent_server.web.docs_search import MAX_QUERY_CHARACTERS, Section, search, sections_of
from memagent_server.web.rendering import render_page

blueprint = Blueprint("docs", __name__)

CONTENTS, RUNBOOKS = "index", "alerts"
_PAGE_NAME = r"[a-z0-9-]{1,100}(/[a-z0-9-]{1,100})?"
"""Letters and dashes, at most one folder deep: no name leads out of the folder, or is too long."""
_IMAGE_LINK = re.compile(r"images/([a-z0-9-]{1,100}\.png)")

LinkResolver = Callable[[str], str | None]
"""Map a link of the Markdown to an address on this server; None if it has none here."""


@dataclass(frozen=True)
class Heading:
    level: int
    anchor: str
    text: str


@dataclass(frozen=True)
class Document:
    """A rendered page.

    `title` is the first heading, which isn't in `html`; `headings` are the others.
    """

    title: str
    html: Markup
    headings: tuple[Heading, ...]


@blueprint.get("/runbooks")
def show_runbooks() -> Response:
    return _show(RUNBOOKS)


@blueprint.get("/docs")
def show_contents() -> Response:
    """Show the contents, or the results of the search `?q=`."""
    query = request.args.get("q", "").strip()[:MAX_QUERY_CHARACTERS]
    if not query:
        return _show(CONTENTS)
    results = search(_sections(), query)
    with current().database.read() as session:
        return render_page(
            "manual_search.html", session, query=query, results=results, address_of=_section_address
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
        return render_page("manual.html", session, document=_document(name, path), name=name)


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


def render(text: str, resolve_link: LinkResolver) -> Document:
    """Render Markdown, with its links mapped by `resolve_link`."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(text)
    headings = tuple(_headings(tokens))
    has_title = bool(tokens) and tokens[0].type == "heading_open"
    for token in tokens:
        if token.children is not None:
            token.children = list(_linked(token.children, resolve_link))
    body = list(_accessible(tokens[3:] if has_title else tokens))
    rendered = markdown.renderer.render(body, markdown.options, {})
    html = Markup(rendered)  # noqa: S704  # raw HTML is off  # nosec B704
    return Document(headings[0].text if has_title else "", html, headings[has_title:])


def anchor_of(heading: str) -> str:
    """Return the anchor that GitHub gives a heading, so that links work in both places."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _headings(tokens: Sequence[Token]) -> Iterator[Heading]:
    """Yield the headings, and give each its anchor on the way."""
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open":
            text = "".join(child.content for child in inline.children or ())
            opening.attrSet("id", anchor_of(text))
            yield Heading(int(opening.tag[1]), anchor_of(text), text)


def _linked(children: Sequence[Token], resolve_link: LinkResolver) -> Iterator[Token]:
    """Yield the same text; links without an address on this server are removed."""
    is_dropped = False
    for child in children:
        if child.type == "image":
            child.attrSet("src", resolve_link(str(child.attrGet("src"))) or "")
        if child.type == "link_open":
            address = resolve_link(str(child.attrGet("href")))
            is_dropped = address is None
            if address is not None:
                child.attrSet("href", address)
        if not (is_dropped and child.type in ("link_open", "link_close")):
            yield child
        if child.type == "link_close":
            is_dropped = False


def _accessible(tokens: Sequence[Token]) -> Iterator[Token]:
    """Make code blocks and tables reachable by keyboard, and align columns by class.

    An empty header cell labels nothing, so it becomes a plain cell.
    """
    tables = 0
    for token, inline, closing in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if token.type == "th_open" and not inline.content:
            token.tag = "td"
            closing.tag = "td"
    for token in tokens:
        if "right" in str(token.attrs.pop("style", "")):
            token.attrSet("class", "number")
        if token.type in ("fence", "code_block"):
            yield _html('<pre tabindex="0"><code>{}</code></pre>\n', token.content)
            continue
        if token.type == "table_open":
            tables += 1
            opening = '<div class="table-box" tabindex="0" role="region" aria-label="Table {}">\n'
            yield _html(opening, tables)
        yield token
        if token.type == "table_close":
            yield _html("</div>\n")


def _html(template: str, *values: object) -> Token:
    html = Markup(template).format(*values)  # noqa: S704  # `format` escapes  # nosec B704
    return Token("html_block", "", 0, content=str(html))
