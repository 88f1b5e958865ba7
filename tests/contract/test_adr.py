"""Architecture decisions are numbered without gaps, dated, and listed in their index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs/adr"
PAGES = {path.name: path.read_text() for path in FOLDER.glob("*.md")}
PARTS = ("Context", "Options", "Choice", "Consequence")
STATUSES = r"proposed|accepted|rejected|superseded by ADR \d+"
MAX_WORDS = 350


def problems(pages: dict[str, str]) -> list[str]:
    """Return what breaks the form, one line each."""
    index = pages.get("index.md", "")
    decisions = sorted(name for name in pages if name != "index.md")
    numbers = [name[:4] for name in decisions]
    results = []
    if numbers != [f"{number:04}" for number in range(1, len(numbers) + 1)]:
        results.append(f"numbers have gaps or repeat: {numbers}")
    for name in decisions:
        text = pages[name]
        number = name[:4].lstrip("0")
        title = re.match(rf"# ADR {number}: (.+)\n", text)
        status = re.search(rf"^- Status: ({STATUSES})$", text, re.MULTILINE)
        date = re.search(r"^- Date: (\d{4}-\d{2}-\d{2})$", text, re.MULTILINE)
        if not (title and status and date):
            results.append(f"{name}: title, status or date is missing")
            continue
        row = f"| [{number}]({name}) | {title[1]} | {status[1]} | {date[1]} |"
        if row not in index.splitlines():
            results.append(f"index.md lacks: {row}")
        if re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE) != list(PARTS):
            results.append(f"{name}: parts are not {', '.join(PARTS)}")
        if len(text.split()) > MAX_WORDS:
            results.append(f"{name}: {len(text.split())} words")
    return results


def test_decisions_have_their_form():
    assert len(PAGES) > 10 and problems(PAGES) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"0003-channels-of-our-own.md": None},
        {"0099-late.md": "# ADR 99: Late\n"},
        {"index.md": "# Architecture decisions\n"},
        {"0001-one-namespace-of-settings.md": "# ADR 1: Title\n\n- Date: 2026-11-21\n"},
        {"0001-one-namespace-of-settings.md": "# 1. Title\n"},
    ],
)
def test_it_finds_decisions_out_of_form(changes):
    pages = {name: text for name, text in {**PAGES, **changes}.items() if text is not None}
    assert problems(pages) != []
