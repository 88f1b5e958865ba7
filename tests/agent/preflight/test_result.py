"""The sums of a preflight, and its verdict."""

from __future__ import annotations

from memagent.preflight import DeviceNeed, Preflight, TaskResult

GIB = 2**30
NEED = DeviceNeed(
    device="gpu",
    held_bytes=15 * GIB,
    limit_bytes=24 * GIB,
    others_bytes=GIB,
    optimizer_state_bytes=2 * GIB,
    gradients_bytes=GIB,
    eval_bytes=3 * GIB,
    checkpoint_bytes=GIB // 2,
)


def changed(**values) -> DeviceNeed:
    from dataclasses import replace

    return replace(NEED, **values)


def test_the_need_is_what_will_be_held_plus_the_largest_task():
    assert NEED.needed_bytes == 21 * GIB and NEED.fits is True
    assert changed(step_bytes=5 * GIB).needed_bytes == 23 * GIB
    assert changed(eval_bytes=None).needed_bytes == int(18.5 * GIB)


def test_the_verdict_is_one_line():
    assert Preflight(0, (NEED,)).verdict() == (
        "preflight: eval needs 3.00 GiB more, checkpoint needs 512 MiB more, "
        "optimizer state 2.00 GiB: 21.00 GiB of 24.00 GiB"
    )


def test_the_verdict_warns_if_it_will_not_fit():
    result = Preflight(0, (changed(eval_bytes=7 * GIB),))
    assert result.fits is False and result.verdict().startswith(
        "WARNING: preflight: this will not fit: eval needs 7.00"
    )


def test_the_verdict_says_if_it_fits_only_without_gradients():
    tight = changed(gradients_bytes=4 * GIB)
    result = Preflight(0, (tight,))
    assert result.fits is True
    assert result.verdict().endswith(
        "if gradients (4.00 GiB) are kept during evaluation, it will not fit"
    )


def test_a_task_that_ran_out_does_not_fit_and_its_size_is_a_lower_bound():
    result = Preflight(
        0,
        (changed(limit_bytes=None),),
        (TaskResult("eval", {"gpu": 3 * GIB}, ran_out=True, error="OOM"),),
    )
    assert result.fits is False and "eval needs at least 3.00 GiB more" in result.verdict()


def test_a_failed_task_has_a_reason_and_no_size():
    failed = TaskResult("eval", {"gpu": GIB}, error="TypeError: no")
    result = Preflight(0, (changed(eval_bytes=None),), (failed,))
    assert not failed.is_conclusive and result.fits is True
    assert result.verdict().splitlines()[1] == "  eval could not be tried: TypeError: no"


def test_the_verdict_names_other_devices_that_will_not_fit():
    host = DeviceNeed(device="host", held_bytes=GIB, limit_bytes=2 * GIB, checkpoint_bytes=4 * GIB)
    result = Preflight(0, (NEED, host))
    assert (
        result.fits is False
        and "host: this will not fit: checkpoint needs 4.00 GiB more" in result.verdict()
    )
    assert len(Preflight(0, (NEED, changed(device="host"))).verdict().splitlines()) == 1


def test_without_a_limit_the_fit_is_unknown():
    assert Preflight(0, (changed(limit_bytes=None),)).fits is None


def test_the_hint_is_the_larger_of_evaluation_and_checkpoint():
    data = Preflight(
        0, (NEED, DeviceNeed(device="host", held_bytes=1, limit_bytes=None)), ()
    ).to_data()
    assert data["eval_bytes"] == {"gpu": 3 * GIB}
    assert data["optimizer_state_bytes"] == {"gpu": 2 * GIB, "host": 0}
