"""The capture of a process's streams: they stay what they are, and nothing raises."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading

import pytest

from memagent.console import capture as module
from memagent.console.capture import acquire_capture, active_capture, release_capture


@pytest.fixture
def streams(monkeypatch):
    """Return a function that puts real text streams in the place of pytest's for this test."""

    def replace():
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        return out, err

    yield replace
    while active_capture() is not None:
        release_capture()


def texts() -> list[str]:
    return [line.text for line in active_capture().drain().lines.values()]


def test_it_notes_what_is_written_and_passes_it_on(streams):
    out, err = streams()
    acquire_capture()
    print("hello", 1)
    print("warning", file=sys.stderr)
    assert out.write("four") == 4
    out.flush()
    assert out.buffer.getvalue() == b"hello 1\nfour"
    assert sys.stdout is out and texts() == ["hello 1", "warning", "four"]
    release_capture()
    assert "write" not in vars(out) and "write" not in vars(err)


def test_its_users_share_it_until_the_last_one_has_gone(streams):
    streams()
    first, second = acquire_capture(), acquire_capture()
    assert first is second
    release_capture()
    print("still")
    assert texts() == ["still"]
    release_capture()
    assert active_capture() is None


def test_an_error_of_the_stream_is_the_script_s(streams):
    out, _ = streams()
    acquire_capture()
    out.reconfigure(encoding="ascii")
    with pytest.raises(UnicodeEncodeError):
        print("é")
    out.close()
    with pytest.raises(ValueError, match="closed"):
        print("x")
    assert texts() == []


def test_it_leaves_a_wrapper_of_other_code_in_place(streams):
    out, _ = streams()
    acquire_capture()
    below = out.write
    out.write = lambda text: below(text.upper())
    print("a")
    release_capture()
    print("b")
    out.flush()
    assert out.buffer.getvalue() == b"A\nB\n"


class Unreadable:
    """A stream of other code, such as a proxy of one that is closed."""

    @property
    def write(self) -> object:
        raise ValueError("closed")


@pytest.mark.parametrize("stream", [None, object(), io.StringIO(), Unreadable()])
def test_it_does_without_a_stream_that_takes_no_attribute(streams, monkeypatch, stream):
    streams()
    monkeypatch.setattr(sys, "stdout", stream)
    acquire_capture()
    print("to stderr", file=sys.stderr)
    assert texts()[-1:] == ["to stderr"]


def test_it_drops_the_oldest_of_what_nobody_reads(streams):
    streams()
    capture = acquire_capture()
    for number in range(200_000):
        print(number)
    assert len(capture._queue) < 5_000
    lines = list(capture.drain().lines.values())
    assert [line.text for line in lines[-2:]] == ["199998", "199999"]
    # numbers count what was dropped
    assert lines[-1].number == 199_999


@pytest.mark.parametrize(("parts", "first"), [(["a", "b\n"], "ab"), (["\rx", "y"], "xy")])
def test_what_is_kept_of_it_begins_with_a_line(streams, parts, first):
    streams()
    capture = acquire_capture()
    for _ in range(10_000):
        for part in parts:
            sys.stdout.write(part)
    assert next(iter(capture.drain().lines.values())).text == first


def test_a_line_that_was_begun_before_does_not_go_on_with_a_later_one(streams):
    streams()
    capture = acquire_capture()
    sys.stdout.write("begun ")
    capture.drain()
    for _ in range(10_000):
        print("x")
    assert set(texts()) == {"begun ", "x"}


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a" * 100_000 + "\n", ["a" * 4_000]),
        ("b\n" + "a" * 100_000 + "\n", ["a" * 4_000]),
        ("a" * 100_000 + "\nb\n", ["", "b"]),
    ],
    ids=["a line", "the last line", "a line before the last"],
)
def test_a_huge_text_is_cut_at_a_line(streams, text, lines):
    streams()
    acquire_capture()
    sys.stdout.write(text)
    print("after")
    assert texts() == [*lines, "after"]


def test_one_object_for_both_streams_is_noted_once(streams, monkeypatch):
    out, _ = streams()
    monkeypatch.setattr(sys, "stderr", out)
    acquire_capture()
    print("once")
    assert texts() == ["once"]
    release_capture()
    assert "write" not in vars(out)


class Ringing:
    """A counter of steps during whose reading a signal arrives."""

    @property
    def step(self) -> int:
        signal.raise_signal(signal.SIGALRM)
        return 0


def test_what_a_signal_handler_raises_reaches_the_script(streams):
    streams()
    acquire_capture().sampler = Ringing()

    def ring(*_arguments: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(TimeoutError):
            print("x")
    finally:
        signal.signal(signal.SIGALRM, before)


def test_threads_may_write_at_the_same_time(streams):
    streams()
    acquire_capture()

    def write(name: str) -> None:
        for number in range(50):
            sys.stdout.write(f"{name} {number}\n")

    threads = [threading.Thread(target=write, args=(f"t{index}",)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(texts()) == sorted(f"t{i} {number}" for i in range(8) for number in range(50))


def test_a_forked_child_is_not_captured(streams):
    streams()
    acquire_capture()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        is_free = module.active_capture() is None and "write" not in vars(sys.stdout)
        os.write(write, b"free" if is_free else b"captured")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"free"
    os.close(read)
    os.close(write)
    print("parent")
    assert texts() == ["parent"]
