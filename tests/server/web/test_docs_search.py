"""The search of the manual."""

from __future__ import annotations

import re
from html import unescape

import pytest

from memagent_server.files import resource_dir
from memagent_server.web.docs_search import (
    MAX_RESULTS,
    Section,
    corrected,
    search,
    sections_of,
    vocabulary_of,
)

PAGE = """# Colours

Which colours there are.

## Red

A `warm` colour, like [orange](orange.md).

```sh
## not a heading
```

| name | wave |
| --- | --- |
| red | long |

## Blue

A cold colour.
"""
SECTIONS = tuple(sections_of("colours", PAGE))


def headings_of(query):
    return [result.section.heading for result in search(SECTIONS, query)]


def test_1_a_section_is_a_heading_with_its_text_without_markup():
    assert [section.heading for section in SECTIONS] == ["Colours", "Red", "Blue"]
    assert SECTIONS[1] == Section(
        "colours",
        "Colours",
        "Red",
        "A warm colour, like orange. ## not a heading name wave red long",
    )


@pytest.mark.parametrize(
    ("query", "headings"),
    [
        ("warm orange", ["Red"]),
        ("WARM", ["Red"]),
        ("warm cold", []),
        ("colours cold", ["Blue"]),
        ("", []),
        ("   ", []),
        (r".*[a](b)\ ", []),
    ],
)
def test_2_every_word_must_occur(query, headings):
    assert headings_of(query) == headings


def test_3_headings_count_more_than_text():
    assert headings_of("red")[0] == "Red"
    many = Section("other", "Other", "Other", "blue " * 50)
    assert search((many, *SECTIONS), "blue")[0].section.heading == "Blue"


def test_3_a_phrase_counts_more_than_its_words():
    apart = Section("a", "A", "A", "memory out of out memory of memory")
    phrase = Section("b", "B", "B", "It ran out of memory.")
    assert search((apart, phrase), "out of memory")[0].section == phrase


def test_3_a_guide_comes_before_the_reference_of_its_route():
    route = Section("http", "HTTP", "POST /api/v1/alerts/{id}/snooze", "Mutes it: snooze.")
    guide = Section("alerts", "Alerts", "Incidents", "Snooze mutes it. Then a snooze ends.")
    assert [result.section for result in search((route, guide), "snooze")] == [guide, route]


def test_3_a_decision_about_memagent_itself_comes_last():
    guide = Section("leaks", "Leaks", "Growth", "A red list.")
    decision = Section("adr/0001-red", "Red", "Red", "Red, red, red.")
    assert [result.section.page for result in search([decision, guide], "why does red")] == [
        "leaks",
        "adr/0001-red",
    ]


def test_4_a_misspelled_word_is_replaced_by_the_nearest():
    assert corrected(vocabulary_of(SECTIONS), "Colour wrm") == "colour warm"
    assert corrected(vocabulary_of(SECTIONS), "colou xyzzy") == "colou xyzzy"


def test_4_a_misspelled_query_finds_what_was_meant(sqlite_client):
    page = sqlite_client.get("/docs", query_string={"q": "slack webhok"}).text
    assert ">slack webhook</a>:" in page and 'class="search-results"' in page


def test_it_marks_the_words_in_the_snippet():
    (result,) = search(SECTIONS, "warm")
    assert ("warm", True) in result.snippet
    assert "".join(text for text, _ in result.snippet) == SECTIONS[1].text


def test_it_cuts_a_long_text_around_the_first_match():
    text = f"{'before ' * 100}needle {'after ' * 100}"
    (result,) = search((Section("p", "P", "H", text),), "needle")
    snippet = "".join(part for part, _ in result.snippet)
    assert "needle" in snippet and len(snippet) < 200


def test_it_limits_the_number_of_results():
    assert len(search(SECTIONS * 50, "colour")) == MAX_RESULTS


def test_it_is_at_docs_and_leads_to_the_sections(sqlite_client):
    page = sqlite_client.get("/docs?q=frozen+memagent_step").text
    assert "No section contains" in page
    page = sqlite_client.get("/docs?q=oom_forecast").text
    assert "<mark>oom_forecast</mark>" in page and 'href="/runbooks#oom_forecast"' in page
    assert 'value="oom_forecast"' in page


def test_every_result_leads_to_a_section_that_exists(sqlite_client):
    for query in ("memory", "batch size", "Slack"):
        page = sqlite_client.get("/docs", query_string={"q": query}).text
        addresses = re.findall(r'class="strong" href="([^"]+)"', page)
        assert addresses
        for address in map(unescape, addresses):
            path, _, anchor = address.partition("#")
            assert not anchor or f'id="{anchor}"' in sqlite_client.get(path).text, address


def test_a_query_is_text(sqlite_client):
    page = sqlite_client.get("/docs", query_string={"q": "<script>alert(1)</script>"}).text
    assert "<script>alert" not in page and "&lt;script&gt;" in page


def test_an_empty_query_shows_the_contents(sqlite_client):
    assert sqlite_client.get("/docs?q=").text.count("<h1>Manual</h1>") == 1


def test_every_page_has_the_search(sqlite_client):
    for path in ("/docs", "/runbooks", "/docs/cli"):
        assert 'aria-label="Search the manual"' in sqlite_client.get(path).text


def test_images_of_the_manual_are_served(sqlite_client):
    name = next((resource_dir("docs") / "images").glob("*.png")).name
    response = sqlite_client.get(f"/docs/images/{name}", buffered=True)
    assert (response.status_code, response.mimetype) == (200, "image/png")


def test_2_words_match_where_a_word_begins_and_fillers_are_left_out():
    sections = [
        Section("p", "Pages", "Share a run", "A link shows a run to anybody."),
        Section("q", "Other", "Other", "Uplink, shareholders, a heap of data."),
    ]
    assert [result.section.page for result in search(sections, "share a link")] == ["p"]
    (result,) = search(sections, "how to link")
    assert [text for text, is_match in result.snippet if is_match] == ["link"]
    assert len(search(sections, "a")) == 2, "nothing but fillers"
    code = Section("r", "Code", "Workers", "A DataLoader and torch.BatchNorm1d of MEMAGENT_DIR.")
    for word in ("loader", "norm", "batchnorm1d", "dir", "torch"):
        (result,) = search([code], word)
        assert [text.lower() for text, is_match in result.snippet if is_match] == [word]
    assert not search([code], "oader")
