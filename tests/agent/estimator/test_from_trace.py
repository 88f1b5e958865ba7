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
