"""Texts about the balance of ranks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from memagent.units import GIB
from memagent_server.web import run_view


def stream(rank, peak=None, kind="cuda", samples=5, limit=80 * GIB):
    return SimpleNamespace(
        rank=rank,
        device=f"D{rank}",
        name="H100",
        kind=kind,
        samples=samples,
        peak_bytes=peak,
        limit_bytes=limit,
    )


@pytest.mark.parametrize(
    ("peaks", "said"),
    [
        ([], ""),
        ([GIB], ""),
        ([100 * GIB, 102 * GIB], "Even: the peaks of 2 ranks are within 2 % of each other."),
        ([GIB, GIB, GIB], "Even: the peaks of 3 ranks are within 1 % of each other."),
        ([GIB, 2 * GIB], "Uneven: rank 1 peaks at 2.00 GiB, 100 % above rank 0."),
        (
            [4 * GIB, 3 * GIB, 6 * GIB],
            "Uneven: rank 2 peaks at 6.00 GiB, 50 % above the median of 3 ranks; rank 1 at 3.00 GiB.",
        ),
    ],
)
def test_imbalance_is_named(peaks, said):
    assert run_view.imbalance([stream(rank, peak) for rank, peak in enumerate(peaks)]) == said


def test_ranks_without_samples_are_not_counted():
    assert run_view.imbalance([stream(0, GIB), stream(1, None), stream(2, GIB)]).startswith(
        "Even: the peaks of 2 ranks"
    )


def test_only_comparable_ranks_are_compared():
    one_rank = [stream(0), stream(0, kind="host")]
    assert run_view.compared_ranks(one_rank) == []
    with_hosts = [stream(1), stream(0), stream(0, kind="host"), stream(2, samples=0)]
    assert [(item.rank, item.kind) for item in run_view.compared_ranks(with_hosts)] == [
        (0, "cuda"),
        (1, "cuda"),
    ]


def test_a_row_has_share_headroom_and_difference_from_the_median():
    first, _, last = run_view.rank_rows(
        [stream(0, 20 * GIB), stream(1, 40 * GIB), stream(2, None, limit=None)]
    )
    assert (first.peak, first.share, first.headroom, first.relative) == (
        "20.00 GiB",
        "25 %",
        "60.00 GiB",
        "−10.00 GiB",
    )
    assert (last.share, last.headroom, last.relative) == ("–", "–", "–")
