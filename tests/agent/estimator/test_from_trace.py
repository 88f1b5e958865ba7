"""Workspaces of cuBLAS in an estimate, by traces written by hand."""

from __future__ import annotations

import pytest

from memagent.estimator.devices import CUBLAS_HANDLES, CUBLASLT_WORKSPACE_BYTES
from memagent.estimator.from_trace import estimate_of
from memagent.estimator.trace.events import MemoryEvent, Trace
from memagent.units import MIB

HANDLE_BYTES = 8 * MIB


def workspace_of(version: str, *operators: tuple[str, str]) -> int:
    """Return the workspace between two steps that allocate a product for each (phase, operator)."""
    events = []
    for step in range(2):
        for phase, operator in operators:
            index = len(events)
            for kind in ("alloc", "free"):
                facts = (phase, step, "activations")
                events.append(
                    MemoryEvent(kind, index + 1, 512, index, *facts, op=f"aten::{operator}")
                )
    trace = Trace(tuple(events), 2, 0, 0, "cuda", torch_version=version)
    estimate = estimate_of(trace, workspace_bytes=CUBLAS_HANDLES * HANDLE_BYTES)
    return estimate.components["workspace"]


def test_a_cache_that_must_be_released_fits_only_beside_the_largest_context():
    """20 tensors of 9 MiB leave 20 MiB of their segments unused; 30 more are cached."""
    sizes = [30, *[9] * 20, 41]
    events = [
        MemoryEvent("alloc", index + 1, size * MIB, index, "forward", 0, "activations")
        for index, size in enumerate(sizes)
    ]
    events.insert(21, MemoryEvent("free", 1, 30 * MIB, 0, "forward", 0, "activations"))

    def estimate(limit: int):
        trace = Trace(tuple(events), 1, 0, 0, "cuda", torch_version="2.14.1")
        return estimate_of(
            trace,
            limit_bytes=limit * MIB,
            context_bytes=10 * MIB,
            context_interval=(5 * MIB, 15 * MIB),
        )

    assert estimate(258).outcome == "fits" and estimate(258).gives_back
    assert "needs 232 MiB, without the cache that torch releases," in estimate(258).verdict()
    assert estimate(255).outcome == "tight" and estimate(255).intervals["allocated"][1] < 240 * MIB
    assert estimate(225).outcome == "won't fit"


@pytest.mark.parametrize("version", ["2.8.0", "2.11.0+cu130", "2.12.0", "2.14.1"])
def test_each_thread_that_multiplies_has_a_workspace(version):
    assert workspace_of(version, ("forward", "mm")) == HANDLE_BYTES
    assert workspace_of(version, ("forward", "mm"), ("backward", "bmm")) == 2 * HANDLE_BYTES
    assert workspace_of(version, ("forward", "relu")) == 0


@pytest.mark.parametrize(
    ("version", "own"), [("2.8.0", 0), ("2.9.1", 1), ("2.11.0+cu130", 1), ("2.12.0", 0)]
)
def test_a_product_with_a_bias_has_one_more_in_some_versions(version, own):
    lt_bytes = own * CUBLASLT_WORKSPACE_BYTES
    forward, backward = ("forward", "addmm"), ("backward", "mm")
    assert workspace_of(version, forward) == HANDLE_BYTES + lt_bytes
    assert workspace_of(version, forward, backward) == 2 * HANDLE_BYTES + lt_bytes
    recomputed = ("backward", "addmm")
    both = workspace_of(version, forward, recomputed)
    assert both == 2 * (HANDLE_BYTES + lt_bytes)
