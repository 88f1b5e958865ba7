"""A browser, a server with stories to look at, and a page that fails its test if anything complains in the console.

The server is a real `memagent serve` process, fed over HTTP as agents feed it: see stories.py.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = (
    os.environ.get("MEMAGENT_TEST_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
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
    """Headless Chromium; without it these tests are skipped, and under CI they fail."""
    playwright = (
        pytest.importorskip("playwright.sync_api") if not os.environ.get("CI") else _playwright()
    )
    if not Path(CHROMIUM).exists():
        reason = f"there is no Chromium at {CHROMIUM}: install chromium, or set MEMAGENT_TEST_CHROMIUM to its path"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """open_page(url, width=1280, dark=False): a page in a fresh browser context. Complaints of any page fail the test.

    With `may_fail` the page itself may be answered with an error, of which Chromium complains.
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
        page.on("console", lambda said: complaints.append(_complaint(said, may_fail=may_fail)))
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
    """until(condition): wait for a page. Playwright's own wait_for_function evaluates strings, which our pages forbid."""

    def wait(condition: Callable[[], bool]) -> None:
        last = time.monotonic() + 15
        while not condition():
            assert time.monotonic() < last, "the page did not get there in 15 seconds"
            time.sleep(0.05)

    return wait


@pytest.fixture
def server(page_server: Any) -> Any:
    """A real server without worker and without a run: what a test tells it stays as it is told.

    It is the same for all tests, for starting one takes longer than most of them.
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
def tell(server: Any) -> Callable[..., None]:
    """tell(story) posts a story's samples to the server and writes its forecasts and alerts."""
    return lambda story: story.tell(server)


@pytest.fixture(scope="session")
def stories() -> Any:
    """The stories of stories.py, which stands beside this file and is no test."""
    name = "memagent_browser_stories"
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("stories.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Stories


def _playwright() -> Any:
    from playwright import sync_api

    return sync_api


def _complaint(said: Any, *, may_fail: bool) -> str | None:
    is_expected = may_fail and "server responded with a status of 4" in said.text
    return (
        f"console: {said.text}" if said.type in ("error", "warning") and not is_expected else None
    )


def _failure(request: Any) -> str | None:
    """Requests that a page gave up itself, on leaving or for a newer one, are no failures."""
    return (
        None
        if request.failure == "net::ERR_ABORTED"
        else f"failed: {request.url} {request.failure}"
    )
