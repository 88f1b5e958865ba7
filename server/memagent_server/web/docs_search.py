"""Search the manual: sections that contain every word of a query, best first. Pure.

1. A section is a heading with the text up to the next one. Markup is removed, code stays.
2. Every word of the query must begin a word of the page's title, the heading or the text, in any
   case. Words like "a" and "the" are left out if others remain.
3. A word in the heading or the title counts more than any number of occurrences in the text, and
   so does the whole query as a phrase. Headings of HTTP routes don't count: a guide comes first.
   Pages in a folder, which are decisions about memagent itself, come last.
4. If nothing is found, words that the manual doesn't have are replaced by the nearest ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

MAX_QUERY_CHARACTERS = 100
MAX_RESULTS = 30
MAX_CORRECTED = 6
SNIPPET_CHARACTERS = 180
_TITLE_SCORE = 100
_HEADING_SCORE = 40
_PHRASE_SCORE = 60
_MAX_TEXT_SCORE = 10
_PAGE_START_SCORE = 5
"""The start of a page ranks before its sections."""
_FENCE = re.compile(r"^```.*$", re.MULTILINE)
_HEADING = re.compile(r"^(#{1,6}) (.+)$", re.MULTILINE)
_FILLERS = frozenset(
    re.findall(
        "[a-z]+",
        "a an and are can do does for from how i in is it my of on or the to what when where "
        "why with",
    )
)
_ROUTE = re.compile(r"(GET|POST|PUT|PATCH|DELETE) /")
_WORD = re.compile(r"[a-z]{3,}")
_MARKUP = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True)
class Section:
    """One heading of a page; `heading` is the page's title for the text before the first one."""

    page: str
    title: str
    heading: str
    text: str

    @property
    def is_page_start(self) -> bool:
        return self.heading == self.title


@dataclass(frozen=True)
class SearchResult:
    """A section and the part of its text to show: (text, whether it matches) pairs."""

    section: Section
    snippet: tuple[tuple[str, bool], ...]


def sections_of(page: str, markdown: str) -> Iterator[Section]:
    """Yield the sections of a page of Markdown. A heading inside a code block is code."""
    headings = [match for match in _HEADING.finditer(markdown) if not _in_code(markdown, match)]
    title = _plain(headings[0][2]) if headings else page
    ends = [match.start() for match in headings[1:]] + [len(markdown)]
    for match, end in zip(headings, ends, strict=True):
        yield Section(page, title, _plain(match[2]), _plain(markdown[match.end() : end]))


def search(sections: Sequence[Section], query: str) -> list[SearchResult]:
    """Return the sections with every word of the query, best first."""
    phrase = query[:MAX_QUERY_CHARACTERS].lower().split()
    words = [word for word in phrase if word not in _FILLERS] or phrase
    if not words:
        return []
    scored = [(score, section) for section in sections if (score := _score(section, words, phrase))]
    scored.sort(key=lambda item: ("/" in item[1].page, -item[0]))
    return [
        SearchResult(section, _snippet(section.text, words)) for _, section in scored[:MAX_RESULTS]
    ]


def vocabulary_of(sections: Sequence[Section]) -> list[str]:
    """Return the words of all sections."""
    text = " ".join(f"{section.title} {section.heading} {section.text}" for section in sections)
    return sorted(set(_WORD.findall(text.lower())))


def corrected(vocabulary: Sequence[str], query: str) -> str:
    """Return the query with the nearest word of the manual for each word that it doesn't have.

    It has at most MAX_CORRECTED words: each is compared with the whole vocabulary.
    """
    words = query[:MAX_QUERY_CHARACTERS].lower().split()[:MAX_CORRECTED]
    return " ".join(
        word
        if any(known.startswith(word) for known in vocabulary)
        else next(iter(get_close_matches(word, vocabulary, n=1, cutoff=0.75)), word)
        for word in words
    )


def _pattern_of(words: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern of the words, where they begin one, or a part of CamelCase."""
    begin = "(?:(?<![A-Za-z0-9])|(?<=[a-z])(?=[A-Z]))"
    return re.compile(f"{begin}(?i:{'|'.join(map(re.escape, words))})")


def _score(section: Section, words: Sequence[str], phrase: Sequence[str]) -> int:
    """Return 0 if a word is missing."""
    total = _PAGE_START_SCORE if section.is_page_start else 0
    found_here = False
    for word in words:
        pattern = _pattern_of([word])
        in_text = min(len(pattern.findall(section.text)), _MAX_TEXT_SCORE)
        is_in_heading = bool(pattern.search(section.heading))
        in_heading = _HEADING_SCORE * (is_in_heading and not _ROUTE.match(section.heading))
        is_in_title = bool(pattern.search(section.title))
        in_title = _TITLE_SCORE * (is_in_title and section.is_page_start)
        if not (in_text or is_in_heading or is_in_title):
            return 0
        found_here = found_here or bool(in_text) or is_in_heading
        total += in_text + in_heading + in_title
    whole = " ".join(phrase)
    if len(phrase) > 1:
        places = (section.text.lower(), section.heading.lower())
        total += _PHRASE_SCORE * sum(whole in place for place in places)
    return total if found_here else 0


def _snippet(text: str, words: Sequence[str]) -> tuple[tuple[str, bool], ...]:
    """Cut the text around the first match, and split it at the matches."""
    pattern = _pattern_of(words)
    match = pattern.search(text)
    start = max(0, match.start() - SNIPPET_CHARACTERS // 3) if match else 0
    start = text.rfind(" ", 0, start) + 1
    part = text[start : start + SNIPPET_CHARACTERS]
    if start + SNIPPET_CHARACTERS < len(text):
        part = part.rpartition(" ")[0] + " …"
    pieces = re.split(f"({pattern.pattern})", part)
    return tuple((piece, index % 2 == 1) for index, piece in enumerate(pieces) if piece)


def _in_code(markdown: str, match: re.Match[str]) -> bool:
    return len(_FENCE.findall(markdown, 0, match.start())) % 2 == 1


def _plain(markdown: str) -> str:
    text = _MARKUP.sub(r"\1", _FENCE.sub("", markdown))
    text = re.sub(r"^\|[ |:-]+\|$|[`*|]", " ", text, flags=re.MULTILINE)
    return " ".join(text.split())
