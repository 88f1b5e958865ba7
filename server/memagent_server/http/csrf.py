"""A form is taken only from a page of ours: each one carries a token that no other site can know.

1. A browser that is shown a form gets a random cookie. The form's hidden field is the HMAC of that cookie and of the login's under the
   server's secret key: whoever may set a cookie here (another host of the same domain) still cannot make the field for a login.
2. Whatever is posted outside of /api/ must bring both, and no more than a form's size. What carries an Authorization header needs
   neither: no site can make a browser send one. Who logs in without a cookie and without naming an Origin is a program.
3. This comes on top of SameSite cookies and of the check of Origin and Sec-Fetch-Site, which also guard /api/: see `auth`.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from flask import Flask, Response, g, request

from memagent_server.http import auth
from memagent_server.http.context import current
from memagent_server.http.problems import Problem

COOKIE = "memagent_form"
FIELD = "form_token"
MOST_BYTES = 256 * 1024
_NONCE = "memagent_form_nonce"
_WITHOUT = ("login.log_in", "login.log_out")


def install(app: Flask) -> None:
    """Check every form that is posted; to be installed after `auth`, which knows who posts it."""
    app.before_request(check_form)
    app.after_request(_give_cookie)


def form_token() -> str:
    """What the hidden field of a form on the page that is being made holds."""
    nonce = request.cookies.get(_cookie()) or g.get(_NONCE)
    if not nonce:
        nonce = secrets.token_urlsafe(24)
        setattr(g, _NONCE, nonce)
    return _signed(nonce)


def check_form() -> None:
    """Raises Problem 403 for a form that was not made here, 413 for one that is no form by its size."""
    if (
        request.method in auth.SAFE_METHODS
        or request.endpoint is None
        or request.path.startswith("/api/")
    ):
        return
    request.max_content_length = MOST_BYTES
    if "Authorization" in request.headers or (request.endpoint in _WITHOUT and _is_no_browser()):
        return
    auth.refuse_foreign_origin()
    nonce, given = request.cookies.get(_cookie(), ""), request.form.get(FIELD, "")
    if not nonce or not hmac.compare_digest(given.encode(), _signed(nonce).encode()):
        raise Problem(
            403,
            "this form was not made here, or before you logged in: load its page again and send it anew",
        )


def _give_cookie(response: Response) -> Response:
    nonce = g.get(_NONCE)
    if nonce:
        settings = current().settings
        response.set_cookie(
            _cookie(), nonce, httponly=True, samesite="Strict", secure=settings.is_https
        )
    return response


def _is_no_browser() -> bool:
    return not any(
        name in request.headers for name in ("Cookie", "Origin", "Referer", "Sec-Fetch-Site")
    )


def _cookie() -> str:
    return current().settings.cookie_name(COOKIE)


def _signed(nonce: str) -> str:
    message = f"form {nonce} {auth.session()}".encode()
    return hmac.new(current().settings.secret_key.encode(), message, hashlib.sha256).hexdigest()
