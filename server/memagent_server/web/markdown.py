"""Markdown of `docs/` in, a page's HTML out. Pure.

The policy of the pages forbids inline style, and people on the keyboard must reach what scrolls: see `_dress`. Raw HTML is shown as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

Leads = Callable[[str], str | None]
"""Where a link of the Markdown leads on this server; None where it leads nowhere here."""


@dataclass(frozen=True)
class Heading:
    level: int
    anchor: str
    text: str


@dataclass(frozen=True)
class Document:
    """`title` is the text of the first heading, which is not in `html`; `headings` are the others."""

    title: str
    html: Markup
    headings: tuple[Heading, ...]


def render(text: str, leads: Leads) -> Document:
    """The page that `text` describes, with its links as `leads` says."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(text)
    headings = tuple(_headings(tokens))
    has_title = bool(tokens) and tokens[0].type == "heading_open"
    for token in tokens:
        if token.children is not None:
            token.children = list(_linked(token.children, leads))
    html = markdown.renderer.render(
        list(_dressed(tokens[3:] if has_title else tokens)), markdown.options, {}
    )
    return Document(headings[0].text if has_title else "", Markup(html), headings[has_title:])  # noqa: S704  # raw HTML is off  # nosec B704


def anchor_of(heading: str) -> str:
    """The anchor that GitHub gives a heading, so that links in the docs hold in both places."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _headings(tokens: Sequence[Token]) -> Iterator[Heading]:
    """Gives each heading its anchor on the way."""
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open":
            words = "".join(child.content for child in inline.children or ())
            opening.attrSet("id", anchor_of(words))
            yield Heading(int(opening.tag[1]), anchor_of(words), words)


def _linked(children: Sequence[Token], leads: Leads) -> Iterator[Token]:
    """The same words; links that lead nowhere here are left out."""
    is_dropped = False
    for child in children:
        if child.type == "link_open":
            target = leads(str(child.attrGet("href")))
            is_dropped = target is None
            if target is not None:
                child.attrSet("href", target)
        if not (is_dropped and child.type in ("link_open", "link_close")):
            yield child
        if child.type == "link_close":
            is_dropped = False


def _dressed(tokens: Sequence[Token]) -> Iterator[Token]:
    """Blocks of code and tables can be scrolled by keyboard; columns are aligned by class, and an empty cell heads nothing."""
    tables = 0
    for token, inline, closing in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if token.type == "th_open" and not inline.content:
            token.tag = closing.tag = "td"
    for token in tokens:
        if "right" in str(token.attrs.pop("style", "")):
            token.attrSet("class", "number")
        if token.type in ("fence", "code_block"):
            yield _html('<pre tabindex="0"><code>{}</code></pre>\n', token.content)
            continue
        if token.type == "table_open":
            tables += 1
            yield _html(
                '<div class="table-box" tabindex="0" role="region" aria-label="Table {}">\n', tables
            )
        yield token
        if token.type == "table_close":
            yield _html("</div>\n")


def _html(template: str, *values: object) -> Token:
    return Token("html_block", "", 0, content=str(Markup(template).format(*values)))  # noqa: S704  # `format` escapes  # nosec B704
