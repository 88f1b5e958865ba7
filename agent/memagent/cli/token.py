"""Create, list and revoke access tokens. A token is shown once, when it is made; the database keeps a keyed hash of it."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from memagent.errors import MemagentError
from memagent_server import auth
from memagent_server.settings import Settings
from memagent_server.store import migrate, tokens
from memagent_server.store.engine import Database
from memagent_server.store.models import Token
from memagent_server.store.times import iso


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="create|list|revoke")
    create = actions.add_parser("create", help="make a token and print it")
    create.add_argument("name", help="what or whom it is for")
    create.add_argument(
        "--scope", choices=tokens.SCOPES, default="ingest", help="what it allows (default: ingest, for agents)"
    )
    create.add_argument("--json", action="store_true", help="print JSON")
    listing = actions.add_parser("list", help="all tokens, without their secret")
    listing.add_argument("--json", action="store_true", help="print JSON")
    revoke = actions.add_parser("revoke", help="make a token worthless, at once")
    revoke.add_argument("which", metavar="NAME|ID")


def run(arguments: argparse.Namespace) -> int:
    settings = Settings.from_environ()
    database = Database(settings.database_url)
    try:
        migrate.upgrade(database)
        {"create": _create, "list": _list, "revoke": _revoke}[arguments.action](arguments, settings, database)
    finally:
        database.close()
    return 0


def _create(arguments: argparse.Namespace, settings: Settings, database: Database) -> None:
    if not 0 < len(arguments.name) <= 200:
        raise MemagentError("a token's name has 1 to 200 characters")
    secret = auth.new_token()
    with database.write() as session:
        made = tokens.add_token(
            session, arguments.name, arguments.scope, auth.token_hash(settings, secret), time.time()
        )
        facts = _facts(made)
    print(json.dumps({**facts, "token": secret}) if arguments.json else secret)


def _list(arguments: argparse.Namespace, _settings: Settings, database: Database) -> None:
    with database.read() as session:
        found = [_facts(token) for token in tokens.list_tokens(session)]
    if arguments.json:
        print(json.dumps(found))
        return
    for facts in found:
        state = (
            f"revoked {facts['revoked_at']}" if facts["revoked_at"] else f"last used {facts['last_used_at'] or 'never'}"
        )
        print(f"{facts['id']:>4}  {facts['scope']:<6}  {facts['name']}  (made {facts['created_at']}, {state})")
    if not found:
        print("there is no token; `memagent token create NAME --scope ingest` makes one")


def _revoke(arguments: argparse.Namespace, _settings: Settings, database: Database) -> None:
    with database.write() as session:
        revoked = tokens.revoke_tokens(session, arguments.which, time.time())
    if not revoked:
        raise MemagentError(f"no valid token is called {arguments.which!r}; `memagent token list` shows them")
    print(f"revoked {revoked} token{'s' if revoked > 1 else ''}")


def _facts(token: Token) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": token.name,
        "scope": token.scope,
        "created_at": iso(token.created_at),
        "last_used_at": iso(token.last_used_at),
        "revoked_at": iso(token.revoked_at),
    }
