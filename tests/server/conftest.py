"""Test clients post forms like a browser that loaded the page: with its cookie and hidden field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from memagent_server.http import auth, csrf


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
        results = [(name, self.get_cookie(name)) for name in (csrf.COOKIE, auth.COOKIE)]
        cookies = "; ".join(
            f"{name}={cookie.value}" for name, cookie in results if cookie is not None
        )
        with self.application.test_request_context(headers={"Cookie": cookies}):
            return csrf.form_token()


@pytest.fixture(autouse=True)
def _clients_post_forms(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Flask, "test_client_class", FormClient)
    yield
