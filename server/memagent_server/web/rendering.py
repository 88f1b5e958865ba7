"""Responses of pages and static files.

Pages refresh themselves by requesting themselves again (`static/live.js`). The ETag turns that into
an empty 304 while nothing changes.

Static files have addresses with a digest of their content, so that browsers cache them forever:

1. The digest covers all files. A script that imports another by a relative path gets the same
   digest, and browsers request nothing again until an upgrade of the server.
2. An address with another digest, or none, is served uncached: a page loaded before an upgrade
   still finds its scripts.
3. Text is sent with gzip if accepted, at a third to a quarter of its size. It is compressed once.
4. A page's scripts are joined into one (`script_bundle`), named `bundle/time+live+run.js`.
5. Digest and compressed text live as long as the process: restart the server after editing a file
   here.
"""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import blake2b
from mimetypes import guess_type
from pathlib import Path
from typing import Any

from flask import Response, g, redirect, render_template, request, send_from_directory, url_for
from werkzeug.exceptions import NotFound
from werkzeug.security import safe_join

from memagent_server.http import auth, credentials
from memagent_server.http.context import current
from memagent_server.http.csrf import FIELD, form_token
from memagent_server.http.problems import compress
from memagent_server.store.engine import Session
from memagent_server.store.incidents import count_firing_incidents
from memagent_server.web.script_bundle import bundle

RENDERED = "memagent_rendered"
REFRESH_HEADER = "Memagent-Refresh"
"""Marks the requests of live.js."""
_FIELD = f'name="{FIELD}" value="'
_FORM_TOKEN = re.compile(rf'{_FIELD}\w+"')
REFRESH_S = 3
REFRESH_ENDED_S = 15
"""An ended run no longer changes, except for the notifications about it."""


@dataclass(frozen=True)
class Rendered:
    """A page without the tokens of its forms, the tag of its content, and its interval."""

    html: str
    etag: str
    refresh_s: float = 0.0


def render_page(template: str, session: Session, **variables: Any) -> Response:
    """Render a page. `session` is read for what the frame around every page shows."""
    return page_response(template, **{**frame_variables(session), **variables})


def page_response(template: str, **variables: Any) -> Response:
    """Render a template, with an ETag that makes refreshing cheap, and gzip if accepted.

    The ETag is that of the content: the masks of forms' tokens differ in each response. The answer
    to a form isn't compressed, for it may show a secret.
    """
    html = render_template(template, **variables)
    if _FIELD in html:
        html = _FORM_TOKEN.sub(f'{_FIELD}0"', html)
    etag = blake2b(html.encode(), digest_size=16).hexdigest()
    rendered = Rendered(html, etag, float(variables.get("refresh_s") or 0))
    setattr(g, RENDERED, rendered)
    return respond(rendered)


def respond(rendered: Rendered) -> Response:
    """Return a rendering with this response's tokens in its forms, or 304 if the reader has it."""
    response = Response(mimetype="text/html")
    response.headers["Cache-Control"] = "private, no-cache"
    response.set_etag(rendered.etag, weak=True)
    response.make_conditional(request)
    if response.status_code == 304:
        return response
    html = rendered.html
    if _FIELD in html:
        html = _FORM_TOKEN.sub(f'{_FIELD}{form_token()}"', html)
    response.set_data(html)
    return compress(response) if request.method == "GET" else response


def frame_variables(session: Session) -> dict[str, Any]:
    """Return the variables of the frame around every page."""
    access = auth.current_access()
    return {
        "open_alerts": count_firing_incidents(session),
        "now": current().clock(),
        "may_change": auth.may_change(),
        "may_change_server": access is not None and access.may_change_server(),
        "may_read": access is not None and access.allows("read"),
        "is_logged_in": credentials.has_session_cookie(),
        "server_url": current().settings.public_url,
    }


def redirect_to(target: str | None) -> Response:
    """Redirect to a path of this server with GET; to the list of runs for anything else."""
    response = redirect(safe_path(target), 303)
    return Response(response.get_data(), response.status_code, response.headers)


def safe_path(path: str | None) -> str:
    """Return `path` if it's one of this server, else `/`: an open redirect would serve phishing."""
    is_own = bool(path) and path is not None and path.startswith("/")
    if not is_own or path is None or path.startswith(("//", "/\\")) or not path.isprintable():
        return "/"
    return path


FOLDER = Path(__file__).parent / "static"
FOREVER = "public, max-age=31536000, immutable"
_GZIP_LEVEL = 9
_TEXT_SUFFIXES = (".css", ".js", ".svg")
_CSS_SPACE = re.compile(rb"/\*.*?\*/|\s+", re.DOTALL)
_CSS_LAYOUT = re.compile(rb" *([{};,]) *")
_BUNDLE = re.compile(r"bundle/([a-z_]{1,30}(?:\+[a-z_]{1,30}){0,9})\.js")


def address(name: str) -> str:
    """Return the address of a static file. It changes with the content of any of them."""
    return url_for("web.static", digest=_current_digest(), filename=name)


def bundle_address(*scripts: str) -> str:
    """Return the address of scripts that are sent as one."""
    return address(f"bundle/{'+'.join(scripts)}.js")


def send(filename: str, digest: str | None = None) -> Response:
    """Return one file, or a bundle. Raises NotFound, also for a path outside the folder."""
    is_text = filename.endswith(_TEXT_SUFFIXES)
    is_compressed = is_text and "gzip" in request.headers.get("Accept-Encoding", "")
    if named := _BUNDLE.fullmatch(filename):
        response = _send_text(_bundled(named[1]), filename, is_compressed=is_compressed)
    elif is_compressed:
        response = _send_compressed(filename)
    else:
        response = send_from_directory(FOLDER, filename)
    response.headers["Cache-Control"] = (
        FOREVER if digest is not None and digest == _current_digest() else "no-cache"
    )
    if is_text:
        response.headers["Vary"] = "Accept-Encoding"
    return response


def _send_compressed(filename: str) -> Response:
    path = safe_join(str(FOLDER), filename)
    if path is None or not Path(path).is_file():
        raise NotFound
    text = Path(path).read_bytes()
    if filename.endswith(".css"):
        text = without_layout(text)
    return _send_text(text, filename, is_compressed=True)


def _send_text(text: bytes, filename: str, *, is_compressed: bool) -> Response:
    response = Response(
        _compressed(text) if is_compressed else text, mimetype=guess_type(filename)[0]
    )
    if is_compressed:
        response.headers["Content-Encoding"] = "gzip"
    response.add_etag()
    response.make_conditional(request)
    return response


def without_layout(sheet: bytes) -> bytes:
    """Return a style sheet without comments and most of its white space: 8 % fewer bytes."""
    return _CSS_LAYOUT.sub(rb"\1", _CSS_SPACE.sub(b" ", sheet))


@lru_cache(maxsize=64)
def _compressed(text: bytes) -> bytes:
    return gzip.compress(text, _GZIP_LEVEL, mtime=0)


@lru_cache(maxsize=32)
def _bundled(names: str) -> bytes:
    try:
        return bundle(FOLDER, names.split("+")).encode()
    except FileNotFoundError:
        raise NotFound from None


@cache
def _current_digest() -> str:
    digest = blake2b(digest_size=6)
    for path in sorted(path for path in FOLDER.rglob("*") if path.is_file()):
        digest.update(path.relative_to(FOLDER).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
