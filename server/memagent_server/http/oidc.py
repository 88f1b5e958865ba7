"""OpenID Connect: the provider as the server sees it, by the authorization code flow with PKCE.

1. The provider's metadata and keys are read from the issuer's discovery document and kept for an
   hour. A provider that failed isn't asked again for some seconds.
2. A login has a state, a nonce and a code verifier; they are in a signed cookie of the browser that
   began it, and good for one answer.
3. The code is exchanged for an ID token. Authlib checks its issuer, audience, time and nonce, and
   its signature by an asymmetric algorithm.
4. If the ID token doesn't have the groups, the provider's user info does.
5. An exchange takes at most EXCHANGE_S and MAX_BYTES, and a web process has at most MAX_AT_ONCE of
   them: a provider that stalls doesn't hold the pages. Codes, tokens and secrets are never logged.
"""

from __future__ import annotations

import hashlib
import json
import threading
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from flask import Flask, current_app

from memagent.wire.local_tokens import LOOPBACK_HOSTS
from memagent_server.notify.channel import DeliveryFailedError
from memagent_server.notify.http_client import exchange
from memagent_server.schemas.base import JsonObject
from memagent_server.settings.oidc import OidcSettings

EXTENSION = "memagent_oidc"
DISCOVERY = "/.well-known/openid-configuration"
EXCHANGE_S = 5.0
"""A provider answers within 0.1 to 1 s, and a person waits for it."""
MAX_BYTES = 256 * 1024
"""The largest documents, keys of large companies, have 20 KiB."""
MAX_AT_ONCE = 3
METADATA_S = 3600.0
"""Providers change keys every few weeks; an unknown key is looked up at once."""
FAILURE_S = 5.0
LEEWAY_S = 60
"""Clocks of provider and server differ by this much at most."""
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
"""Signatures by the provider's own key. `none` and HMAC, whose key is shared, are refused."""
MAX_SUBJECT_LENGTH = 255
MAX_NAME_LENGTH = 200
MAX_EMAIL_LENGTH = 320
MAX_GROUPS = 10_000
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")


class OidcError(Exception):
    """A login failed. The text is for the person who tries."""


@dataclass(frozen=True)
class Account:
    """The account of a person at the provider."""

    subject: str
    name: str
    email: str | None
    groups: frozenset[str]


@dataclass(frozen=True)
class LoginAttempt:
    """A login that a browser has begun. `target` is the page that it leads to."""

    state: str
    nonce: str
    verifier: str
    target: str


class Provider:
    """The provider of the settings, for all threads. Its methods raise OidcError."""

    def __init__(self, settings: OidcSettings, clock: Callable[[], float]) -> None:
        self.settings = settings
        self._clock = clock
        self._slots = threading.BoundedSemaphore(MAX_AT_ONCE)
        self._metadata: tuple[JsonObject, float] | None = None
        self._keys: JsonObject | None = None
        self._failure: tuple[str, float] | None = None

    def login_url(self, attempt: LoginAttempt, redirect_uri: str) -> str:
        """Return the provider's address at which a person logs in."""
        challenge = hashlib.sha256(attempt.verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(self.settings.scopes),
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": urlsafe_b64encode(challenge).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        endpoint: str = self._load_metadata()["authorization_endpoint"]
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"

    def identify(self, code: str, attempt: LoginAttempt, redirect_uri: str) -> Account:
        """Exchange a code for the person's account."""
        token = self._exchange_code(code, attempt, redirect_uri)
        claims = self._check_id_token(token, attempt.nonce)
        groups = claims.get(self.settings.groups_claim)
        if groups is None:
            groups = self._user_info(token, claims["sub"]).get(self.settings.groups_claim)
        return account_of(claims, groups)

    def _load_metadata(self) -> JsonObject:
        now = self._clock()
        if self._metadata is not None and now - self._metadata[1] < METADATA_S:
            return self._metadata[0]
        if self._failure is not None and 0 <= now - self._failure[1] < FAILURE_S:
            raise OidcError(self._failure[0])
        try:
            document = self._ask("GET", self.settings.issuer.rstrip("/") + DISCOVERY)
            self._check_metadata(document)
        except OidcError as error:
            self._failure = str(error), now
            raise
        self._metadata = document, now
        self._keys = None
        return document

    def _check_metadata(self, document: Mapping[str, Any]) -> None:
        if document.get("issuer") != self.settings.issuer:
            raise OidcError(
                f"{self.settings.name} names another issuer than MEMAGENT_OIDC_ISSUER: "
                "an administrator must set the one in the provider's discovery document, exactly."
            )
        for name in _ENDPOINTS:
            self._check_endpoint(name, document.get(name))
        if "userinfo_endpoint" in document:
            self._check_endpoint("userinfo_endpoint", document["userinfo_endpoint"])

    def _check_endpoint(self, name: str, address: object) -> None:
        """Refuse an endpoint that would send a code or a token in clear text."""
        try:
            parts = urlsplit(address if isinstance(address, str) else "")
            is_loopback = self.settings.is_loopback and parts.hostname in LOOPBACK_HOSTS
        except ValueError:
            parts, is_loopback = urlsplit(""), False
        if not (parts.hostname and (parts.scheme == "https" or is_loopback)):
            raise OidcError(f"{self.settings.name} has no {name} with an https:// address.")

    def _exchange_code(self, code: str, attempt: LoginAttempt, redirect_uri: str) -> JsonObject:
        metadata = self._load_metadata()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": attempt.verifier,
        }
        headers = {}
        methods = metadata.get("token_endpoint_auth_methods_supported")
        identifier, secret = self.settings.client_id, self.settings.client_secret
        if isinstance(methods, list) and "client_secret_basic" not in methods:
            form |= {"client_id": identifier, "client_secret": secret}
        else:
            pair = f"{quote(identifier, safe='')}:{quote(secret, safe='')}"
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        headers["Content-Type"] = "application/x-www-form-urlencoded"
        return self._ask("POST", metadata["token_endpoint"], urlencode(form).encode(), headers)

    def _check_id_token(self, token: Mapping[str, Any], nonce: str) -> JsonObject:
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.errors import InvalidKeyIdError, JoseError
        from joserfc.jwk import KeySet
        from joserfc.jws import JWSRegistry

        registry = JWSRegistry(algorithms=list(ALGORITHMS), strict_check_header=False)
        options: Any = {
            "iss": {"essential": True, "value": self.settings.issuer},
            "aud": {"essential": True, "value": self.settings.client_id},
            "nonce": {"essential": True, "value": nonce},
        }
        parameters = {
            "nonce": nonce,
            "client_id": self.settings.client_id,
            "access_token": token.get("access_token"),
        }
        try:
            text = token["id_token"]
            try:
                keys = KeySet.import_key_set(self._load_keys())
                decoded = jwt.decode(text, keys, registry=registry)
            except InvalidKeyIdError:
                keys = KeySet.import_key_set(self._load_keys(again=True))
                decoded = jwt.decode(text, keys, registry=registry)
            claims = CodeIDToken(decoded.claims, decoded.header, options, parameters)
            claims.validate(now=int(self._clock()), leeway=LEEWAY_S)
        except (JoseError, ValueError, TypeError, KeyError, AttributeError) as error:
            reason = error.error if isinstance(error, JoseError) else type(error).__name__
            raise OidcError(
                f"{self.settings.name} sent an ID token that can't be accepted ({reason}). "
                "Log in again; if it stays, ask an administrator."
            ) from None
        return dict(claims)

    def _load_keys(self, *, again: bool = False) -> Any:
        metadata = self._load_metadata()
        if self._keys is None or again:
            self._keys = self._ask("GET", metadata["jwks_uri"])
        return self._keys

    def _user_info(self, token: Mapping[str, Any], subject: object) -> JsonObject:
        endpoint, access_token = (
            self._load_metadata().get("userinfo_endpoint"),
            token.get("access_token"),
        )
        if endpoint is None or not isinstance(access_token, str) or not access_token.isprintable():
            return {}
        document = self._ask("GET", endpoint, headers={"Authorization": f"Bearer {access_token}"})
        if document.get("sub") != subject:
            raise OidcError(f"{self.settings.name} answered about another person. Log in again.")
        return document

    def _ask(
        self, method: str, address: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> JsonObject:
        """Send a request and return the JSON object of its answer."""
        name = self.settings.name
        if not self._slots.acquire(blocking=False):
            raise OidcError(f"Too many people are logging in with {name}. Try again in a moment.")
        try:
            response = exchange(
                method,
                address,
                body,
                {"Accept": "application/json", "User-Agent": "memagent", **(headers or {})},
                service=name,
                allow_local=self.settings.is_loopback,
                max_bytes=MAX_BYTES + 1,
                timeout_s=EXCHANGE_S,
            )
        except DeliveryFailedError as error:
            raise OidcError(f"{error}. Try again in a moment.") from None
        finally:
            self._slots.release()
        if response.status != 200:
            raise OidcError(f"{name} refused the login (status {response.status}). Log in again.")
        return _object_of(response.text, name)


def _object_of(text: str, name: str) -> JsonObject:
    if len(text.encode()) > MAX_BYTES:
        raise OidcError(f"{name} sent more than {MAX_BYTES // 1024} KiB, which isn't read.")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise OidcError(f"{name} didn't answer with a JSON object. Try again in a moment.")
    return document


def account_of(claims: Mapping[str, Any], groups: object) -> Account:
    """Return the account of checked claims. Raises OidcError for an impossible subject.

    Names are cut, and stripped of characters that neither pages nor databases show.
    """
    subject = claims.get("sub")
    is_text = isinstance(subject, str) and subject.isprintable()
    if not isinstance(subject, str) or not is_text or not 0 < len(subject) <= MAX_SUBJECT_LENGTH:
        raise OidcError(
            "The provider's id of you can't be accepted: it must have 1 to "
            f"{MAX_SUBJECT_LENGTH} printable characters."
        )
    email = _text(claims.get("email"), MAX_EMAIL_LENGTH) or None
    names = (claims.get("name"), claims.get("preferred_username"), email, subject)
    name = next(filter(None, (_text(value, MAX_NAME_LENGTH) for value in names)))
    listed = [groups] if isinstance(groups, str) else groups if isinstance(groups, list) else []
    known = frozenset(group for group in listed[:MAX_GROUPS] if isinstance(group, str))
    return Account(subject, name, email, known)


def _text(value: object, length: int) -> str:
    if not isinstance(value, str):
        return ""
    return "".join(filter(str.isprintable, value)).strip()[:length]


def install(app: Flask, settings: OidcSettings | None, clock: Callable[[], float]) -> None:
    app.extensions[EXTENSION] = None if settings is None else Provider(settings, clock)


def current_provider() -> Provider | None:
    """Return the provider of this server, None if people log in with tokens only."""
    provider: Provider | None = current_app.extensions[EXTENSION]
    return provider
