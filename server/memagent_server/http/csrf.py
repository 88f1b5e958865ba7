"""Cross-site request forgery protection: every form carries a token that no other site can know.

1. A browser that gets a form also gets a random cookie. The form's hidden field is the HMAC of that
   cookie and of the session cookie, under the server's secret key. A host that can set a cookie
   here (a sibling domain) still cannot forge the field for a login.
2. A post outside of /api/ must send both, and at most MAX_FORM_BYTES. A request with an
   Authorization header needs neither, because no site can make a browser send one. Logging in
   without a cookie and without an Origin is a program's doing.
3. The field is masked by random bytes of each response, for pages are compressed: a guess that a
   page repeats doesn't shorten it (BREACH).
4. This adds to SameSite cookies and to the checks of Origin and Sec-Fetch-Site, which also protect
   /api/: see `auth`.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from flask import Flask, Response, g, request

from memagent_server.http import auth, credentials
from memagent_server.http.context import current
from memagent_server.http.problems import Problem

COOKIE = "memagent_form"
FIELD = "form_token"
MAX_FORM_BYTES = 256 * 1024
_NEW_NONCE = "memagent_form_nonce"
_MASK = "memagent_form_mask"
_DIGEST_SIZE = hashlib.sha256().digest_size
_LOGIN_ENDPOINTS = ("login.log_in", "login.log_out")
_BROWSER_HEADERS = ("Cookie", "Origin", "Referer", "Sec-Fetch-Site")


def install(app: Flask) -> None:
    """Check every form that is posted. Install after `auth`, which knows who posts it."""
    app.before_request(check_form)
    app.after_request(_set_cookie)


def form_token() -> str:
    """Return the value of the hidden field for a form of this response."""
    # several forms of one new page share a nonce
    nonce = request.cookies.get(_cookie_name()) or g.get(_NEW_NONCE)
    if not nonce:
        nonce = secrets.token_urlsafe(24)
        setattr(g, _NEW_NONCE, nonce)
    # one mask a response: random bytes don't compress
    mask = g.get(_MASK) or secrets.token_bytes(_DIGEST_SIZE)
    setattr(g, _MASK, mask)
    return (mask + _masked(_sign(nonce), mask)).hex()


def check_form() -> None:
    """Raises Problem 403 for a form without a valid token.

    Larger bodies than a form's get 413 when read.
    """
    is_page = request.endpoint is not None and not request.path.startswith("/api/")
    if request.method in auth.SAFE_METHODS or not is_page:
        return
    request.max_content_length = MAX_FORM_BYTES
    if "Authorization" in request.headers:
        return
    is_browser = any(name in request.headers for name in _BROWSER_HEADERS)
    if request.endpoint in _LOGIN_ENDPOINTS and not is_browser:
        return
    auth.refuse_foreign_origin()
    nonce = request.cookies.get(_cookie_name(), "")
    token = _unmasked(request.form.get(FIELD, ""))
    if not nonce or not hmac.compare_digest(token, _sign(nonce)):
        raise Problem(
            403,
            "The form has expired or did not come from this site. "
            "Reload the page and submit it again.",
        )


def _set_cookie(response: Response) -> Response:
    nonce = g.get(_NEW_NONCE)
    if nonce:
        is_https = current().settings.is_https
        response.set_cookie(
            _cookie_name(), nonce, httponly=True, samesite="Strict", secure=is_https
        )
    return response


def _cookie_name() -> str:
    return current().settings.cookie_name(COOKIE)


def _sign(nonce: str) -> bytes:
    message = f"form {nonce} {credentials.session_cookie()}".encode()
    return hmac.new(current().settings.secret_key.encode(), message, hashlib.sha256).digest()


def _masked(text: bytes, mask: bytes) -> bytes:
    return bytes(byte ^ other for byte, other in zip(text, mask, strict=True))


def _unmasked(field: str) -> bytes:
    """Return the signature of a field, empty if the field has another form."""
    try:
        both = bytes.fromhex(field)
    except ValueError:
        return b""
    mask, text = both[:_DIGEST_SIZE], both[_DIGEST_SIZE:]
    return _masked(text, mask) if len(text) == len(mask) == _DIGEST_SIZE else b""
