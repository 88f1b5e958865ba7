"""Whatever users can set, call or see on the wire has its place in the docs; removing one from the docs fails here."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from memagent.cli import VERBS
from memagent.environment import ALL_SETTINGS
from memagent.wire import messages
from memagent.wire.fields import FIELDS
from memagent_server.settings import CHANNEL_NAMES

DOCS = Path(__file__).parents[2] / "docs"
MESSAGES = [kind for kind in vars(messages).values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]


def headings(page: str) -> list[str]:
    return re.findall(r"^#+ (.+)$", (DOCS / page).read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("setting", ALL_SETTINGS)
def test_every_setting_has_a_heading(setting):
    assert setting in headings("settings.md")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_heading(verb):
    assert f"memagent {verb}" in headings("cli.md")


@pytest.mark.parametrize("channel", CHANNEL_NAMES)
def test_every_channel_has_a_row_that_leads_to_its_heading(channel):
    anchor = re.search(rf"^\| \[{channel}\]\(#([^)]+)\)", (DOCS / "notifications.md").read_text(), re.MULTILINE)
    assert anchor is not None
    anchors = [re.sub(r"[^a-z0-9 -]", "", name.lower()).replace(" ", "-") for name in headings("notifications.md")]
    assert anchor[1] in anchors


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


def test_no_page_links_to_nowhere():
    missing = [
        f"{page.name}: {target}"
        for page in [*DOCS.glob("**/*.md"), DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md"]
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert missing == []
