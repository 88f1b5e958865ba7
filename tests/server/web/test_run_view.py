"""Flame graphs and texts of the run page."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from memagent.units import GIB, MIB
from memagent_server.web import run_view
from memagent_server.web.run_view import ROW_HEIGHT, WIDTH, flame


def a_stack(size_bytes, *frames):
    return {"frames": list(frames), "size_bytes": size_bytes, "blocks": 1}


def test_a_frame_is_as_wide_as_its_allocations():
    blocks, height = flame([a_stack(3 * MIB, "main", "train"), a_stack(MIB, "main", "evaluate")])
    results = {block.title.partition(":")[0]: (block.x, block.y, block.width) for block in blocks}
    assert results == {
        "main": (0.0, 0, WIDTH),
        "train": (0.0, ROW_HEIGHT, 0.75 * WIDTH),
        "evaluate": (0.75 * WIDTH, ROW_HEIGHT, 0.25 * WIDTH),
    }
    assert height == 2 * ROW_HEIGHT
    assert "train: 3.0 MiB (75 %)" in {block.title for block in blocks}


def test_frames_narrower_than_a_pixel_are_omitted():
    blocks, _ = flame([a_stack(10_000 * MIB, "large"), a_stack(1, "small")])
    assert [block.title.partition(":")[0] for block in blocks] == ["large"]


def test_names_are_truncated_and_complete_in_the_title():
    [block] = flame([a_stack(MIB, "f" * 400)])[0]
    assert len(block.text) < 160 and block.text.endswith("…") and "f" * 400 in block.title


def test_no_stacks_draw_nothing():
    assert flame([]) == ([], 0)
    assert flame([a_stack(1, str(number)) for number in range(2_000)]) == ([], 0)


def test_stacks_of_any_depth_are_drawn():
    blocks, height = flame([a_stack(MIB, *map(str, range(500)))])
    assert len(blocks) * ROW_HEIGHT == height < 1000


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
    ("peaks", "sentence"),
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
def test_imbalance_is_named(peaks, sentence):
    assert run_view.imbalance([stream(rank, peak) for rank, peak in enumerate(peaks)]) == sentence


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
