"""Tests of a column's values, on plain numbers."""

from __future__ import annotations

import math
import random

import msgspec
import pytest

from memagent_server.alerts.column_monitor import (
    MIN_SPIKE_HISTORY,
    WINDOW,
    ColumnCheck,
    ColumnMonitor,
)

NAN, INF = float("nan"), float("inf")


def steps_found(rule: ColumnCheck, values, seconds: float = 1.0) -> list[int]:
    monitor = ColumnMonitor(rule)
    findings = [monitor.update(step, step * seconds, value) for step, value in enumerate(values)]
    return [finding.step for finding in findings if finding is not None]


def rule(test: str, value: float = 0.0, for_s: float = 0.0) -> ColumnCheck:
    return ColumnCheck("x", "loss", test, value, for_s)


@pytest.mark.parametrize(
    ("of", "values", "steps"),
    [
        (rule("above", 5), [5, 5.1, 4, 6], [1, 3]),
        (rule("below", 5), [5, 4.9, 6], [1]),
        (rule("above", 5, for_s=3), [6, 6, 6, 6, 6, 1, 6, 6, 6, 6], [3, 4, 9]),
        (rule("above", 5, for_s=3), [6, None, NAN, 6, 6], [3, 4]),
        (rule("not_finite"), [1, NAN, INF, -INF, 2, None], [1, 2, 3]),
        (rule("above", 5), [INF, NAN, None], []),
        (rule("no_new_low", for_s=3), [9, 8, 8, 8, 8, 8, 7, 7, 7], [4, 5]),
        (rule("no_new_high", for_s=2), [1, 2, 2, 2, 3, NAN], [3]),
        (rule("no_new_low", 0.1, for_s=3), [10, 9.9, 9.8, 9.7, 8.9], [3]),
        (rule("no_new_low", for_s=3), [NAN, NAN, NAN, NAN, NAN], []),
    ],
)
def test_it_finds_the_steps(of, values, steps):
    assert steps_found(of, values) == steps


@pytest.mark.parametrize("seed", range(5))
def test_a_spike_is_found_in_noise_and_noise_is_no_spike(seed):
    noise = random.Random(seed)
    values = [3 * math.exp(-step / 300) + noise.gauss(0, 0.05) for step in range(1_000)]
    values[600] += 5
    assert steps_found(rule("spike", 10), values) == [600]


def test_a_spike_needs_a_past_and_a_constant_column_has_a_floor():
    assert steps_found(rule("spike", 10), [1.0] * (MIN_SPIKE_HISTORY - 1) + [50.0]) == []
    constant = [1.0] * (2 * WINDOW)
    assert steps_found(rule("spike", 10), [*constant, 1.000001, 1.1]) == [2 * WINDOW + 1]
    assert steps_found(rule("spike", 10), [*([0.0] * 40), 1e-9]) == [40]


@pytest.mark.parametrize("value", [NAN, INF, -INF, 1e308])
def test_facts_are_json(value):
    finding = ColumnMonitor(rule("not_finite" if not math.isfinite(value) else "above")).update(
        1, 1.0, value
    )
    msgspec.json.decode(msgspec.json.encode(finding.to_data()))
    assert not any(
        isinstance(item, float) and math.isnan(item) for item in finding.to_data().values()
    )
