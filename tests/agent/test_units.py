from __future__ import annotations

import math

import pytest

from memagent.errors import SettingError
from memagent.units import format_bytes, format_duration, format_step_time, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1024", 1024),
        ("24GiB", 24 * 2**30),
        ("1.5g", 3 * 2**29),
        ("80GB", 80 * 10**9),
        (" 512 MiB ", 2**29),
        (7, 7),
    ],
)
def test_it_parses_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "0", "12 parsecs", "1e3", "nan"])
def test_it_rejects_invalid_sizes(text):
    with pytest.raises(SettingError):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**20, "1.0 MiB"), (1.21 * 2**30, "1.21 GiB"), (-3 * 2**20, "-3.0 MiB"),
     (None, "–"), (250 * 2**30, "250 GiB")],
)  # fmt: skip
def test_it_formats_sizes(size, text):
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (8.2, "8 s"),
        (89, "89 s"),
        (1500, "25 min"),
        (11400, "3 h 10 min"),
        (7200, "2 h"),
        (187200, "2 d 4 h"),
        (None, "–"),
        (math.inf, "–"),
    ],
)
def test_it_writes_durations_in_at_most_two_units(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.00012, "0.12 ms"), (0.1334, "133 ms"), (3.42, "3.42 s"), (240, "4 min"), (None, "–")],
)
def test_it_writes_the_time_of_a_step_in_three_digits(seconds, text):
    assert format_step_time(seconds) == text
