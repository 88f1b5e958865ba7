"""Logging in with an OpenID Connect provider: a real one, and one that stalls and lies."""

from __future__ import annotations

import re
import socket
from concurrent.futures import ThreadPoolExecutor
from http.cookies import SimpleCookie
from urllib.parse import urlsplit

import pytest
from joserfc.jwk import RSAKey

from memagent_server.app import create_app
from memagent_server.settings.oidc import read_oidc
from memagent_server.store.changes import list_changes
from memagent_server.store.people import list_people
from tests.server.oidc_providers import (
    CLIENT_SECRET,
    GROUPS,
    LyingProvider,
    callback,
    choose_person,
    real_provider,
)

HTML = {"Accept": "text/html"}
DISCOVERY = "/.well-known/openid-configuration"


class Browser:
    """Cookies over the HTTP of a real server."""

    def __init__(self, server):
        self.server = server
        self.cookies = {}

    def open(self, path, method="GET", body=None, **headers):
        sent = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        answer = self.server.request(
            method, path, body, {"Accept": "text/html", "Cookie": sent, **headers}
        )
        for line in answer.headers.getlist("Set-Cookie"):
            for name, morsel in SimpleCookie(line).items():
                self.cookies[name] = morsel.value
                if morsel["max-age"] == "0":
                    del self.cookies[name]
        return answer

    def submit(self, page, path, **fields):
        token = re.search(r'name="form_token" value="(\w+)"', page.body.decode())[1]
        body = "&".join(
            f"{name}={value}" for name, value in {"form_token": token, **fields}.items()
        )
        return self.open(
            path, "POST", body.encode(), content_type="application/x-www-form-urlencoded"
        )

    def log_in(self, subject, target="/alerts?state=open"):
        begun = self.open(f"/login/oidc?next={target}")
        assert begun.status == 303, begun.body
        back = urlsplit(choose_person(begun.headers["Location"], subject))
        return self.open(f"{back.path}?{back.query}"), f"{back.path}?{back.query}"


@pytest.fixture(scope="module")
def issuer():
    with real_provider() as issuer:
        yield issuer


def test_people_log_in_with_a_real_provider_and_an_admin_ends_their_sessions(start_server, issuer):
    server = start_server(environ={"MEMAGENT_OIDC_ISSUER": issuer, **GROUPS})
    assert (
        f"Log in with {urlsplit(issuer).netloc}"
        in server.get("/login", Accept="text/html").body.decode()
    )

    ada, bob = Browser(server), Browser(server)
    answer, way_back = ada.log_in("ada")
    assert (answer.status, answer.headers["Location"]) == (303, "/alerts?state=open")
    assert ada.open("/alerts").status == 200
    copy = Browser(server)
    copy.cookies = {"memagent_oidc": "stolen"}
    assert copy.open(way_back).status == 400

    bob.log_in("bob")
    assert bob.open("/").status == 200
    refused = bob.open("/settings/people")
    assert refused.status == 403
    assert "You have scope &#39;read&#39;" in refused.body.decode()

    people = ada.open("/settings/people")
    text = people.body.decode()
    assert "Ada Lovelace" in text
    assert "Bob &lt;b&gt;" in text
    assert '<span class="tag">detector</span>' in text
    number = re.search(r'name="end" value="(\d+)">Confirm<[^>]+>: end the sessions of Bob', text)[1]
    assert "All sessions of Bob" in ada.submit(people, "/settings/people", end=number).body.decode()
    assert bob.open("/").status == 303
    assert ada.open("/").status == 200
    bob.log_in("bob")
    assert bob.open("/").status == 200

    kept = dict(ada.cookies)
    assert ada.submit(ada.open("/settings/people"), "/logout").status == 303
    ada.cookies = kept
    assert ada.open("/").status == 303

    code = re.search(r"code=([^&]+)", way_back)[1]
    assert code not in server.errors
    assert CLIENT_SECRET not in server.errors


def test_an_administrator_of_a_project_changes_its_runs_and_reads_the_others(start_server, issuer):
    secret = "mag_the-token-of-this-test"
    environ = {"MEMAGENT_OIDC_ISSUER": issuer, "MEMAGENT_ADMIN_TOKEN": secret, **GROUPS}
    server = start_server(environ=environ)
    for project in ("detector", "text"):
        body = {"run_id": project, "project": project}
        answer = server.post("/api/v1/runs", body, Authorization=f"Bearer {secret}")
        assert answer.status == 201
    cy = Browser(server)
    cy.log_in("cy")

    own, other = cy.open("/runs/detector"), cy.open("/runs/text")
    assert (b"Rename, or add notes" in own.body, b"Rename, or add notes" in other.body) == (
        True,
        False,
    )
    changed = cy.submit(own, "/runs/detector", name="best", notes="Cy's")
    assert (changed.status, b">best<" in cy.open("/runs/detector").body) == (303, True)
    refused = cy.submit(own, "/runs/text", name="worst", notes="")
    assert refused.status == 404
    assert "This request may use runs of detector only." in refused.body.decode()
    assert b"worst" not in cy.open("/runs/text").body

    lists = [cy.open(f"/?sort=name{project}") for project in ("&project=detector", "")]
    assert [b'id="view"' in page.body for page in lists] == [True, False]

    detector, every = cy.open("/settings?project=detector"), cy.open("/settings")
    assert (b"<fieldset disabled>" in detector.body, b"<fieldset disabled>" in every.body) == (
        False,
        True,
    )
    assert b"/settings/tokens" not in every.body
    assert cy.submit(own, "/settings", project="detector", what="reset").status == 303
    assert cy.submit(own, "/settings", project="text", what="reset").status == 403
    assert cy.submit(own, "/settings", what="reset").status == 403
    assert cy.open("/settings/tokens").status == 403
    assert cy.submit(own, "/settings/people", end="1").status == 403

    ada = Browser(server)
    ada.log_in("ada")
    people = ada.open("/settings/people").body.decode()
    assert 'read, admin of <span class="tag">detector</span>' in people


def test_a_person_without_a_known_group_gets_a_clear_page(start_server, issuer):
    server = start_server(environ={"MEMAGENT_OIDC_ISSUER": issuer, **GROUPS})
    eve = Browser(server)
    answer, _ = eve.log_in("eve")
    assert answer.status == 403
    assert "knows you as eve@example.org, but none of your groups" in answer.body.decode()
    assert eve.open("/").status == 303


@pytest.fixture
def lying():
    provider = LyingProvider()
    yield provider
    provider.close()


@pytest.fixture
def app(lying, sqlite_database, make_settings):
    oidc = read_oidc({"MEMAGENT_OIDC_ISSUER": lying.issuer, **GROUPS})
    return create_app(make_settings("sqlite://", oidc=oidc), sqlite_database)


@pytest.fixture
def client(app):
    return app.test_client()


def begin(client, lying, path="/login/oidc"):
    answer = client.get(path)
    assert answer.status_code == 303, answer.text
    return lying.begin(answer.headers["Location"])


def finish(client, lying, path="/login/oidc"):
    return client.get(callback(begin(client, lying, path)))


def test_it_logs_in_with_what_the_provider_says(client, lying):
    answer = finish(client, lying, "/login/oidc?next=/waste")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/waste")
    assert client.get("/settings/people", headers=HTML).status_code == 200


LIES = {
    "another nonce": {"nonce": "x"},
    "no nonce": {"nonce": None},
    "expired": {"exp": 1},
    "expires never": {"exp": float("inf")},
    "another audience": {"aud": "someone-else"},
    "another audience for us": {"aud": ["someone-else"], "azp": "memagent-test"},
    "another issuer": {"iss": "https://evil.example"},
    "issued in the future": {"iat": 4_000_000_000},
    "no subject": {"sub": None},
    "a subject that is a list": {"sub": ["ada"]},
    "a subject with NUL": {"sub": "a\0b"},
    "a subject without an end": {"sub": "a" * 100_000},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_wrong_claim_is_refused(client, lying, lie):
    lying.claims = LIES[lie]
    answer = finish(client, lying)
    assert answer.status_code == 502, answer.text
    assert "be accepted" in answer.text
    assert client.get("/", headers=HTML).status_code == 303


def test_a_wrong_signature_is_refused(client, lying):
    lying.signing_key = RSAKey.generate_key(2048, parameters={"kid": "one"})
    assert "(bad_signature)" in finish(client, lying).text
    lying.signing_key, lying.header = lying.key, {"alg": "none"}
    assert "(unsupported_algorithm)" in finish(client, lying).text
    lying.header = {"alg": "HS256", "kid": "one"}
    for shared_key in (lying.key.as_pem(private=False), CLIENT_SECRET.encode()):
        lying.shared_key = shared_key
        assert "(unsupported_algorithm)" in finish(client, lying).text
    lying.signing_key, lying.header = lying.key, {"alg": "RS256", "kid": "one"}
    assert finish(client, lying).status_code == 303


def test_a_new_key_of_the_provider_is_looked_up(client, lying):
    assert finish(client, lying).status_code == 303
    lying.key = lying.signing_key = RSAKey.generate_key(2048, parameters={"kid": "two"})
    lying.header = {"alg": "RS256", "kid": "two"}
    assert finish(client, lying).status_code == 303


def test_an_answer_is_for_the_browser_that_began_and_once(app, client, lying):
    state = begin(client, lying)
    assert app.test_client().get(callback(state)).status_code == 400
    cookie = client.get_cookie("memagent_oidc").value
    assert client.get(callback("x" + state[1:])).status_code == 400
    assert lying.tokens_asked == []
    client.set_cookie("memagent_oidc", cookie)
    assert client.head(callback(state)).status_code == 204
    assert client.get(callback(state)).status_code == 303
    client.set_cookie("memagent_oidc", cookie)
    assert client.get(callback(state)).status_code == 400
    assert len(lying.tokens_asked) == 1


@pytest.mark.parametrize(
    "target", ["//evil.example", "https://evil.example", "/\\evil.example", "/\nx"]
)
def test_a_login_with_a_provider_never_leads_to_another_site(client, lying, target):
    state = begin(client, lying, f"/login/oidc?next={target.replace(chr(10), '%0A')}")
    assert client.get(callback(state)).headers["Location"] == "/"


def test_another_site_can_not_begin_a_login(client, lying):
    answer = client.get("/login/oidc", headers={"Sec-Fetch-Site": "cross-site"})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/login")


def test_an_answer_of_another_provider_or_without_a_code_is_refused(client, lying):
    path = callback(begin(client, lying)) + "&iss=https://evil.example"
    assert "another provider" in client.get(path).text
    assert client.get(callback(begin(client, lying)) + "&error=%3Cb%3E").status_code == 403
    assert client.get(callback(begin(client, lying), code="x" * 5_000)).status_code == 403
    assert lying.tokens_asked == []


BOMBS = {
    "10 MB": b'{"a": "' + b"x" * 10_000_000 + b'"}',
    "nested": b"[" * 100_000,
    "no JSON": b"<html>",
    "a list": b"[]",
    "nothing": b"",
    "an integer of a million digits": b'{"id_token": ' + b"9" * 200_000 + b"}",
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("path", [DISCOVERY, "/token", "/keys"])
def test_a_bomb_of_the_provider_is_refused(client, lying, path, bomb):
    lying.bodies[path] = BOMBS[bomb]
    answer = client.get("/login/oidc")
    if path != DISCOVERY:
        answer = client.get(callback(lying.begin(answer.headers["Location"])))
    assert answer.status_code == 502
    assert "Log in with 127.0.0.1" in answer.text


def test_a_provider_with_another_issuer_or_an_endpoint_elsewhere_is_refused(lying, client):
    lying.metadata = {"issuer": "https://evil.example"}
    assert "names another issuer" in client.get("/login/oidc").text


@pytest.mark.parametrize("address", ["http://evil.example/token", None, 5, "http://[", "file:///x"])
def test_an_endpoint_in_clear_text_is_refused(lying, client, address):
    lying.metadata = {"token_endpoint": address}
    assert "no token_endpoint with an https:// address" in client.get("/login/oidc").text


def test_a_provider_that_is_down_gives_a_clear_page(lying, client):
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = f"http://127.0.0.1:{free.getsockname()[1]}/token"
    lying.metadata = {"token_endpoint": closed}
    answer = finish(client, lying)
    assert answer.status_code == 502
    assert "could not be reached: connection refused" in answer.text


def test_a_provider_that_stalls_does_not_hold_the_pages(lying, start_server):
    server = start_server(environ={"MEMAGENT_OIDC_ISSUER": lying.issuer, **GROUPS})
    lying.stalls = {DISCOVERY}
    with ThreadPoolExecutor(40) as pool:
        logins = [pool.submit(server.get, "/login/oidc", Accept="text/html") for _ in range(40)]
        assert lying.arrived.wait(60)
        assert server.get("/login", Accept="text/html").status == 200
        answers = [login.result() for login in logins]
    assert {answer.status for answer in answers} == {502}
    texts = "".join(answer.body.decode() for answer in answers)
    assert "no complete answer within 5 s" in texts or "no answer within" in texts


def test_groups_can_come_from_the_user_info_of_the_same_person(lying, client):
    lying.claims = {"groups": None}
    lying.metadata = {"userinfo_endpoint": f"{lying.issuer}/userinfo"}
    lying.user_info = {"sub": "ada", "groups": ["ops"]}
    assert finish(client, lying).status_code == 303
    lying.user_info = {"sub": "eve", "groups": ["ops"]}
    assert "another person" in finish(client, lying).text


def test_who_lost_all_groups_is_logged_out(app, client, lying):
    assert finish(client, lying).status_code == 303
    lying.claims = {"groups": ["guests"]}
    assert finish(app.test_client(), lying).status_code == 403
    assert client.get("/", headers=HTML).status_code == 303
    with app.extensions["memagent"].database.read() as session:
        logged = [(one.name, one.route, one.status) for one in list_changes(session, limit=9)]
    route = "/login/oidc/callback"
    assert logged == [("Ada Lovelace", route, 403), ("Ada Lovelace", route, 303)]


@pytest.mark.parametrize("groups", [None, {}, 5, [["ops"]], ["o"] * 200_000, [{"a": "ops"}]])
def test_groups_of_any_form_give_no_more_than_they_say(client, lying, groups):
    lying.claims = {"groups": groups}
    assert finish(client, lying).status_code in (403, 502)


def test_names_of_any_form_are_stored_short_and_printable(app, client, lying):
    lying.claims = {"name": "A\0\n\ud800" + "x" * 10_000, "email": ["ada"]}
    assert finish(client, lying).status_code == 303
    with app.extensions["memagent"].database.read() as session:
        people, _ = list_people(session)
    assert [(len(one.name), one.name[:3], one.email) for one in people] == [(200, "Axx", None)]


def test_a_change_names_the_person(app, client, lying):
    assert finish(client, lying).status_code == 303
    rules = {"rules": {"Loss": {"column": "loss", "test": "above"}}}
    answer = client.put("/api/v1/column-rules?project=p", json=rules)
    assert answer.status_code == 200, answer.text
    assert "Ada Lovelace" in client.get("/api/v1/column-rules?project=p").text


def test_a_session_of_a_person_ends_after_twelve_hours(lying, sqlite_database, make_settings):
    at = [1_800_000_000.0]
    oidc = read_oidc({"MEMAGENT_OIDC_ISSUER": lying.issuer, **GROUPS})
    app = create_app(make_settings("sqlite://", oidc=oidc), sqlite_database, clock=lambda: at[0])
    client = app.test_client()
    lying.claims = {"iat": int(at[0]), "exp": int(at[0]) + 60}
    assert finish(client, lying).status_code == 303
    at[0] += 12 * 3600 - 10
    assert client.get("/", headers=HTML).status_code == 200
    at[0] += 20
    assert client.get("/", headers=HTML).status_code == 303


def test_a_person_of_another_provider_stays_out(lying, client, app, sqlite_database, make_settings):
    assert finish(client, lying).status_code == 303
    cookie = client.get_cookie("memagent_session").value
    for issuer in (None, "https://other.example"):
        oidc = read_oidc({"MEMAGENT_OIDC_ISSUER": issuer, **GROUPS}) if issuer else None
        settings = make_settings("sqlite://", oidc=oidc, admin_token="x" * 20)
        other = create_app(settings, sqlite_database).test_client()
        other.set_cookie("memagent_session", cookie)
        assert other.get("/", headers=HTML).status_code == 303


def test_without_a_provider_there_is_no_login_with_one(sqlite_client):
    assert sqlite_client.get("/login/oidc").status_code == 404
    assert sqlite_client.get("/login/oidc/callback?code=x&state=x").status_code == 404


def test_a_server_with_a_provider_is_never_unprotected(client):
    assert client.get("/", headers=HTML).status_code == 303
    assert client.get("/api/v1/runs").status_code == 401
