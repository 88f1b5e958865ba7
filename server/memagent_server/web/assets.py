"""Scripts, styles and pictures of the pages: under an address of their content, so that browsers keep them for good.

1. The address holds a digest of all files. A script that imports another by its relative path is then led to the same digest: nothing
   is asked for again until the server is another one.
2. An address with another digest, or none, is answered too, and not kept: a page of before an upgrade still finds its scripts.
3. Text is sent as gzip where that is taken: a third to a quarter of its size. It is packed once.
4. Digest and packed text are made once in the life of a process: who edits a file here starts the server anew.
"""

from __future__ import annotations

import gzip
from functools import cache
from hashlib import blake2b
from mimetypes import guess_type
from pathlib import Path

from flask import Response, request, send_from_directory, url_for
from werkzeug.exceptions import NotFound
from werkzeug.security import safe_join

FOLDER = Path(__file__).parent / "static"
FOREVER = "public, max-age=31536000, immutable"
_PACKED_LEVEL = 9
_TEXTS = (".css", ".js", ".svg")


def address(name: str) -> str:
    """Address of a static file that changes with the content of any of them."""
    return url_for("web.static", digest=_current_digest(), filename=name)


def send(filename: str, digest: str | None = None) -> Response:
    """One file. Raises NotFound, also for a path that leaves the folder."""
    is_text = filename.endswith(_TEXTS)
    is_packed = is_text and "gzip" in request.headers.get("Accept-Encoding", "")
    found = _send_packed(filename) if is_packed else send_from_directory(FOLDER, filename)
    found.headers["Cache-Control"] = (
        FOREVER if digest is not None and digest == _current_digest() else "no-cache"
    )
    if is_text:
        found.headers["Vary"] = "Accept-Encoding"
    return found


def _send_packed(filename: str) -> Response:
    path = safe_join(str(FOLDER), filename)
    if path is None or not Path(path).is_file():
        raise NotFound
    answer = Response(
        _packed(Path(path)), mimetype=guess_type(path)[0], headers={"Content-Encoding": "gzip"}
    )
    answer.add_etag()
    answer.make_conditional(request)
    return answer


@cache
def _packed(path: Path) -> bytes:
    return gzip.compress(path.read_bytes(), _PACKED_LEVEL, mtime=0)


@cache
def _current_digest() -> str:
    found = blake2b(digest_size=6)
    for path in sorted(path for path in FOLDER.rglob("*") if path.is_file()):
        found.update(path.relative_to(FOLDER).as_posix().encode() + path.read_bytes())
    return found.hexdigest()
