"""The API and the page of rules about columns."""

from __future__ import annotations

import pytest

from memagent_server.web.api_column_rules import MAX_RULES

RULE = {"column": "loss", "test": "above", "value": 10.0, "for_s": 60.0, "level": "critical"}
PAGE = "/settings/columns"


def put(client, project="", **rules):
    query = {"project": project} if project else {}
    return client.put("/api/v1/column-rules", query_string=query, json={"rules": rules})


def names(client, project="") -> list[tuple[str, str]]:
    query = {"project": project} if project else {}
    answer = client.get("/api/v1/column-rules", query_string=query).get_json()
    return [(rule["project"], rule["name"]) for rule in answer["rules"]]


def test_a_rule_is_added_replaced_and_removed(sqlite_client):
    (rule,) = put(sqlite_client, **{"Loss diverges": RULE}).get_json()["rules"]
    assert {name: rule[name] for name in RULE} == RULE
    assert (
        put(sqlite_client, **{"Loss diverges": {**RULE, "value": 3}}).get_json()["rules"][0][
            "value"
        ]
        == 3
    )
    assert put(sqlite_client, **{"Loss diverges": None}).get_json()["rules"] == []


def test_a_project_has_its_own_and_those_of_every_project(sqlite_client):
    put(sqlite_client, a=RULE, b=RULE)
    put(sqlite_client, "nlp", b=RULE, c=RULE)
    assert names(sqlite_client, "nlp") == [("*", "a"), ("nlp", "b"), ("nlp", "c")]
    assert names(sqlite_client) == [("*", "a"), ("*", "b")]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"test": "sideways"}, "test"),
        ({"column": "1; DROP"}, "rules.x.column"),
        ({"column": "c" * 200}, "column"),
        ({"for_s": -1}, "for_s"),
        ({"for_s": 1e9}, "for_s"),
        ({"level": "fatal"}, "level"),
        ({"test": "spike", "value": 0}, "rules.x.value"),
        ({"test": "no_new_low", "value": 2}, "rules.x.value"),
        ({"test": "no_new_low", "value": 0, "for_s": 0}, "rules.x.for_s"),
        ({"other": 1}, "other"),
    ],
)
def test_an_invalid_rule_is_named_and_nothing_is_stored(sqlite_client, changes, named):
    response = put(sqlite_client, good=RULE, x={**RULE, **changes})
    assert response.status_code == 422 and named in response.text
    assert names(sqlite_client) == []


@pytest.mark.parametrize("name", ["", " ", "n" * 41, "a\nb", "\0"])
def test_an_invalid_name_is_refused(sqlite_client, name):
    assert put(sqlite_client, **{name: RULE}).status_code == 422


def test_a_project_has_a_maximum(sqlite_client):
    many = {f"rule {number}": RULE for number in range(MAX_RULES)}
    assert put(sqlite_client, **many).status_code == 200
    response = put(sqlite_client, one_more=RULE)
    assert response.status_code == 422 and f"at most {MAX_RULES}" in response.text


def test_the_page_adds_shows_and_removes(sqlite_client):
    form = {
        "project": "vision",
        "name": "<b>Loss</b>",
        **{name: str(of) for name, of in RULE.items()},
    }
    assert sqlite_client.post(PAGE, data=form).headers["Location"] == f"{PAGE}?project=vision"
    html = sqlite_client.get(f"{PAGE}?project=vision").text
    assert "&lt;b&gt;Loss&lt;/b&gt;" in html and "above a value" in html and "60 s" in html
    sqlite_client.post(PAGE, data={"project": "vision", "remove": "<b>Loss</b>"})
    assert names(sqlite_client, "vision") == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"value": "much"}, "alue: &#39;much&#39; is not a number"),
        ({"test": "sideways"}, "est: Invalid enum value"),
        ({"name": ""}, "ame: use 1 to 40 characters"),
        ({"column": ""}, "column"),
        ({"value": "nan"}, "finite"),
    ],
)
def test_the_page_names_what_is_wrong(sqlite_client, changes, named):
    form = {"name": "x", **{name: str(of) for name, of in RULE.items()}, **changes}
    response = sqlite_client.post(PAGE, data=form, headers={"Accept": "text/html"})
    assert response.status_code == 422 and named in response.text
