"""The search for the largest batch that fits."""

from __future__ import annotations

import pytest

from memagent.cli.rehearse_view import batch_line, batch_sentence
from memagent.errors import RehearsalError, SettingError
from memagent.rehearsal.batch_search import BatchSearch, find_batch, next_batch, slot_of
from memagent.rehearsal.launch import Machine, cuda_card
from memagent.rehearsal.report import Rehearsal
from memagent.rehearsal.script import Script
from memagent.units import GIB, MIB

MACHINE = Machine(cuda_card("own:24GiB"))


def result_of(need: int | None, status: str = "stopped") -> Rehearsal:
    """Return the result of a batch that needs `need` bytes on the device; None if that is more."""
    reserved = (need or 0) - MACHINE.context_bytes
    if need is None or need > MACHINE.card.total_bytes:
        return Rehearsal(MACHINE, "oom", 0, GIB, GIB, error={"title": "Out of memory in step 1"})
    return Rehearsal(MACHINE, status, 2, reserved, reserved)


def search(first: int, fixed: int, slope: int) -> BatchSearch:
    slot = slot_of(Script("train.py", ["--batch", str(first)]), "batch", {})
    return find_batch(
        slot, lambda batch, _script: result_of(fixed + batch * slope), lambda *_result: None
    )


@pytest.mark.parametrize(
    ("arguments", "name", "expected"),
    [
        (["--batch-size", "8", "-x"], "--batch-size", ["--batch-size", "5", "-x"]),
        (["--batch_size=8"], "batch-size", ["--batch_size=5"]),
        (["train.batch=8"], "train.batch", ["train.batch=5"]),
        (["-b", "8"], "b", ["-b", "5"]),
        (["--data", "a/{n}.bin", "{n}"], "n", ["--data", "a/5.bin", "5"]),
        (["--epochs", "1"], "--batch", ["--epochs", "1", "--batch", "5"]),
    ],
)
def test_the_batch_is_an_option_or_a_placeholder(
    arguments: list[str], name: str, expected: list[str]
) -> None:
    assert slot_of(Script("train.py", arguments), name, {}).script_with(5).arguments == expected


def test_the_batch_is_a_variable_in_capitals() -> None:
    slot = slot_of(Script("train.py"), "BATCH", {"BATCH": "16"})
    assert slot.first == 16
    assert slot.script_with(5).variables == {"BATCH": "5"}


@pytest.mark.parametrize(
    ("arguments", "name", "sentence"),
    [
        (["--lr", "1"], "batch", "Write {batch} where the number belongs"),
        (["--batch", "auto"], "batch", "its value 'auto' is not a batch"),
        (["--batch", "0"], "batch", "its value '0' is not a batch"),
    ],
)
def test_a_batch_that_is_not_there_is_refused(
    arguments: list[str], name: str, sentence: str
) -> None:
    with pytest.raises(SettingError, match=sentence):
        slot_of(Script("train.py", arguments), name, {})


@pytest.mark.parametrize("first", [1, 8, 37, 500])
def test_it_finds_the_largest_batch_in_few_rehearsals(first: int) -> None:
    found = search(first, 4 * GIB, 300 * MIB)
    assert (found.largest, found.too_large, found.is_complete) == (68, 69, True)
    assert len(found.tried) <= 9
    assert found.result is found.tried[68]


def test_no_batch_may_fit() -> None:
    found = search(4, 25 * GIB, GIB)
    assert (found.largest, found.too_large) == (0, 1)
    assert batch_sentence(found) == "  largest batch      none: not even 1 fits"


def test_large_batches_are_found_to_a_sixty_fourth() -> None:
    found = search(1, 4 * GIB, MIB)
    assert found.too_large is not None
    assert found.too_large - found.largest <= found.largest / 64
    assert 20480 * 63 / 64 <= found.largest <= 20480


def test_a_batch_without_effect_ends_the_search() -> None:
    with pytest.raises(RehearsalError, match="isn't the script's batch"):
        search(1, 4 * GIB, 0)


def test_an_end_without_verdict_gives_what_is_known() -> None:
    slot = slot_of(Script("train.py", ["--batch", "8"]), "batch", {})
    lines = []
    found = find_batch(
        slot,
        lambda batch, _script: result_of(batch * GIB, "stopped" if batch < 16 else "interrupted"),
        lambda batch, result: lines.append(batch_line(batch, result, 4.2)),
    )
    assert (found.largest, found.is_complete) == (8, False)
    assert batch_sentence(found) == "  largest batch      at least 8"
    assert lines == [
        "batch       8   fits           8.00 GiB on the device   (4 s)",
        "batch      16   no verdict   interrupted, after 2 steps; up to there 16.00 GiB   (4 s)",
    ]
    assert found.to_dict()["tried"][0]["fits"]


def test_a_batch_that_does_not_fit_says_where() -> None:
    line = batch_line(9, result_of(None), 61)
    assert line == "batch       9   does not fit out of memory in step 1   (61 s)"


def test_the_search_starts_with_the_first_batch() -> None:
    assert next_batch({}, 0, 12) == 12
    assert next_batch({12: None}, 0, 12) == 6
    assert next_batch({12: 5}, 24, 12) == 24
