"""Schemathesis reads /openapi.json and tries to prove it wrong, with all of its checks, on the real application.

What a schema cannot say is said here, and nothing else is let pass:

1. A cursor is what a page gave, and a snapshot's viewer a page that was packed by zlib. Any other text is refused, so valid requests go
   without (test_http_lists.py follows real cursors, test_routes_snapshots.py uploads real pages). The same for the text of a filter
   (tests/server/store/test_run_filter.py).
2. A batch's columns are of one length and its steps ascend; the fields of an estimate, or of a rule about a column, must not
   contradict each other: 422 is then right.
3. A body that is invalid may also be too large: 413.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections import defaultdict

import msgspec
import pytest
import schemathesis
import werkzeug
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema
from schemathesis.python import wsgi

from memagent_server.app import create_app

PHASES = ("examples", "coverage", "fuzzing", "stateful")
TOKEN = "a token for tests only"
REJECTED = [
    "400",
    "401",
    "403",
    "404",
    "405",
    "406",
    "408",
    "409",
    "413",
    "415",
    "422",
    "428",
    "429",
    "5xx",
]
ACCEPTED = ["2xx", "3xx", "401", "403", "404", "409", "422", "429", "5xx"]
SAYS_MORE_THAN_ITS_SCHEMA = [
    "POST /api/v1/estimate",
    "POST /api/v1/runs/{run_id}/batches",
    "PUT /api/v1/column-rules",
    "PUT /api/v1/routes",
    "PUT /api/v1/schedules",
    "POST /api/v1/routes/preview",
    "GET /api/v1/groups",
    "PUT /api/v1/views",
]


class Client(werkzeug.Client):
    """Comes from another address each time, for who shows wrong tokens is soon not heard any more. The check `ignored_auth` hands it
    what only connections have."""

    addresses = itertools.count(1)

    def open(self, *arguments, max_redirects=None, verify=None, cert=None, **options):
        address = str(ipaddress.IPv4Address(next(self.addresses) << 8))
        return super().open(*arguments, environ_overrides={"REMOTE_ADDR": address}, **options)


@schemathesis.serializer("application/msgpack")
def _pack(_context, value):
    return msgspec.msgpack.encode(_packable(value))


def _packable(value):
    """Msgpack has no integers of more than 64 bits."""
    if isinstance(value, dict):
        return {key: _packable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_packable(item) for item in value]
    is_too_long = isinstance(value, int) and not -(2**63) <= value < 2**64
    return float(value) if is_too_long and abs(value) < 2**1000 else 0.5 if is_too_long else value


@pytest.fixture
def failures(sqlite_database, make_settings, fill, monkeypatch):
    """failures(phases, max_examples): {what went wrong: how to see it}, and how many requests were made."""
    monkeypatch.setattr(wsgi, "get_client", Client)
    fill("k3v9", "vision", "marker")
    app = create_app(make_settings(sqlite_database.url, admin_token=TOKEN), sqlite_database)

    def run(phases, max_examples):
        config = SchemathesisConfig.from_dict(
            {
                "seed": 20260101,
                "continue-on-failure": True,
                # over WSGI nothing unpacks what was packed on the way
                "headers": {"Authorization": f"Bearer {TOKEN}", "Accept-Encoding": "identity"},
                "generation": {"max-examples": max_examples, "database": "none"},
                "phases": {phase: {"enabled": phase in phases} for phase in PHASES},
                "checks": {"negative_data_rejection": {"expected-statuses": REJECTED}},
                "operations": [
                    {
                        "include-name": SAYS_MORE_THAN_ITS_SCHEMA,
                        "checks": {"positive_data_acceptance": {"expected-statuses": ACCEPTED}},
                    }
                ],
            }
        )
        schema = schemathesis.openapi.from_wsgi("/openapi.json", app, config=config)
        result, requests = defaultdict(list), 0
        for event in from_schema(schema).execute():
            if isinstance(event, events.NonFatalError | events.FatalError):
                result[repr(getattr(event, "value", None) or event.exception)].append(
                    "an error of the run itself"
                )
            elif isinstance(event, events.ScenarioFinished):
                requests += len(event.recorder.interactions)
                for text, how in _failed(event.recorder):
                    result[text].append(how)
        return {text: hows[0] for text, hows in result.items()}, requests

    return run


@schemathesis.hook
def before_call(context, case, kwargs):
    """Omit parameters that only a page or a packer can create (1) from valid requests."""
    if case.meta is not None and case.meta.generation.mode.is_positive:
        queries = ((case.query, name) for name in ("cursor", "where", "sort", "columns"))
        for place, name in (*queries, (case.body, "viewer")):
            if isinstance(place, dict):
                place.pop(name, None)


def _failed(recorder):
    for case_id, checks in recorder.checks.items():
        for check in checks:
            if check.failure_info is not None:
                label = recorder.cases[case_id].value.operation.label
                response = recorder.interactions[case_id].response
                how = f"{check.failure_info.failure.message}\n{check.failure_info.code_sample}\n{response and response.content}"
                yield f"{check.name}: {label}: {check.failure_info.failure.title}", how


def test_a_short_schemathesis_run_reports_no_failure(failures):
    result, requests = failures(("examples", "fuzzing", "stateful"), 1)
    assert not result, listing(result)
    assert requests > 100


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_long_schemathesis_run_reports_no_failure(failures):
    result, requests = failures(PHASES, 100)
    assert not result, listing(result)
    assert requests > 5_000


def listing(problems):
    return "\n\n".join(f"{what}\n{how}" for what, how in problems.items())
