"""Points of any order become rows of the wire format. Tests are named after the numbers."""

from __future__ import annotations

import math
import random

import pytest

from memagent.importer import scalar_table
from memagent.importer.scalar_table import ScalarTable
from memagent.wire.fields import COLUMN_NAME


def make_table(points):
    table = ScalarTable()
    for point in points:
        table.add(*point)
    return table


def points_in(blocks):
    """Return (column, step, value) of all blocks, sorted."""
    return sorted(
        (name, step, value)
        for block in blocks
        for name in block
        if name not in ("step", "time_s")
        for step, value in zip(block["step"], block[name], strict=True)
        if value is not None
    )


def test_1_points_of_a_step_share_a_row_and_repeated_ones_have_their_own():
    points = [("a", 1, 5.0, 1.0), ("b", 1, 6.0, 2.0), ("a", 1, 7.0, 3.0), ("a", 2, 8.0, 4.0)]
    (block,) = make_table(points).blocks()
    assert block == {
        "step": [1, 1, 2],
        "time_s": [6.0, 7.0, 8.0],
        "a": [1.0, 3.0, 4.0],
        "b": [2.0, None, None],
    }


def test_2_rows_of_any_order_are_sorted_and_none_is_lost():
    chance = random.Random(1)
    points = [
        (f"s{chance.randrange(5)}", chance.randrange(50), 1.0, float(n)) for n in range(2_000)
    ]
    blocks = list(make_table(points).blocks())
    assert all(block["step"] == sorted(block["step"]) for block in blocks)
    assert points_in(blocks) == sorted((name, step, value) for name, step, _, value in points)


def test_3_blocks_are_bounded_whatever_the_steps(monkeypatch):
    monkeypatch.setattr(scalar_table, "BLOCK_CELLS", 100)
    monkeypatch.setattr(scalar_table, "ROW_VALUES", 20)
    points = [(f"s{n}", n, 1.0, 1.0) for n in range(200)]
    points += [(f"s{n}", 1_000, 1.0, 2.0) for n in range(200)]
    blocks = list(make_table(points).blocks())
    assert all(len(block["step"]) * (len(block) - 2) <= 100 for block in blocks)
    assert len(points_in(blocks)) == 400


def test_4_blocks_leave_out_what_an_earlier_import_had():
    points = [("a", step, float(step), float(step)) for step in range(10)]
    known = make_table(points[:6])
    table = make_table([*points, ("b", 3, 3.0, 0.0)])
    assert table.extends(known.extents())
    assert points_in(table.blocks(known.extents())) == [
        *(("a", step, float(step)) for step in range(6, 10)),
        ("b", 3, 0.0),
    ]


@pytest.mark.parametrize(
    "points",
    [
        [("a", 1, 1.0, 1.0)],
        [("a", 1, 1.0, 1.0), ("a", 2, 2.0, 9.0)],
        [("a", 1, 1.0, 1.0), ("a", 3, 2.0, 2.0)],
        [("b", 1, 1.0, 1.0), ("b", 2, 2.0, 2.0)],
    ],
)
def test_4_fewer_or_other_points_do_not_extend(points):
    known = make_table([("a", 1, 1.0, 1.0), ("a", 2, 2.0, 2.0)])
    assert not make_table(points).extends(known.extents())


def test_columns_are_valid_and_unique_whatever_the_names():
    names = [
        "",
        "step",
        "time_s",
        "1",
        "a b",
        "a\0b",
        "a\nb",
        "a_b",
        "x" * 500,
        "x" * 501,
        "é",
        "/",
    ]
    table = make_table([(name, 1, 1.0, float(n)) for n, name in enumerate(names)])
    (block,) = table.blocks()
    columns = [name for name in block if name not in ("step", "time_s")]
    assert len(columns) == len(names) and all(map(COLUMN_NAME.fullmatch, columns))
    assert table.renamed["a\0b"] == "a_b" and table.renamed["a\nb"] == "a_b_2"


@pytest.mark.parametrize("step", [-1, 2**53, 2**70])
def test_steps_that_cannot_be_stored_are_counted(step):
    table = make_table([("a", step, 1.0, 1.0)])
    assert len(table) == 0 and table.left_out == {"points with a negative or huge step": 1}


def test_points_beyond_the_limits_are_counted(monkeypatch):
    monkeypatch.setattr(scalar_table, "POINT_LIMIT", 3)
    table = make_table([("a", step, 1.0, 1.0) for step in range(5)] + [("x" * 2_000, 1, 1.0, 1.0)])
    assert len(table) == 3 and table.left_out == {"points after the first 3": 3}
    table = make_table([("x" * 2_000, 1, 1.0, 1.0)])
    assert table.left_out == {"points of names over 1,000 characters": 1}


def test_a_time_that_is_none_is_that_of_the_point_before():
    table = make_table([("a", 1, 5.0, 1.0), ("a", 2, math.nan, 1.0), ("a", 3, -1.0, 1.0)])
    (block,) = table.blocks()
    assert block["time_s"] == [5.0, 5.0, 5.0] and table.last_time_s == 5.0
