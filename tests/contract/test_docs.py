"""Settings, verbs, messages, routes and fields each have a place in the docs."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import msgspec
import pytest

from memagent.cli import VERBS
from memagent.environment import ALL_SETTINGS
from memagent.wire import messages
from memagent.wire.fields import FIELDS
from memagent_server.alerts.rules import RULES
from memagent_server.schemas.base import RUN_STATUSES
from memagent_server.settings import CHANNEL_NAMES
from memagent_server.web.docs import anchor_of

DOCS = Path(__file__).parents[2] / "docs"
AGENT = DOCS.parent / "agent"
MESSAGES = [
    kind
    for kind in vars(messages).values()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
]


def headings(page: str) -> list[str]:
    return re.findall(r"^#+ (.+)$", (DOCS / page).read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("setting", ALL_SETTINGS)
def test_every_setting_has_a_heading(setting):
    assert setting in headings("settings.md")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_heading(verb):
    assert f"memagent {verb}" in headings("cli.md")


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_runbook_with_its_thresholds(rule):
    section = (DOCS / "alerts.md").read_text().partition(f"\n## {rule}\n")[2].partition("\n## ")[0]
    assert "**What to do:**" in section
    for item in RULES[rule].thresholds:
        value = {"s": f"{item.default:g} s", "bytes": f"{item.default // 2**20:g} MiB"}.get(
            item.unit, f"{item.default:g}"
        )
        assert f"`{item.name}` ({value})" in section


def test_every_reason_for_a_dropped_sample_is_explained():
    text = re.findall(
        r"_drops\[\"(\w+)\"\]", "".join(path.read_text() for path in AGENT.rglob("*.py"))
    )
    assert text and set(text) <= set(re.findall(r"`(\w+)`", (DOCS / "alerts.md").read_text()))


@pytest.mark.parametrize("channel", CHANNEL_NAMES)
def test_every_channel_has_a_row_that_leads_to_its_heading(channel):
    anchor = re.search(
        rf"^\| \[{channel}\]\(#([^)]+)\)", (DOCS / "notifications.md").read_text(), re.MULTILINE
    )
    assert anchor is not None
    assert anchor[1] in map(anchor_of, headings("notifications.md"))


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_every_sample_field_has_a_heading(field):
    assert field.name in headings("wire.md")


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_every_message_has_a_heading_and_every_field_a_row(message):
    page = (DOCS / "wire.md").read_text()
    section = page.partition(f"\n## {message.__name__}\n")[2].partition("\n## ")[0]
    assert {field.name for field in msgspec.structs.fields(message)} == set(
        re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    )


def test_every_link_resolves():
    pages = [*DOCS.glob("**/*.md"), DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md"]
    nowhere = [
        f"{page.name}: {link}"
        for page in pages
        for link in links_of(page)
        if not leads_somewhere(page, link)
    ]
    assert nowhere == []


def links_of(page: Path) -> list[str]:
    """Links within the repository: files, and anchors of pages."""
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", prose)


def leads_somewhere(page: Path, link: str) -> bool:
    file, _, anchor = link.partition("#")
    target = page.parent / file if file else page
    return target.exists() and (not anchor or anchor in anchors_of(target))


@cache
def anchors_of(page: Path) -> set[str]:
    outside_code = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {
        anchor_of(heading) for heading in re.findall(r"^#+ (.+)$", outside_code, flags=re.MULTILINE)
    }


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_every_page_has_one_title_and_no_two_sections_of_one_name(page):
    outside_code = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^# .+$", outside_code, flags=re.MULTILINE) == [
        outside_code.partition("\n")[0]
    ]
    anchors = [
        anchor_of(heading) for heading in re.findall(r"^#+ (.+)$", outside_code, flags=re.MULTILINE)
    ]
    assert len(anchors) == len(set(anchors))


def test_every_final_status_is_explained():
    statuses = re.search(r"an\s+end: (.*?)\.", (DOCS / "concepts.md").read_text(), re.DOTALL)
    assert set(re.findall(r"`(\w+)`", statuses[1])) == set(RUN_STATUSES) - {"running"}


def test_every_page_is_in_the_contents():
    assert {f"{page.stem}.md" for page in DOCS.glob("*.md")} - {"index.md"} <= set(
        links_of(DOCS / "index.md")
    )
