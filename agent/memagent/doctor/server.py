"""The server: does it answer, is it memagent's, what may the token do, and do the clocks agree?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from email.utils import parsedate_to_datetime

from memagent import __version__
from memagent.delivery.api_client import ApiClient, ApiResponse
from memagent.doctor.check import Environment, Finding, ok, problem, warning
from memagent.errors import DeliveryError
from memagent.wire.local_tokens import find_token

_MAX_SKEW_S = 5.0
"""The header `Date` has whole seconds: a small difference means nothing."""


def check(environment: Environment) -> Iterator[Finding]:
    server, token = environment.settings.server, environment.settings.token
    if server is None:
        yield ok("no server set: runs are recorded to files (set MEMAGENT_SERVER to send them)")
        return
    try:
        # The token is sent only to a server that has identified itself as memagent's.
        with closing(ApiClient(server, local_scope=None)) as client:
            health = client.request("/healthz")
        yield from _judge_health(server, health)
        if _is_memagent(health):
            with closing(ApiClient(server, token)) as client:
                read = client.request("/api/v1/runs?limit=1")
            with closing(ApiClient(server, token, local_scope="ingest")) as client:
                post = client.request("/api/v1/runs", method="POST")
            token = token or find_token(server, "ingest")
            yield from judge_access(read, post, has_token=token is not None)
    except DeliveryError as error:
        yield problem(
            str(error), "runs are kept in files meanwhile: `memagent sync` uploads them later"
        )


def _is_memagent(health: ApiResponse) -> bool:
    return health.status == 200 and "version" in health.fields()


def _judge_health(server: str, health: ApiResponse) -> Iterator[Finding]:
    if not _is_memagent(health):
        location = health.headers.get("location")
        yield problem(
            f"{server}/healthz answered {health.status}: it isn't a memagent server",
            f"it redirects to {location}: set MEMAGENT_SERVER to that address"
            if location
            else "check host, port and path",
        )
        return
    version = health.fields()["version"]
    yield ok(f"{server} answers, memagent {version}")
    if version != __version__:
        yield warning(
            f"the server has version {version}, this is {__version__}",
            "use the same version on both",
        )
    yield from judge_clock(health)


def judge_clock(answer: ApiResponse) -> Iterator[Finding]:
    """Compare `Date` with this clock, minus the request's duration and the truncated second."""
    try:
        server_time = parsedate_to_datetime(answer.headers.get("date") or "").timestamp()
    except (TypeError, ValueError):
        return
    ahead_s = (
        answer.began_at - (server_time + 1.0)
        if answer.began_at > server_time + 1.0
        else min(0.0, answer.ended_at - server_time)
    )
    if abs(ahead_s) > _MAX_SKEW_S:
        way = "ahead of" if ahead_s > 0 else "behind"
        yield warning(
            f"this clock is {abs(ahead_s):.0f} s {way} the server's",
            "run NTP: times in the charts are wrong",
        )
    else:
        yield ok("the clocks agree")


def judge_access(read: ApiResponse, post: ApiResponse, *, has_token: bool) -> Iterator[Finding]:
    """Judge two responses. `post` had no body: with permission it's rejected as malformed."""
    token = "the token" if has_token else "without a token one"
    may_read, may_post = read.status == 200, post.status in (400, 415, 422)
    if 401 in (read.status, post.status):
        advice = (
            "create one on the server with `memagent token create NAME --scope ingest`, "
            "and set MEMAGENT_TOKEN"
        )
        yield problem(
            "the token is unknown or revoked" if has_token else "the server requires a token",
            advice,
        )
    elif may_post:
        yield ok(
            f"{token} may send runs"
            + (" and read them" if may_read else ", not read them (`memagent runs`)")
        )
    elif may_read:
        yield problem(
            f"{token} may read runs, but not send them",
            "agents need a token with scope ingest (or admin)",
        )
    else:
        reason = post.fields().get("detail") or read.fields().get("detail") or "no reason given"
        yield problem(
            f"the server refused ({post.status}): {reason}",
            "ask the server's administrator, or check its log",
        )
