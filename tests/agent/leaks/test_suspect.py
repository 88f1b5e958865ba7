"""Suspects of one line: what it keeps in all."""

from __future__ import annotations

from memagent.leaks.suspect import build_suspect, rank_suspects, with_sums
from memagent.wire.messages import Suspect


def suspect(line: int, rate: float | None, confidence: float = 1.0) -> Suspect:
    return build_suspect("train.py", line, None, "teacher: dict of 18", "dict", rate, confidence)


def test_weights_and_biases_of_one_line_count_together() -> None:
    """Its confidence is that of the surest part, here the small one."""
    (first,) = rank_suspects(with_sums([suspect(5, 130_000, 0.6), suspect(5, 461)]))

    assert (first.bytes_per_step, first.confidence) == (130_461, 1.0)


def test_parts_that_share_memory_count_once() -> None:
    views = [suspect(5, 300), suspect(5, 200), suspect(7, 100)]

    rates = [item.bytes_per_step for item in with_sums(views, growth_bytes_per_step=350)]

    assert rates == [350, 350, 100]


def test_an_unknown_rate_stays_unknown() -> None:
    assert with_sums([suspect(5, None)])[0].bytes_per_step is None
