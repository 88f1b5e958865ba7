"""A browser, a server with scenarios, and pages that fail their test on any console error.

The server is a real `memagent serve` process that receives data over HTTP, as from agents: see
scenarios.py.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until

CHROMIUM = (
    os.environ.get("MEMAGENT_TEST_CHROMIUM")
    or shutil.which("chromium-headless-shell")  # half of Chromium's processor time
    or shutil.which("chromium")
    or "/usr/bin/chromium"
)
ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("browser")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium. Without it, these tests are skipped; under CI they fail."""
    playwright = (
        pytest.importorskip("playwright.sync_api") if not os.environ.get("CI") else _playwright()
    )
    if not Path(CHROMIUM).exists():
        reason = f"no Chromium at {CHROMIUM}: install chromium, or set MEMAGENT_TEST_CHROMIUM to its path"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """open_page(url, width=1280, dark=False): a page in a new browser context. Console errors fail
    the test.

    With `may_fail`, the page itself may be an error, which Chromium reports.
    """
    contexts, complaints = [], []

    def open_(
        url: str | None = None,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        may_fail: bool = False,
        **options: Any,
    ) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            **options,
        )
        context.set_default_timeout(15_000)
        contexts.append(context)
        page = context.new_page()
        page.on(
            "console", lambda message: complaints.append(_complaint(message, may_fail=may_fail))
        )
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("requestfailed", lambda request: complaints.append(_failure(request)))
        page.add_init_script(
            "document.addEventListener('securitypolicyviolation', e => console.error('CSP: ' + e.violatedDirective + ' ' + e.blockedURI))"
        )
        if url is not None:
            page.goto(url)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert [complaint for complaint in complaints if complaint] == []


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """until(condition): wait for a page.

    Playwright's wait_for_function evaluates strings, which the policy forbids.
    """
    return wait_until


@pytest.fixture
def server(page_server: Any) -> Any:
    """An empty server without a worker, so that data stays as posted.

    All tests share it, because starting one takes longer than most tests.
    """
    from memagent_server.store.engine import Database
    from memagent_server.store.models import Base

    database = Database(page_server.database_url)
    with database.write() as session:
        for table in reversed(Base.metadata.sorted_tables):
            session.execute(table.delete())
    database.close()
    return page_server


@pytest.fixture
def replay(server: Any) -> Callable[..., None]:
    """replay(scenario): post its samples to the server, and write its forecasts and alerts."""
    return lambda scenario: scenario.replay(server)


@pytest.fixture(scope="session")
def scenarios() -> Any:
    """The class `Scenarios` of scenarios.py in this folder."""
    name = "memagent_browser_stories"
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("scenarios.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Scenarios


def _playwright() -> Any:
    from playwright import sync_api

    return sync_api


def _complaint(message: Any, *, may_fail: bool) -> str | None:
    is_expected = may_fail and re.search("server responded with a status of [45]", message.text)
    return (
        f"console: {message.text}"
        if message.type in ("error", "warning") and not is_expected
        else None
    )


def _failure(request: Any) -> str | None:
    """Requests that a page gave up itself, on leaving or for a newer one, are no failures."""
    return (
        None
        if request.failure == "net::ERR_ABORTED"
        else f"failed: {request.url} {request.failure}"
    )
