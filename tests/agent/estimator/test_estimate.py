"""The result of every estimator: limits, intervals and what follows from them."""

from __future__ import annotations

import pytest

from memagent.estimator.estimate import Estimate
from memagent.wire.codec import decode, encode
from memagent.wire.messages import PredictionMessage

GB = 10**9


def estimate_with(**changes: object) -> Estimate:
    """60 GB of tensors (58 to 63), 70 on the device (66 to 76), 1 of it the context."""
    defaults: dict[str, object] = {
        "peak_reserved_bytes": 69 * GB,
        "peak_device_bytes": 70 * GB,
        "intervals": {"allocated": (58 * GB, 63 * GB), "device": (66 * GB, 76 * GB)},
        "components": {"context": GB},
    }
    return Estimate(
        **{"method": "trace", "peak_allocated_bytes": 60 * GB, "components": {}}
        | defaults
        | changes
    )


@pytest.mark.parametrize(("limit", "probability"), [(66, 0.05), (70, 0.5), (76, 0.95)])
def test_it_takes_the_interval_of_the_device_for_the_5th_and_95th_percentile(
    limit: int, probability: float
) -> None:
    assert estimate_with(limit_bytes=limit * GB).fit_probability == pytest.approx(probability)


def test_only_tensors_and_context_count_if_the_cache_is_released() -> None:
    assert estimate_with(
        limit_bytes=64 * GB, fits_by_replay=True, gives_back=True
    ).fit_probability == pytest.approx(0.95)
    assert estimate_with(limit_bytes=64 * GB, fits_by_replay=False).fit_probability < 0.05


def test_a_context_that_was_not_measured_counts_by_its_end_on_the_safe_side() -> None:
    context = {"context_interval": (GB // 2, 3 * GB)}
    assert estimate_with(limit_bytes=int(58.4 * GB), **context).surely_too_large
    assert not estimate_with(limit_bytes=int(58.7 * GB), **context).surely_too_large
    released = {"fits_by_replay": True, "gives_back": True}
    assert estimate_with(limit_bytes=65 * GB, **released).outcome == "fits"
    assert estimate_with(limit_bytes=65 * GB, **released, **context).outcome == "tight"
    assert estimate_with(limit_bytes=66 * GB, **released, **context).outcome == "fits"


def test_it_is_surely_too_large_only_if_no_cache_could_help() -> None:
    assert estimate_with(limit_bytes=58 * GB).surely_too_large
    assert not estimate_with(
        limit_bytes=60 * GB
    ).surely_too_large  # the lower end for tensors and the context, 59, is below
    assert estimate_with(limit_bytes=60 * GB).outcome == "won't fit"


@pytest.mark.parametrize(
    ("limit", "outcome", "fits"),
    [(80, "fits", True), (76, "fits", True), (75, "tight", None), (65, "won't fit", False)],
)
def test_it_fits_only_where_the_whole_interval_does(limit: int, outcome: str, fits: bool) -> None:
    estimate = estimate_with(limit_bytes=limit * GB)
    assert (estimate.outcome, estimate.fits) == (outcome, fits)
    assert estimate.verdict().startswith(f"{outcome}: needs ")
    assert estimate.to_dict()["verdict"] == outcome


def test_it_never_fits_without_an_interval_or_against_the_simulated_allocator() -> None:
    assert estimate_with(limit_bytes=200 * GB, intervals={}).outcome == "tight"
    assert estimate_with(limit_bytes=60 * GB, intervals={}).outcome == "won't fit"
    assert estimate_with(limit_bytes=80 * GB, fits_by_replay=False).outcome == "tight"
    assert estimate_with().outcome is None


def test_a_change_is_enough_if_the_interval_that_it_leaves_fits() -> None:
    estimate = estimate_with(limit_bytes=70 * GB)
    assert estimate.fits_with(10 * GB) and not estimate.fits_with(5 * GB)
    assert not estimate_with().fits_with(69 * GB)


def test_it_has_no_probability_without_a_limit_or_an_interval() -> None:
    assert estimate_with().fit_probability is None and estimate_with().fits is None
    assert estimate_with(limit_bytes=GB, intervals={}).fit_probability is None


def test_it_is_certain_if_the_interval_is_a_point() -> None:
    host = estimate_with(peak_device_bytes=None, intervals={"allocated": (60 * GB, 60 * GB)})
    assert [
        Estimate(**{**vars(host), "limit_bytes": size}).fit_probability
        for size in (59 * GB, 60 * GB)
    ] == [0.0, 1.0]


def test_it_sends_all_levels_with_their_intervals() -> None:
    estimate = estimate_with(
        limit_bytes=80 * GB, phases={"forward": 60 * GB}, terms={"weight_casts": GB}
    )
    message = decode(encode(estimate.to_message(rank=1, device="GPU-0")), PredictionMessage)
    assert (
        message.peak_allocated_bytes,
        message.peak_reserved_bytes,
        message.peak_device_bytes,
    ) == (60 * GB, 69 * GB, 70 * GB)
    assert (
        message.intervals == estimate.intervals
        and message.phases == estimate.phases
        and message.terms == estimate.terms
    )
    assert estimate.to_dict()["intervals"] == {
        "allocated": [58 * GB, 63 * GB],
        "device": [66 * GB, 76 * GB],
    }
