"""Create, list and revoke access tokens, and print links that log in once.

A token is shown once, on creation; the database stores only its keyed hash."""

from __future__ import annotations

import argparse
import json
import time

from msgspec.structs import asdict

from memagent.cli import say
from memagent.errors import MemagentError, SettingError
from memagent.units import parse_age
from memagent_server.http import credentials, local_access
from memagent_server.schemas.base import Token
from memagent_server.settings import Settings
from memagent_server.store import migrate, tokens
from memagent_server.store.engine import Database

MAX_NAME_LENGTH = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="create|list|revoke|link")
    create = actions.add_parser("create", help="create a token and print it")
    create.add_argument("name", help="name that says what or whom it's for")
    create.add_argument(
        "--scope",
        choices=tokens.SCOPES,
        default="ingest",
        help="permissions (default: ingest, for agents)",
    )
    create.add_argument(
        "--project",
        action="append",
        default=[],
        help="limit it to the runs of this project; may be repeated",
    )
    create.add_argument(
        "--expires", metavar="AGE", help="expire after 12h, 90d or 8w (default: never)"
    )
    create.add_argument("--json", action="store_true", help="print JSON")
    listing = actions.add_parser("list", help="list all tokens, without their secrets")
    listing.add_argument("--json", action="store_true", help="print JSON")
    revoke = actions.add_parser("revoke", help="revoke a token immediately")
    revoke.add_argument("which", metavar="NAME|ID")
    link = actions.add_parser("link", help="print a link that logs a browser in once, per page")
    link.add_argument("pages", nargs="*", default=["/"], metavar="PAGE", help="such as /runs/ID")
    link.add_argument("--listen", metavar="HOST:PORT", help="address of the server, on loopback")
    link.add_argument("--expires", metavar="AGE", help="expire after 12h (default: 10 minutes)")


def run(arguments: argparse.Namespace) -> int:
    settings = Settings.from_environ(listen=getattr(arguments, "listen", None))
    database = Database(settings.database_url)
    try:
        migrate.upgrade(database)
        {"create": _create, "list": _list, "revoke": _revoke, "link": _link}[arguments.action](
            arguments, settings, database
        )
    finally:
        database.close()
    return 0


def _create(arguments: argparse.Namespace, settings: Settings, database: Database) -> None:
    for noun, text in (
        ("name", arguments.name),
        *(("project", name) for name in arguments.project),
    ):
        if not 0 < len(text) <= MAX_NAME_LENGTH:
            raise SettingError(f"The {noun} must have 1 to {MAX_NAME_LENGTH} characters.")
    now = time.time()
    expires_at = (
        now + parse_age("--expires", arguments.expires) if arguments.expires is not None else None
    )
    with database.write() as session:
        secret, token = credentials.issue_token(
            session,
            settings,
            name=arguments.name,
            scope=arguments.scope,
            now=now,
            projects=arguments.project,
            expires_at=expires_at,
        )
        facts = asdict(tokens.describe_token(token))
    print(json.dumps({**facts, "token": secret}) if arguments.json else secret)


def _list(arguments: argparse.Namespace, _settings: Settings, database: Database) -> None:
    with database.read() as session:
        rows = [tokens.describe_token(token) for token in tokens.list_tokens(session)]
    if arguments.json:
        print(json.dumps([asdict(token) for token in rows]))
        return
    for token in rows:
        print(_line(token))
    if not rows:
        say("no tokens; `memagent token create NAME --scope ingest` creates one")


def _line(token: Token) -> str:
    projects = f" for {', '.join(token.projects)}" if token.projects else ""
    last_used = f"last used {token.last_used_at or 'never'}"
    ends = (
        f"revoked {token.revoked_at}"
        if token.revoked_at
        else token.expires_at and f"expires {token.expires_at}"
    )
    history = ", ".join(filter(None, (f"created {token.created_at}", last_used, ends)))
    return f"{token.id:>4}  {token.scope:<6}  {token.name}{projects}  ({history})"


def _revoke(arguments: argparse.Namespace, _settings: Settings, database: Database) -> None:
    with database.write() as session:
        revoked = tokens.revoke_tokens(session, arguments.which, time.time())
    if not revoked:
        raise MemagentError(
            f"No valid token has the name or id {arguments.which!r}: see `memagent token list`."
        )
    print(f"revoked {revoked} token{'s' if revoked > 1 else ''}")


def _link(arguments: argparse.Namespace, settings: Settings, database: Database) -> None:
    age = arguments.expires
    valid_s = parse_age("--expires", age) if age is not None else local_access.LINK_S
    for page in arguments.pages:
        link = local_access.new_link(database, settings, time.time(), path=page, valid_s=valid_s)
        if link is None:
            raise MemagentError(
                f"{settings.local_url} has no token of its own: start `memagent serve` there, or "
                "log in with a token that `memagent token create` prints."
            )
        print(link)
