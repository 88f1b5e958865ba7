"""Flame graphs."""

from __future__ import annotations

from memagent.units import MIB
from memagent_server.web.run_view import ROW_HEIGHT, WIDTH, flame


def a_stack(size_bytes, *frames):
    return {"frames": list(frames), "size_bytes": size_bytes, "blocks": 1}


def test_a_frame_is_as_wide_as_its_allocations():
    blocks, height = flame([a_stack(3 * MIB, "main", "train"), a_stack(MIB, "main", "evaluate")])
    found = {block.title.partition(":")[0]: (block.x, block.y, block.width) for block in blocks}
    assert found == {
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


def test_stacks_of_any_depth_are_drawn():
    blocks, height = flame([a_stack(MIB, *map(str, range(500)))])
    assert len(blocks) * ROW_HEIGHT == height < 1000
