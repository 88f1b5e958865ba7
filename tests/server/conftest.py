"""Forms as browsers post them, and `memagent VERB` as a process.

Test clients post a form with the cookie and the hidden field of the page.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from memagent_server.http import credentials, csrf
from tests.live_server import SECRET_KEY
from tests.python_fork import ForkServer


class FormClient(FlaskClient):
    """`client.post(path, data={...})` outside of /api/ adds the form token; `as_it_is=True` does not."""

    def post(self, path: Any, *arguments: Any, as_it_is: bool = False, **options: Any) -> Any:
        is_form = isinstance(path, str) and not path.startswith("/api/") and "json" not in options
        if is_form and not as_it_is:
            options["data"] = {**(options.get("data") or {}), csrf.FIELD: self.form_token()}
        return super().post(path, *arguments, **options)

    def form_token(self) -> str:
        """The hidden field of a form in this browser."""
        if self.get_cookie(csrf.COOKIE) is None:
            self.set_cookie(csrf.COOKIE, "a nonce for tests")
        results = [(name, self.get_cookie(name)) for name in (csrf.COOKIE, credentials.COOKIE)]
        cookies = "; ".join(
            f"{name}={cookie.value}" for name, cookie in results if cookie is not None
        )
        with self.application.test_request_context(headers={"Cookie": cookies}):
            return csrf.form_token()


@pytest.fixture(autouse=True)
def _clients_post_forms(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Flask, "test_client_class", FormClient)
    yield


@pytest.fixture
def memagent(
    memagent_fork: ForkServer, tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """memagent(*arguments, environ={}): run it over the database that `start_server` uses.

    The process is forked from one that has imported the server.
    """

    def memagent(
        *arguments: object, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        data = tmp_path / "server"
        data.mkdir(exist_ok=True)
        own = {
            "XDG_DATA_HOME": str(data),
            "MEMAGENT_SECRET_KEY": SECRET_KEY,
            "MEMAGENT_DATABASE_URL": f"sqlite:///{data}/memagent.db",
        }
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("MEMAGENT_")
        }
        environ = {**inherited, **own, **(environ or {})}
        return memagent_fork.run("-m", "memagent", *map(str, arguments), env=environ)

    return memagent
