"""The server: whether it answers, whether it is memagent's, what the token allows, and whether the clocks agree."""

from __future__ import annotations

from collections.abc import Iterator
from email.utils import parsedate_to_datetime

from memagent import __version__
from memagent.delivery.client import Response, ask
from memagent.doctor.check import Environment, Finding, ok, problem, warning
from memagent.errors import DeliveryError

_SKEW_S = 5.0
"""`Date` has whole seconds, so nothing smaller is worth a word."""


def check(patient: Environment) -> Iterator[Finding]:
    server, token = patient.settings.server, patient.settings.token
    if server is None:
        yield ok("no server is set: runs are recorded to files (MEMAGENT_SERVER sends them to one)")
        return
    try:
        health = ask(server, "/healthz")
        yield from _judge_health(server, health)
        if _is_memagent(health):
            yield from judge_access(
                ask(server, "/api/v1/runs?limit=1", token=token),
                ask(server, "/api/v1/runs", token=token, method="POST"),
                has_token=token is not None,
            )
    except DeliveryError as error:
        yield problem(
            str(error), "runs are kept in files until it can: `memagent sync` uploads them"
        )


def _is_memagent(health: Response) -> bool:
    return health.status == 200 and "version" in health.fields()


def _judge_health(server: str, health: Response) -> Iterator[Finding]:
    if not _is_memagent(health):
        where = health.headers.get("location")
        yield problem(
            f"{server}/healthz answered {health.status}, which is no memagent server",
            f"it redirects to {where}: set MEMAGENT_SERVER to that"
            if where
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


def judge_clock(answer: Response) -> Iterator[Finding]:
    """`Date` against this machine's clock; the request's own duration, and the second that Date cuts off, are allowed for."""
    try:
        said = parsedate_to_datetime(answer.headers.get("date") or "").timestamp()
    except (TypeError, ValueError):
        return
    ahead_s = (
        answer.began_at - (said + 1.0)
        if answer.began_at > said + 1.0
        else min(0.0, answer.ended_at - said)
    )
    if abs(ahead_s) > _SKEW_S:
        way = "ahead of" if ahead_s > 0 else "behind"
        yield warning(
            f"this clock is {abs(ahead_s):.0f} s {way} the server's",
            "run NTP: times on the charts are off",
        )
    else:
        yield ok("the clocks agree")


def judge_access(read: Response, post: Response, *, has_token: bool) -> Iterator[Finding]:
    """`post` had no body: whoever may post is told that it is malformed, and nothing is stored."""
    token = "the token" if has_token else "without a token one"
    may_read, may_post = read.status == 200, post.status in (400, 415, 422)
    if 401 in (read.status, post.status):
        advice = "`memagent token create NAME --scope ingest` on the server makes one: put it into MEMAGENT_TOKEN"
        yield problem(
            "the token is unknown or revoked" if has_token else "the server wants a token", advice
        )
    elif may_post:
        yield ok(
            f"{token} may send runs"
            + (" and read them" if may_read else ", not read them (`memagent runs`)")
        )
    elif may_read:
        yield problem(
            f"{token} may read, and not send runs", "agents need a token of scope ingest (or admin)"
        )
    else:
        said = post.fields().get("detail") or read.fields().get("detail") or "no reason given"
        yield problem(
            f"the server refused ({post.status}): {said}",
            "ask who runs the server, or look into its log",
        )
