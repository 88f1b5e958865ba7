"""The capture of a process's streams: they stay what they are, and nothing raises."""

from __future__ import annotations

import io
import os
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


@pytest.mark.parametrize("stream", [None, object(), io.StringIO()])
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
