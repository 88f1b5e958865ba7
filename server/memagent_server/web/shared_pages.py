"""Refreshes of open pages, answered from one rendering for all readers of the same page.

`static/live.js` marks its requests with a header. Only these share a rendering: a reader who loads
a page, or comes back to it from a form, always gets a new one.

1. A rendering is kept for MIN_KEPT_S. One that equals its predecessor is kept twice as long, up to
   the page's own interval. A refresh comes an interval after its page was loaded, so it never
   shows what was before the reader's own change.
2. An ended run has a version, which one query reads. A rendering of the same version is kept on,
   up to MAX_KEPT_S: a few words, such as the rest of a snooze, depend on the time.
3. Readers with the same rights share a rendering. It holds no token of a form: each response gets
   its reader's own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import wraps
from threading import Lock
from zlib import compress, decompress

from flask import Response, current_app, g, request

from memagent_server.http import auth, credentials
from memagent_server.http.context import current
from memagent_server.web.rendering import REFRESH_HEADER, RENDERED, Rendered, respond

EXTENSION = "memagent_shared_pages"
MIN_KEPT_S = 1.0
MAX_KEPT_S = 600.0
MAX_PAGES = 256
_COMPRESSION_LEVEL = 1
PageView = Callable[..., Response]


@dataclass(frozen=True)
class SharedPage:
    """A rendering with its compressed HTML."""

    packed: bytes
    etag: str
    refresh_s: float
    version: Hashable
    rendered_at: float
    checked_at: float
    kept_s: float

    def is_fresh(self, now: float) -> bool:
        return 0 <= now - self.checked_at < self.kept_s

    def is_of(self, version: Hashable, now: float) -> bool:
        is_recent = now - self.rendered_at < MAX_KEPT_S
        return version is not None and version == self.version and is_recent


class SharedPages:
    """The newest renderings of this process, by address and rights of the reader."""

    def __init__(self) -> None:
        self._pages: OrderedDict[Hashable, SharedPage] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable) -> SharedPage | None:
        with self._lock:
            if key in self._pages:
                self._pages.move_to_end(key)
            return self._pages.get(key)

    def add(self, key: Hashable, page: SharedPage) -> None:
        with self._lock:
            self._pages[key] = page
            while len(self._pages) > MAX_PAGES:
                self._pages.popitem(last=False)


def share_refreshes(
    version: Callable[..., Hashable] | None = None, *, audience: str = ""
) -> Callable[[PageView], PageView]:
    """Decorate a view. `version` takes its arguments and returns None if there is none.

    Renderings are kept apart by audience: strangers must not evict those of users.
    """

    def decorate(view: PageView) -> PageView:
        @wraps(view)
        def answer(**arguments: str) -> Response:
            if REFRESH_HEADER not in request.headers:
                return view(**arguments)
            pages: SharedPages = current_app.extensions.setdefault(
                f"{EXTENSION}{audience}", SharedPages()
            )
            key, now = _key(), current().clock()
            page = pages.get(key)
            if page is not None and page.is_fresh(now):
                return _respond(page)
            # read before the page: a change meanwhile makes the next refresh render it again
            newest = version(**arguments) if version else None
            if page is not None and page.is_of(newest, now):
                pages.add(key, replace(page, checked_at=now, kept_s=_longer(page)))
                return _respond(page)
            response = view(**arguments)
            rendered: Rendered | None = g.get(RENDERED)
            if rendered is not None:
                pages.add(key, _shared(rendered, page, newest, now))
            return response

        return answer

    return decorate


def _key() -> Hashable:
    access = auth.current_access()
    rights = access and access.rights
    return request.full_path, rights, credentials.has_session_cookie()


def _shared(
    rendered: Rendered, before: SharedPage | None, version: Hashable, now: float
) -> SharedPage:
    is_same = before is not None and before.etag == rendered.etag
    return SharedPage(
        packed=compress(rendered.html.encode(), _COMPRESSION_LEVEL),
        etag=rendered.etag,
        refresh_s=rendered.refresh_s,
        version=version,
        rendered_at=now,
        checked_at=now,
        kept_s=_longer(before) if is_same and before else MIN_KEPT_S,
    )


def _longer(page: SharedPage) -> float:
    return min(2 * page.kept_s, page.refresh_s)


def _respond(page: SharedPage) -> Response:
    # most refreshes end here with 304, which has no body: don't unpack it
    is_known = request.if_none_match.contains_weak(page.etag)
    html = "" if is_known else decompress(page.packed).decode()
    return respond(Rendered(html, page.etag, page.refresh_s))
