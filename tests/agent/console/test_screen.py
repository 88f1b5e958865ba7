"""Lines of a console: ends, progress bars, escapes, limits, keys."""

from __future__ import annotations

import pytest

from memagent.console.screen import Screen
from memagent.wire.console import MAX_CONSOLE_SIZE


def lines_of(*writes: tuple[str, str]) -> list[tuple[str, str]]:
    screen = Screen()
    for stream, text in writes:
        screen.write(stream, 0, 0.0, text)
    return [(line.stream, line.text) for line in screen.lines.values()]


def texts_of(*texts: str) -> list[str]:
    return [text for _, text in lines_of(*(("stdout", text) for text in texts))]


@pytest.mark.parametrize(
    ("writes", "lines"),
    [
        (["a", "\n", "b"], ["a", "b"]),
        (["a\n\nb\n"], ["a", "", "b"]),
        (["one\r\ntwo\r\n"], ["one", "two"]),
        (["  0%", "\r 50%", "\r100%\n", "done\n"], ["100%", "done"]),
        (["12\b\b34"], ["34"]),
        (["\x1b[31mred\x1b[0m \x1b]0;title\x07end\0"], ["red end"]),
        (["tab\tstays"], ["tab\tstays"]),
    ],
)
def test_1_and_2_lines_end_and_are_replaced_as_on_a_terminal(writes, lines):
    assert texts_of(*writes) == lines


def test_1_bars_below_each_other_are_a_line_each():
    inner = [text for n in range(5) for text in ("\n", f"\rinner {n}", "\x1b[A")]
    assert texts_of("\router 0", *inner, "\router 1", "\n\n", "after") == [
        "outer 1",
        "inner 4",
        "after",
    ]


def test_3_a_bar_goes_on_below_what_the_other_stream_has_printed():
    assert lines_of(
        ("stderr", "\r10%"), ("stdout", "loss 1\n"), ("stderr", "\r20%"), ("stderr", "\r30%")
    ) == [("stderr", "10%"), ("stdout", "loss 1"), ("stderr", "30%")]


def test_4_the_newest_lines_are_kept():
    screen = Screen()
    for number in range(5_000):
        screen.write("stdout", number, 0.0, f"line {number}\n")
    lines = list(screen.lines.values())
    assert sum(line.size for line in lines) <= MAX_CONSOLE_SIZE
    assert lines[-1].text == "line 4999" and lines[-1].step == lines[-1].number == 4999
    assert lines[0].text == f"line {5000 - len(lines)}"
    screen.write("stdout", 0, 0.0, "x" * 1_000_000)
    assert len(list(screen.lines.values())[-1].text) == 4_000


def test_5_lines_of_a_private_key_are_masked():
    key = "-----BEGIN RSA PRIVATE KEY-----\nMIIabc\nMIIdef\n-----END RSA PRIVATE KEY-----\nafter"
    assert texts_of(key) == ["***", "***", "***", "***", "after"]


def test_5_the_first_line_of_a_key_may_come_in_parts():
    writes = [
        "-----BEGIN ",
        "PRIVATE KEY-----",
        "\nMII",
        "abc",
        "\n-----END PRIVATE KEY-----\nafter",
    ]
    assert texts_of(*writes) == ["***", "******", "***", "after"]


def test_5_a_text_that_mentions_a_key_hides_no_more_than_one():
    lines = texts_of("expected -----BEGIN PRIVATE KEY-----\n" + "loss 1\n" * 200)
    assert lines[:128] == ["***"] * 128 and lines[128:] == ["loss 1"] * 73
