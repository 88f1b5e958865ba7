"""The lines of a run's batches: changes, the rate, ranks, secrets, errors."""

from __future__ import annotations

from memagent.console.capture import ConsoleCapture
from memagent.console.log import ConsoleLog


class Console:
    """A capture that is written to directly, and its log with a clock of its own."""

    def __init__(self, *, is_live: bool = True, **environ: str) -> None:
        self.now = 0.0
        self.capture = ConsoleCapture()
        self.environ = environ
        self.log = ConsoleLog(
            self.capture, is_live=is_live, environ=environ, monotonic=lambda: self.now
        )

    def texts(self, *, is_last: bool = False) -> list[str]:
        return [line.text for line in self.log.take(is_last=is_last)]

    def write(self, text: str) -> None:
        self.capture.add("stdout", text)


def test_1_lines_are_sent_as_they_change():
    console = Console()
    console.write("a\nb")
    assert console.texts() == ["a", "b"] and console.texts() == []
    console.write("c\nd")
    assert console.texts() == ["bc", "d"]


def test_1_after_a_burst_the_newest_are_sent_and_the_others_when_there_is_room():
    console = Console()
    console.write("x" * 100 + "\n")
    for number in range(3_000):
        console.write(f"{number:068}\n")
    first = console.texts()
    assert len(first) == 655
    console.now = 1.0
    console.write("new\n")
    console.write("newer\n")
    assert console.texts()[-2:] == ["new", "newer"]
    console.now = 2.0
    for number in range(1_000):
        console.write(f"{number:068}\n")
    sent = console.texts()
    assert len(sent) < 100 and sent[-1] == f"{999:068}"
    rest = console.texts(is_last=True)
    assert len(sent) + len(rest) == 655


def test_2_another_rank_sends_its_last_lines_only():
    console = Console(is_live=False)
    console.write("a\n")
    assert console.texts() == []
    assert console.texts(is_last=True) == ["a"]


def test_3_secrets_are_masked():
    console = Console(MY_API_KEY="swordfish99", SHORT_TOKEN="a", PATH="/usr/bin/python")
    console.write("{'api_key': 'abc', 'lr': 0.1} token=xyz\nthe key swordfish99, a /usr/bin/python")
    assert console.texts() == [
        "{'api_key': '***', 'lr': 0.1} token=***",
        "the key ***, a /usr/bin/python",
    ]


def test_3_a_secret_that_the_script_adds_to_its_environment_is_masked():
    console = Console()
    console.write("swordfish99\n")
    assert console.texts() == ["swordfish99"]
    console.environ["MY_API_KEY"] = "swordfish99"
    console.write("swordfish99, printed in par")
    console.write("ts: sword")
    console.write("fish99")
    assert console.texts() == ["***, printed in parts: ***"]


def test_long_lines_and_undecodable_bytes_are_sendable():
    console = Console()
    console.write("y" * 10_000 + "\n" + "name \udc80")
    long, name = console.texts()
    assert len(long) == 2_000 and long.endswith("…") and name == "name \\udc80"


def test_the_traceback_of_an_error_and_the_text_of_an_exit_are_added():
    console = Console()
    try:
        raise ValueError("boom")
    except ValueError as error:
        console.log.add_error(error)
    console.log.add_error(SystemExit("bad arguments"))
    console.log.add_error(SystemExit(3))
    assert console.texts()[0] == "Traceback (most recent call last):"
    console.write("")
    lines = [line.text for line in console.capture.screen.lines.values()]
    assert lines[-2:] == ["ValueError: boom", "bad arguments"]


def test_a_run_after_another_begins_with_its_own_lines():
    console = Console()
    console.write("first\n")
    console.log.close(is_over=True)
    later = ConsoleLog(console.capture, is_live=True, environ={})
    console.write("second\n")
    assert [line.text for line in later.take()] == ["second"]


class Counter:
    step = 7


def test_the_end_of_a_run_leaves_the_steps_of_another_that_shares_its_console():
    capture = ConsoleCapture()
    first = ConsoleLog(capture, is_live=True, environ={})
    capture.sampler = Counter()
    second = ConsoleLog(capture, is_live=True, environ={})
    first.close(is_over=False)
    capture.add("stdout", "x")
    assert [line.step for line in second.take()] == [7]
    second.close(is_over=False)
    assert capture.sampler is None
