"""Markdown as HTML: pages of the manual, and notes of runs.

The pages' policy forbids inline style, and keyboard users must reach everything that scrolls: see
`_accessible`. Raw HTML is shown as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

LinkResolver = Callable[[str], str | None]
"""Map a link of the Markdown to an address on this server; None if it has none here."""
_NOTES_LEVEL = 2
"""Headings of notes begin below the `h2` of their card."""


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


def render(text: str, resolve_link: LinkResolver) -> Document:
    """Render a page of the manual, with its links mapped by `resolve_link`."""
    markdown = _parser()
    tokens = markdown.parse(text)
    headings = tuple(_headings(tokens))
    has_title = bool(tokens) and tokens[0].type == "heading_open"
    for token in tokens:
        if token.children is not None:
            token.children = list(_linked(token.children, resolve_link))
    html = _rendered(markdown, tokens[3:] if has_title else tokens)
    return Document(headings[0].text if has_title else "", html, headings[has_title:])


def render_notes(text: str) -> Markup:
    """Render what people wrote about a run: below the page's own headings, without images."""
    markdown = _parser().disable("image")
    tokens = markdown.parse(text)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + _NOTES_LEVEL)}"
        for child in token.children or ():
            if child.type == "link_open":
                child.attrSet("rel", "noopener noreferrer nofollow")
    return _rendered(markdown, tokens)


def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable("table")


def _rendered(markdown: MarkdownIt, tokens: Sequence[Token]) -> Markup:
    html = markdown.renderer.render(list(_accessible(tokens)), markdown.options, {})
    return Markup(html)  # noqa: S704  # raw HTML is off  # nosec B704


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
