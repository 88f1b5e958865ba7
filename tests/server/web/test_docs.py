"""The manual that the server serves: every page, every link on it, and nothing that is not a
page.
"""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import urljoin

import pytest

from memagent_server.alerts.rules import RULES
from memagent_server.files import resource_dir
from memagent_server.web.markdown import anchor_of, render

PAGES = [
    path.relative_to(resource_dir("docs")).with_suffix("").as_posix()
    for path in resource_dir("docs").rglob("*.md")
]


def nowhere(href):
    return None


def test_every_link_of_every_page_works(sqlite_client):
    pages = {f"/docs/{name}": sqlite_client.get(f"/docs/{name}").text for name in PAGES}
    pages |= {path: sqlite_client.get(path).text for path in ("/docs", "/runbooks")}
    anchors = {path: set(re.findall(r' id="([^"]+)"', text)) for path, text in pages.items()}
    wrong = []
    for path, text in pages.items():
        assert text.count("<h1>") == 1, path
        article = text.partition("<article")[2]
        for href in map(unescape, re.findall(r'href="([^"]*)"', article)):
            page, _, anchor = urljoin(path, href).partition("#")
            if not href.startswith("http") and (
                page not in pages or (anchor and anchor not in anchors[page])
            ):
                wrong.append((path, href))
    assert wrong == []


def test_every_rule_has_a_runbook(sqlite_client):
    page = sqlite_client.get("/runbooks").text
    assert [rule for rule in RULES if f'<h2 id="{rule}">' not in page] == []


@pytest.mark.parametrize(
    "name",
    [
        "nothing",
        "../pyproject",
        "..%2fREADME",
        "adr/../../README",
        "images/nothing.png",
        "images/..%2findex.md",
        "images/run.svg",
        "adr",
        "a" * 300,
        f"adr/{'a' * 300}",
        f"images/{'a' * 300}.png",
    ],
)
def test_other_files_are_not_served(sqlite_client, name):
    assert sqlite_client.get(f"/docs/{name}").status_code == 404


def test_markup_in_the_text_is_text():
    document = render(
        "# A <b>title</b>\n\n<script>alert(1)</script> and `<i>`\n\n```html\n<p>\n```\n", nowhere
    )
    assert (
        "<script>" not in document.html
        and "<i>" not in document.html
        and "<p>\n<" not in document.html
    )
    assert document.title == "A <b>title</b>", "escaped by the template"


def test_it_has_no_style_that_the_policy_forbids_and_aligns_by_class():
    html = render("| a | b |\n| --- | --: |\n| 1 | 2 |\n", nowhere).html
    assert "style=" not in html and html.count('class="number"') == 2


def test_tables_and_code_can_be_scrolled_by_keyboard():
    html = render("|  | b |\n| --- | --- |\n| 1 | 2 |\n\n```sh\nmemagent & co\n```\n", nowhere).html
    assert html.count('tabindex="0"') == 2 and "memagent &amp; co" in html
    assert html.count("<th>") == 1, "an empty cell heads nothing"


def test_a_link_to_a_repository_file_becomes_text():
    html = render(
        "See [the unit](../deploy/x.service) and [metrics](metrics.md).",
        lambda href: {"metrics.md": "/m"}.get(href),
    ).html
    assert html == '<p>See the unit and <a href="/m">metrics</a>.</p>\n'


def test_anchors_are_those_of_github():
    assert anchor_of("PUT /api/v1/rules") == "put-apiv1rules"
    assert anchor_of("oom_forecast") == "oom_forecast"
    assert anchor_of("Slack, incoming webhook") == "slack-incoming-webhook"


def test_each_page_lists_all_pages_and_names_itself(sqlite_client):
    html = sqlite_client.get("/docs/forecast").get_data(as_text=True)
    for name, title in (("quickstart", "Quick start"), ("adr/index", "Architecture decisions")):
        assert f'<a href="/docs/{name}">{title}</a>' in html
    assert '<a href="/docs/forecast" aria-current="page">Forecast</a>' in html
    assert "Manual</a> / Forecast</p>" in html
