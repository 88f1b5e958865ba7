"""Plain batches are answered without Flask, as Flask would answer them; all others are Flask's."""

from __future__ import annotations

import gc
import io
import logging
import weakref

import pytest
from werkzeug.test import EnvironBuilder

from memagent.wire.codec import encode
from memagent.wire.columns import pack
from memagent.wire.messages import Batch, Chunk, Event
from memagent_server.app import create_app
from memagent_server.http import credentials
from memagent_server.http.asgi import MAX_SENT_BYTES
from memagent_server.observability import self_metrics
from memagent_server.store import tokens

PATH = "/api/v1/runs/r/batches"
MSGPACK = "application/msgpack"
FOR_FLASK = {"Accept": "application/json, */*;q=0.1"}
"""Accepts the same, but is no plain header."""


def body(seq, step=0, **fields):
    chunk = Chunk(stream="GPU-1", packed=pack({"step": [step], "allocated_bytes": [5]}))
    return encode(Batch(seq=seq, chunks=[chunk], **fields))


class Agent:
    """A client with a new token. `flask_paths` has the requests that reached Flask."""

    def __init__(self, app, scope="ingest", **limits):
        self.app = app
        self.context = app.extensions["memagent"]
        with self.context.database.write() as session:
            self.secret, row = credentials.issue_token(
                session, self.context.settings, name="a", scope=scope, now=1.0, **limits
            )
            self.token_id = row.id
        self.flask_paths = []
        app.before_request_funcs.setdefault(None, []).insert(0, self._note)

    def _note(self):
        from flask import request

        self.flask_paths.append(request.path)

    def post(self, data, path=PATH, headers=(), **options):
        """Post, and return the response and whether Flask made it."""
        self.flask_paths.clear()
        headers = {"Authorization": f"Bearer {self.secret}", **dict(headers)}
        options = {"content_type": MSGPACK, **options}
        response = self.app.test_client().post(path, data=data, headers=headers, **options)
        return response, bool(self.flask_paths)


@pytest.fixture
def agent(app):
    agent = Agent(app)
    headers = {"Authorization": f"Bearer {agent.secret}"}
    app.test_client().post("/api/v1/runs", json={"run_id": "r"}, headers=headers)
    return agent


@pytest.fixture
def sqlite_agent(sqlite_app):
    agent = Agent(sqlite_app)
    headers = {"Authorization": f"Bearer {agent.secret}"}
    sqlite_app.test_client().post("/api/v1/runs", json={"run_id": "r"}, headers=headers)
    return agent


def test_a_plain_batch_is_answered_as_flask_answers_it(agent):
    direct, is_flask = agent.post(body(0), headers={"X-Request-ID": "mine"})
    assert (direct.status_code, is_flask) == (200, False)
    again, is_flask = agent.post(body(0), headers={**FOR_FLASK, "X-Request-ID": "mine"})
    assert (again.status_code, is_flask) == (200, True)
    assert direct.get_json() == again.get_json()
    assert dict(direct.headers) == dict(again.headers)
    assert direct.headers["X-Request-ID"] == "mine"
    assert agent.post(body(1))[0].headers["X-Request-ID"] != "mine"


def test_a_plain_batch_is_counted(sqlite_agent):
    metrics = sqlite_agent.app.extensions[self_metrics.EXTENSION]

    def counts():
        labels = {"method": "POST", "route": "/api/v1/runs/<run_id>/batches", "status": "200"}
        requests = metrics.registry.get_sample_value("memagent_http_requests_total", labels)
        return requests or 0, metrics.registry.get_sample_value("memagent_batch_bytes_sum")

    assert counts() == (0, 0)
    message = body(0)
    assert not sqlite_agent.post(message)[1]
    assert counts() == (1, len(message))


def test_a_repeat_is_stored_once_and_other_content_refused(agent):
    replies = [agent.post(body(0)) for _ in range(2)]
    assert [(reply.get_json()["accepted"], flask) for reply, flask in replies] == [(1, False)] * 2
    conflict, is_flask = agent.post(body(0, step=7))
    assert (conflict.status_code, is_flask) == (409, True)
    headers = {"Authorization": f"Bearer {Agent(agent.app, 'read').secret}"}
    exported = agent.app.test_client().get("/api/v1/runs/r/export", headers=headers).text
    assert len(exported.splitlines()) == 2


@pytest.mark.parametrize(
    ("data", "path", "status"),
    [
        (body(0), "/api/v1/runs/none/batches", 404),
        (b"\xc1", PATH, 400),
        (b"", PATH, 400),
        (encode(Batch(seq=0, chunks=[Chunk(stream="GPU-1", packed=b"MA")])), PATH, 422),
        (body(0, events=[Event(kind="oom", data={"a": "x" * 2**21})]), PATH, 422),
    ],
)
def test_an_error_is_flasks(sqlite_agent, data, path, status):
    response, is_flask = sqlite_agent.post(data, path)
    assert (response.status_code, response.mimetype, is_flask) == (
        status,
        "application/problem+json",
        True,
    )
    described = sqlite_agent.post(data, path, headers=FOR_FLASK)[0].get_json(force=True)
    named = ("title", "detail", "field")
    assert [response.get_json(force=True).get(name) for name in named] == [
        described.get(name) for name in named
    ]


def test_a_refused_body_is_freed_at_once(sqlite_agent):
    class Body(io.BytesIO):
        """Can be referred to weakly."""

    assert sqlite_agent.post(body(0))[0].status_code == 200  # imports and caches
    stream = Body(b"\xc1" * 10)
    freed = weakref.ref(stream)
    gc.disable()
    try:
        options = {"input_stream": stream, "content_length": 10, "content_type": MSGPACK}
        headers = {"Authorization": f"Bearer {sqlite_agent.secret}"}
        environ = EnvironBuilder(PATH, method="POST", headers=headers, **options).get_environ()
        del stream, options
        assert [*sqlite_agent.app.wsgi_app(environ, lambda *_: None)]
        del environ
        assert freed() is None
    finally:
        gc.enable()


def test_an_incomplete_body_is_408(sqlite_agent):
    length = {"CONTENT_LENGTH": str(len(body(0)) + 1)}
    response, is_flask = sqlite_agent.post(body(0), environ_overrides=length)
    assert (response.status_code, is_flask) == (408, True)


@pytest.mark.parametrize(
    "options",
    [
        {"content_type": "application/json"},
        {"headers": FOR_FLASK},
        {"query_string": "a=b"},
        {"headers": {"Authorization": "Bearer wrong"}},
        {"headers": {"Authorization": "Basic eA=="}},
        {"headers": {"Transfer-Encoding": "chunked"}},
        {"path": "/api/v1/runs/r%20/batches"},
        {"path": "/api/v1/runs/r/finish"},
        {"environ_overrides": {"CONTENT_LENGTH": str(MAX_SENT_BYTES + 1)}},
        {"environ_overrides": {"CONTENT_LENGTH": "-1"}},
    ],
)
def test_any_other_head_is_flasks(sqlite_agent, options):
    assert sqlite_agent.post(body(0), **options)[1]


def test_a_revoked_token_is_refused_at_once(agent):
    assert agent.post(body(0))[0].status_code == 200
    with agent.context.database.write() as session:
        tokens.revoke_token(session, agent.token_id, now=2.0)
    response, is_flask = agent.post(body(1))
    assert (response.status_code, is_flask) == (401, True)


def test_a_token_of_another_scope_or_of_some_projects_is_flasks(sqlite_agent):
    reader = Agent(sqlite_agent.app, "read")
    limited = Agent(sqlite_agent.app, projects=["elsewhere"])
    for _ in range(2):
        assert (reader.post(body(0))[0].status_code, *reader.flask_paths) == (403, PATH)
        assert (limited.post(body(0))[0].status_code, *limited.flask_paths) == (404, PATH)


def test_the_use_of_a_token_is_recorded(sqlite_agent):
    database, token_id = sqlite_agent.context.database, sqlite_agent.token_id
    with database.write() as session:
        tokens.mark_used(session, token_id, 1.0)
    assert [sqlite_agent.post(body(seq))[1] for seq in range(2)] == [True, False]
    with database.read() as session:
        assert tokens.list_tokens(session)[0].last_used_at > 1.0


def test_a_log_of_every_request_needs_flask(sqlite_agent, caplog):
    with caplog.at_level(logging.DEBUG, logger="memagent.access"):
        assert sqlite_agent.post(body(0))[1]
    assert [record.getMessage() for record in caplog.records] == [f"POST {PATH}"]


def test_quotas_count_every_batch(sqlite_database, make_settings):
    app = create_app(make_settings(sqlite_database.url, quota_requests=1000.0), sqlite_database)
    agent = Agent(app)
    assert [agent.post(body(0), "/api/v1/runs/none/batches")[1] for _ in range(2)] == [True, True]
