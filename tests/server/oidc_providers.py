"""OpenID Connect providers for tests: a real one in its own process, and one that lies as told."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import urllib3

CLIENT_ID = "memagent-test"
CLIENT_SECRET = "the client's secret: +/%"
ADA = {"sub": "ada", "name": "Ada Lovelace", "email": "ada@example.org", "groups": ["staff", "ops"]}
BOB = {"sub": "bob", "name": "Bob <b>", "email": "bob@example.org", "groups": ["staff", "vision"]}
EVE = {"sub": "eve", "name": "Eve", "email": "eve@example.org", "groups": ["guests"]}
CY = {"sub": "cy", "name": "Cy", "email": "cy@example.org", "groups": ["readers", "leads"]}
GROUPS = {
    "MEMAGENT_OIDC_CLIENT_ID": CLIENT_ID,
    "MEMAGENT_OIDC_CLIENT_SECRET": CLIENT_SECRET,
    "MEMAGENT_OIDC_ADMIN_GROUPS": "ops",
    "MEMAGENT_OIDC_READ_GROUPS": "readers",
    "MEMAGENT_OIDC_PROJECT_GROUPS": "vision=detector",
    "MEMAGENT_OIDC_PROJECT_ADMIN_GROUPS": "leads=detector",
}


@contextlib.contextmanager
def real_provider() -> Iterator[str]:
    """Run oidc-provider-mock, and yield its issuer."""
    people = [part for one in (ADA, BOB, CY, EVE) for part in ("--user-claims", json.dumps(one))]
    command = (sys.executable, "-W", "ignore", "-u", "-m", "oidc_provider_mock", "--port", "0")
    with subprocess.Popen(
        [*command, *people], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if "http://" in line)
            drain = threading.Thread(target=process.stderr.read, daemon=True)
            drain.start()
            yield line[line.index("http://") :].split()[0].rstrip("/")
        finally:
            process.kill()
            process.wait()
            drain.join()


def choose_person(login_url: str, subject: str) -> str:
    """Log in at the real provider, and return the address to which it redirects."""
    body = urlencode({"sub": subject}).encode()
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = urllib3.request("POST", login_url, body=body, headers=headers, redirect=False)
    assert answer.status == 302, answer.data
    return answer.headers["Location"]


class LyingProvider:
    """A provider whose documents and tokens a test changes; `tokens_asked` has the forms sent."""

    def __init__(self) -> None:
        from joserfc.jwk import RSAKey

        self.key = RSAKey.generate_key(2048, parameters={"kid": "one"})
        self.signing_key = self.key
        self.shared_key = b""
        self.header = {"alg": "RS256", "kid": "one"}
        self.claims: dict[str, object] = {}
        self.metadata: dict[str, object] = {}
        self.user_info: dict[str, object] = {}
        self.bodies: dict[str, bytes] = {}
        self.stalls: set[str] = set()
        self.nonce = ""
        self.challenge = ""
        self.tokens_asked: list[dict[str, str]] = []
        self.arrived = threading.Event()
        self.release = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(outer.answer(self.path, b""))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self._send(outer.answer(self.path, body))

            def _send(self, body: bytes) -> None:
                with contextlib.suppress(OSError):
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.issuer = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def begin(self, location: str) -> str:
        """Take over what the login asks for, and return its state."""
        query = dict(parse_qsl(urlsplit(location).query))
        self.nonce, self.challenge = query["nonce"], query["code_challenge"]
        return query["state"]

    def answer(self, path: str, body: bytes) -> bytes:
        if path in self.stalls:
            self.arrived.set()
            self.release.wait()
        if path in self.bodies:
            return self.bodies[path]
        if path == "/token":
            return self._token(body)
        documents = {
            "/.well-known/openid-configuration": {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
                **self.metadata,
            },
            "/keys": {"keys": [self.key.as_dict(private=False)]},
            "/userinfo": self.user_info,
        }
        return json.dumps(documents[path]).encode()

    def id_token(self) -> str:
        from joserfc import jws

        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT_ID,
            "exp": now + 300,
            "iat": now,
            "nonce": self.nonce,
            **ADA,
            **self.claims,
        }
        signed = f"{_part(self.header)}.{_part(claims)}"
        if self.header["alg"] == "none":
            return f"{signed}."
        if self.header["alg"] == "HS256":
            digest = hmac.digest(self.shared_key, signed.encode(), "sha256")
            return f"{signed}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"
        # json escapes what is no UTF-8, as a lying provider may
        return jws.serialize_compact(self.header, json.dumps(claims), self.signing_key)

    def _token(self, body: bytes) -> bytes:
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        self.tokens_asked.append(form)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == self.challenge
        token = {"access_token": "opaque", "token_type": "Bearer", "id_token": self.id_token()}
        return json.dumps(token).encode()


def callback(state: str, code: str = "the-code") -> str:
    """Return the path to which a provider redirects."""
    return f"/login/oidc/callback?{urlencode({'code': code, 'state': state})}"


def _part(content: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()
