"""/openapi.json describes every route, and every field of every response."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path

import msgspec
import pytest
import schemathesis
from jsonschema import Draft202012Validator

from memagent_server.http.api_route import operation_of
from memagent_server.schemas import alerts, base, predictions, runs, snapshots
from memagent_server.schemas.examples import EXAMPLES

HTTP_MD = Path(__file__).parents[2] / "docs" / "http.md"
SHAPES = {
    name: shape
    for module in (alerts, base, predictions, runs, snapshots)
    for name, shape in vars(module).items()
    if isinstance(shape, type) and issubclass(shape, base.Schema)
}
MAY_BE_LEFT_OUT = {"Problem": {"field", "request_id"}}


@pytest.fixture
def document(sqlite_client):
    response = sqlite_client.get("/openapi.json")
    assert response.status_code == 200
    return response.get_json()


def strict(document):
    """Return the document with schemas that require all their fields and forbid others."""
    whole = deepcopy(document)
    for name, schema in whole["components"]["schemas"].items():
        if name in SHAPES:
            schema["additionalProperties"] = False
            schema["required"] = sorted(
                schema["properties"].keys() - MAY_BE_LEFT_OUT.get(name, set())
            )
    return whole


def check(document, method, rule, answer):
    """Check a response against the document."""
    path = re.sub(r"<any\(([\w-]+)[^)]*\):\w+>", r"\1", rule.rule)
    described = document["paths"][re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", path)][method.lower()]
    of_status = described["responses"][str(answer.status_code)]
    if "$ref" in of_status:
        of_status = document["components"]["responses"][of_status["$ref"].rpartition("/")[2]]
    for header in of_status.get("headers", {}):
        assert header in answer.headers or header == "Link", (path, header)
    if "content" not in of_status:
        assert answer.data == b""
        return
    schema = of_status["content"][answer.mimetype]["schema"]
    if answer.mimetype.endswith("json"):
        result = msgspec.json.decode(answer.data)
        Draft202012Validator({**schema, "components": document["components"]}).validate(result)


def test_the_document_is_valid_openapi(document):
    schemathesis.openapi.from_dict(document).validate()
    assert document["openapi"] == "3.1.0"
    names = [
        operation["operationId"]
        for path in document["paths"].values()
        for operation in path.values()
    ]
    assert len(names) == len(set(names)) and all(
        operation["summary"] for path in document["paths"].values() for operation in path.values()
    )


def test_every_route_is_documented_or_is_a_page(sqlite_app):
    """A route that is neither would be undocumented."""
    for rule in sqlite_app.url_map.iter_rules():
        if operation_of(sqlite_app.view_functions[rule.endpoint]) is not None:
            continue
        assert not rule.rule.startswith("/api"), rule
        if "GET" in rule.methods and not rule.arguments:
            response = sqlite_app.test_client().get(
                rule.rule, headers={"Accept": "text/html"}, follow_redirects=True
            )
            assert response.mimetype == "text/html", rule


def test_every_route_of_the_document_has_a_heading_in_the_reference(document):
    headings = {
        re.sub(r"\{\w+\}", "{}", line)
        for line in re.findall(r"^### (\w+ /\S+)$", HTTP_MD.read_text(), re.MULTILINE)
    }
    routes = {
        f"{method.upper()} {re.sub(r'{[^}]+}', '{}', path)}"
        for path, operations in document["paths"].items()
        for method in operations
    }
    assert routes == headings


def examples():
    """(heading, the shape that the words before name or None, JSON) of each example; tests/system/test_docs.py runs the first."""
    results = []
    for section in re.split(r"^(?=##)", HTTP_MD.read_text(), flags=re.MULTILINE):
        if section.startswith("## A run by hand"):
            continue
        for before, text in re.findall(r"(?s)(.*?)^```json\n(.*?)^```$", section, re.MULTILINE):
            named = re.search(r"`(\w+)`:\s*$", before)
            results.append(
                (section.partition("\n")[0].lstrip("# "), named[1] if named else None, text)
            )
    return results


@pytest.mark.parametrize(
    ("heading", "shape", "text"), [pytest.param(*one, id=one[1] or one[0]) for one in examples()]
)
def test_the_examples_of_the_reference_match_their_schemas(document, heading, shape, text):
    whole = strict(document)
    name = shape or ("Problem" if heading == "Errors" else None)
    if name is None:
        method, path = heading.split()
        described = {re.sub(r"{\w+}", "{}", path): what for path, what in whole["paths"].items()}
        responses = described[re.sub(r"{\w+}", "{}", path)][method.lower()]["responses"]
        schema = next(
            responses[status]["content"]["application/json"]["schema"]
            for status in ("200", "201")
            if status in responses
        )
    else:
        schema = {"$ref": f"#/components/schemas/{name}"}
    Draft202012Validator({**schema, "components": whole["components"]}).validate(json.loads(text))


def test_every_response_matches_its_schema(sqlite_app, document, fill, token_of, routes, ask):
    whole, of = strict(document), fill("k", "vision", "marker")
    fill("seen-too", "vision", "too")
    token, checked = token_of("admin"), 0
    for name, method, rule in sorted(
        routes, key=lambda route: (route[1] == "DELETE", route[0] == "post_finish")
    ):
        if operation_of(sqlite_app.view_functions[rule.endpoint]) is None:
            continue
        for bearer in (token, None):  # without a token it is a problem, which is described, too
            check(whole, method, rule, ask(bearer, name, method, rule, of))
            checked += 1
    assert checked >= 60


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_public_routes_are_documented(sqlite_app, sqlite_client, document, path):
    assert document["paths"][path]["get"]["security"] == []
    (rule,) = (rule for rule in sqlite_app.url_map.iter_rules() if rule.rule == path)
    check(strict(document), "GET", rule, sqlite_client.get(path))


def test_the_document_is_public_and_holds_no_secret(sqlite_client, sqlite_app, token_of):
    before = sqlite_client.get("/openapi.json").data
    token = token_of("admin", "vision")
    response = sqlite_client.get("/openapi.json")
    assert (response.status_code, response.data) == (200, before)
    assert (
        token not in response.text
        and sqlite_app.secret_key not in response.text
        and "vision-" not in response.text
    )


def test_every_example_matches_its_schema(document):
    schemas = document["components"]["schemas"]
    for name, example in EXAMPLES.items():
        schema = {**schemas[name], "components": document["components"]}
        Draft202012Validator(schema).validate(example)


def test_example_bodies_are_accepted(sqlite_client, fill):
    of, run = fill("r", "vision", "marker"), EXAMPLES["RunStart"]["run_id"]
    for path, name in (
        ("/runs", "RunStart"),
        (f"/runs/{run}/batches", "Batch"),
        (f"/runs/{run}/predictions", "PredictionMessage"),
        (f"/runs/{run}/snapshots", "SnapshotMessage"),
        (f"/runs/{run}/finish", "Finish"),
        ("/estimate", "EstimateBody"),
        (f"/alerts/{of.alert_id}/ack", "AlertAction"),
    ):
        response = sqlite_client.post(f"/api/v1{path}", json=EXAMPLES[name])
        assert response.status_code in (200, 201), (name, response.text)
    assert sqlite_client.put("/api/v1/rules", json=EXAMPLES["RuleChanges"]).status_code == 200
    columns = EXAMPLES["ColumnRuleChanges"]
    assert sqlite_client.put("/api/v1/column-rules", json=columns).status_code == 200
    routes = EXAMPLES["RouteChanges"]
    assert sqlite_client.put("/api/v1/routes", json=routes).status_code == 200


def test_the_document_names_the_required_scopes(document):
    demanded = {
        "/api/v1/runs": {"post": "ingest", "get": "read"},
        "/api/v1/runs/{run_id}": {"delete": "admin"},
        "/api/v1/alerts/{alert_id}/snooze": {"post": "read"},
    }
    for path, methods in demanded.items():
        for method, scope in methods.items():
            assert document["paths"][path][method]["security"] == [
                {"token": [scope]},
                {"session": [scope]},
            ]
