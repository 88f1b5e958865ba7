"""Values of chosen columns as text."""

from __future__ import annotations

import pytest

from memagent_server.web.column_text import column_text, column_time


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("step", 1234, "1,234"),
        ("total_steps", None, "–"),
        ("peak_ratio", 0.993855, "99.4 %"),
        ("peak_bytes", 3 * 2**30, "3.00 GiB"),
        ("status", "lost_contact", "lost contact"),
        ("status", "a status of tomorrow", "a status of tomorrow"),
        ("tags", ["a", "b"], "a, b"),
        ("tags", [], "–"),
        ("config.seed", 10000, "10000"),
        ("config.lr", 0.0003, "0.0003"),
        ("config.amp", True, "yes"),
        ("config.betas", [0.9, 0.95], "[0.9, 0.95]"),
        ("scalar.loss", 2.1345678, "2.135"),
        ("scalar.nan", float("nan"), "nan"),
        ("created_at", 0.0, "1970-01-01 00:00 UTC"),
        ("name", "<b>", "<b>"),
    ],
)
def test_a_value_is_shown_as_people_write_it(name, value, text):
    assert column_text(name, value) == text


def test_only_times_are_times():
    assert column_time("created_at", 0.0) == "1970-01-01T00:00:00.000Z"
    assert column_time("created_at", None) is None
    assert column_time("step", 5) is None
