"""A config.json from a server that answers as the hub does, and from some that lie, drip and bomb."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import zlib

import pytest

from memagent.errors import EstimateError
from memagent.estimator.hub import MAX_CONFIG_BYTES, hub_config
from tests.scripted_server import ScriptedServer, drip, read_request, response

constants = pytest.importorskip("huggingface_hub.constants")

CONFIG = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_layer": 2,
    "n_embd": 64,
    "n_head": 2,
    "n_positions": 128,
    "vocab_size": 512,
}
ANSWER = response(json.dumps(CONFIG).encode(), "Content-Type: application/json")
NAME = "someone/tiny-gpt2"
PATH = f"/{NAME}/resolve/main/config.json"
TIMEOUT_S = 0.5


@pytest.fixture
def requests(monkeypatch, tmp_path):
    """serve(script): a hub that follows the script; returns the requests that it got."""
    servers = []

    def serve(answer):
        received = []

        def script(connection):
            received.append(read_request(connection).decode())
            if callable(answer):
                answer(connection, received)
            else:
                connection.sendall(answer)

        servers.append(ScriptedServer(script))
        monkeypatch.setenv("HF_ENDPOINT", servers[-1].url)
        return received

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    yield serve
    for server in servers:
        server.close()


def redirect(location: str) -> bytes:
    head = f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
    return head.encode()


def refusal(status: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode()


def test_it_fetches_the_config_alone_with_the_users_token(requests):
    received = requests(ANSWER)
    assert hub_config(NAME) == CONFIG
    assert [line.split(" ")[:2] for line in received] == [["GET", PATH]]
    assert "Bearer hf_secret" in received[0]


def test_a_renamed_model_is_found_by_a_redirect(requests):
    def answer(connection, received):
        is_first = len(received) == 1
        connection.sendall(
            redirect("/openai/gpt2/resolve/main/config.json") if is_first else ANSWER
        )

    received = requests(answer)
    assert hub_config("gpt2") == CONFIG
    assert received[1].startswith("GET /openai/gpt2/resolve/main/config.json ")


def test_the_token_stays_with_the_host(requests):
    other = requests(ANSWER)
    target = os.environ["HF_ENDPOINT"]
    requests(redirect(f"{target}/config.json"))
    with pytest.raises(EstimateError, match="redirects elsewhere, to 127"):
        hub_config(NAME)
    assert other == []


def bomb(connection, _):
    body = gzip.compress(bytes(100 * MAX_CONFIG_BYTES))
    connection.sendall(response(body, "Content-Encoding: gzip"))


def flood(connection, _):
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    for _ in range(64):
        connection.sendall(bytes(MAX_CONFIG_BYTES))


def dripping_body(connection, _):
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    drip(connection, b" ", b"{}")


def dripping_head(connection, _):
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    drip(connection, b"X: y\r\n", b"Content-Length: 2\r\n\r\n{}")


def silence(connection, _):
    connection.recv(1)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (refusal("404 Not Found"), "no such model, or it has no config.json"),
        (refusal("401 Unauthorized"), "it doesn't exist, or it is private"),
        (refusal("403 Forbidden"), "it is gated: accept its licence"),
        (refusal("429 Too Many Requests"), "try again later"),
        (refusal("503 Service Unavailable"), "answered 503"),
        (redirect("/again"), "redirects more than 3 times"),
        (redirect("https://example.com/config.json"), "redirects elsewhere, to example.com"),
        (redirect("file:///etc/passwd"), "redirects elsewhere"),
        (response(b"<html>Log in</html>"), "no JSON object: is HF_ENDPOINT a hub"),
        (response(b"[" * 200_000), "no JSON object"),
        (response(b"[]"), "no JSON object"),
        (response(b"\xff\xfe\x00"), "no JSON object"),
        (response(b"{}"), "has no model_type"),
        (response(b'{"model_type": "bert", "architectures": 5}'), "architectures 5: write a list"),
        (response(zlib.compress(b"[]")[:-6], "Content-Encoding: gzip"), "no JSON object"),
        (response(b"nonsense", "Content-Encoding: gzip"), "invalid compressed body"),
        (b"SSH-2.0-OpenSSH\r\n", "could not be fetched"),
        (b"", "could not be fetched"),
        (bomb, "sent more than 1"),
        (flood, "sent more than 1"),
        (dripping_body, "no answer within 0.5 s"),
        (dripping_head, "no answer within 0.5 s"),
        (silence, "no answer within 0.5 s"),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", ""),
)  # fmt: skip
def test_an_answer_of_another_kind_is_an_error_that_names_it(requests, answer, words):
    requests(answer)
    timeout_s = TIMEOUT_S if words.startswith("no answer") else 60.0
    with pytest.raises(EstimateError, match=words):
        hub_config(NAME, timeout_s=timeout_s)


def test_a_hub_that_is_not_there_is_named(requests, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    words = r"could not be fetched: 127\.0\.0\.1:9: [^<]*refused"
    with pytest.raises(EstimateError, match=words) as caught:
        hub_config(NAME)
    assert " object at 0x" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a/b/c", "../etc", "a b", "org/../x", "-x/y"])
def test_a_name_that_the_hub_cannot_have_is_not_asked_for(requests, name):
    received = requests(ANSWER)
    with pytest.raises(EstimateError, match="isn't a model name of the hub"):
        hub_config(name)
    assert received == []


def test_what_the_hubs_cache_has_is_not_fetched(requests, monkeypatch, tmp_path):
    folder = tmp_path / f"models--{NAME.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text("c0ffee")
    (folder / "snapshots/c0ffee").mkdir(parents=True)
    (folder / "snapshots/c0ffee/config.json").write_text(json.dumps(CONFIG))
    received = requests(ANSWER)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub_config(NAME) == CONFIG
    with pytest.raises(EstimateError, match="HF_HUB_OFFLINE forbids"):
        hub_config("someone/other")
    assert received == []


def estimate(server: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "memagent", "estimate", *arguments]
    return subprocess.run(
        command,
        env={**os.environ, "HF_ENDPOINT": server, "HF_HUB_OFFLINE": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_command_line_estimates_any_model_of_the_hub_if_asked_to(requests):
    received = requests(ANSWER)
    server = os.environ["HF_ENDPOINT"]
    command = ["--model", NAME, "--batch", "2", "--method", "formula", "--json"]
    offline = estimate(server, *command)
    assert offline.returncode == 1 and "(--hub fetches it)" in offline.stderr and not received
    fetched = estimate(server, *command, "--hub")
    assert fetched.returncode == 0, fetched.stderr
    output = json.loads(fetched.stdout)
    assert output["assumptions"]["model"] == NAME and output["assumptions"]["parameters"] == 141_056


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_layer": "many"}, "another value than a number"),
        ({"n_embd": []}, "another value than a number"),
        ({"model_type": "voodoo"}, "model_type 'voodoo' is not known to the formula"),
    ],
)
def test_a_config_with_nonsense_is_an_error_of_one_line(requests, changes, words):
    requests(response(json.dumps(CONFIG | changes).encode()))
    done = estimate(
        os.environ["HF_ENDPOINT"], "--model", NAME, "--hub", "--method", "formula", "--json"
    )
    assert done.returncode in (1, 2) and words in done.stderr and done.stderr.count("\n") == 1
