"""The console on the run's page: loaded when opened, live without moving, searched."""

from __future__ import annotations

from memagent.wire.codec import encode
from memagent.wire.messages import Batch, ConsoleLine


class Printer:
    """A run that prints, over HTTP."""

    def __init__(self, server) -> None:
        self.server = server
        self.seq = 0
        assert server.post("/api/v1/runs", {"run_id": "r"}).status == 201
        self.send(*((number, f"line {number}") for number in range(60)))

    def send(self, *lines: tuple[int, str], stream: str = "stdout") -> None:
        console = [ConsoleLine(number=number, text=text, stream=stream) for number, text in lines]
        batch = encode(Batch(seq=self.seq, console=console))
        assert self.server.post("/api/v1/runs/r/batches", batch).status == 200
        self.seq += 1


def scrolled(page) -> tuple[float, float]:
    """Return the position of the view, and of its end."""
    return tuple(
        page.evaluate(
            "(() => { const list = document.getElementById('console-lines');"
            " return [list.scrollTop, list.scrollHeight - list.clientHeight]; })()"
        )
    )


def test_lines_are_loaded_when_the_card_is_opened_and_live_from_then_on(server, open_page, until):
    printer = Printer(server)
    page = open_page(f"{server.url}/runs/r")
    lines = page.locator("#console-lines .line")
    assert lines.count() == 0
    page.click("#console-all summary")
    until(lambda: lines.count() == 60)
    until(lambda: abs(scrolled(page)[0] - scrolled(page)[1]) < 2)
    first = lines.first.element_handle()
    printer.send((59, "line 59, 100%"), (60, "<b>sixty</b>"), (70, "seventy"))
    until(lambda: lines.count() == 62)
    assert first.evaluate("element => element.isConnected")
    assert lines.nth(59).inner_text().strip() == "line 59, 100%"
    assert lines.nth(60).inner_text().strip() == "<b>sixty</b>"
    assert lines.last.get_attribute("data-gap") == "9 lines left out"
    until(lambda: abs(scrolled(page)[0] - scrolled(page)[1]) < 2)
    printer.send((70, "seventy, and on"))  # in the same moment
    until(lambda: lines.last.inner_text().strip() == "seventy, and on")
    page.evaluate("document.getElementById('console-lines').scrollTop = 40")
    printer.send((71, "later"))
    until(lambda: lines.count() == 63)
    assert scrolled(page)[0] == 40


def test_lines_are_searched(server, open_page, until):
    printer = Printer(server)
    page = open_page(f"{server.url}/runs/r")
    page.click("#console-all summary")
    until(lambda: page.locator("#console-lines .line").count() == 60)
    page.fill("#console-search", "LINE 5")
    visible = page.locator("#console-lines .line:visible")
    assert visible.count() == 11
    assert page.inner_text("#console-found") == "11 of 60 lines"
    printer.send((60, "line 500"), (61, "other"))
    until(lambda: visible.count() == 12)


def test_a_death_begins_with_its_last_lines(server, open_page, until):
    printer = Printer(server)
    printer.send((60, "Traceback (most recent call last):"), (61, "ValueError"), stream="stderr")
    body = {"status": "failed", "error": "ValueError"}
    assert server.post("/api/v1/runs/r/finish", body).status == 200
    page = open_page(f"{server.url}/runs/r", width=390)
    end = page.locator("#console-end .line")
    assert end.count() == 20 and end.last.inner_text().strip() == "ValueError"
    page.click("#console-all summary")
    until(lambda: page.locator("#console-lines .line").count() == 62)
    assert not page.locator("#console-end").is_visible()
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 390
