"""Traces under the CPU's rules: to the byte, the peaks of the same steps on real tensors."""

from __future__ import annotations

import pytest
import torch

from memagent.estimator.trace.tracing import record_trace
from tests.agent.estimator.trace.models import Lstm, cases, ids, word_loss
from tests.agent.estimator.trace.real_steps import real_trace, retained_bytes

CASES = cases()


@pytest.mark.parametrize("name", CASES)
def test_it_finds_the_peaks_of_a_real_run_to_the_byte(name):
    factory, inputs, arguments = CASES[name]

    real = real_trace(factory, inputs, **arguments).summary()
    traced = record_trace(factory(), inputs, device="cpu", **arguments).summary()

    assert traced.peak_bytes == real.peak_bytes
    assert traced.phase_peak_bytes == real.phase_peak_bytes
    assert traced.warmup_peak_bytes == real.warmup_peak_bytes
    assert traced.components == real.components


@pytest.mark.parametrize("name", ["mlp", "gpt tied", "gpt recomputed", "resnet"])
def test_it_records_the_same_allocations_as_a_real_run(name):
    factory, inputs, arguments = CASES[name]

    def born(trace):
        return [
            (event.size_bytes, event.phase, event.step)
            for event in trace.events
            if event.kind == "alloc"
        ]

    real = born(real_trace(factory, inputs, **arguments))
    assert born(record_trace(factory(), inputs, device="cpu", **arguments)) == real
    assert len(real) > 20


@pytest.mark.parametrize("enabled", [True, False], ids=["onednn", "without onednn"])
def test_it_finds_the_peaks_of_an_lstm_to_the_byte(enabled):
    torch._C._set_mkldnn_enabled(enabled)
    try:
        real = real_trace(Lstm, ids(), targets=ids(), loss=word_loss).summary()
        traced = record_trace(Lstm(), ids(), targets=ids(), loss=word_loss, device="cpu").summary()
    finally:
        torch._C._set_mkldnn_enabled(True)
    assert traced.phase_peak_bytes == real.phase_peak_bytes


def test_it_gives_the_same_for_a_factory_as_for_a_real_model():
    factory, inputs, arguments = CASES["gpt tied"]
    assert (
        record_trace(factory, inputs, **arguments).summary()
        == record_trace(factory(), inputs, **arguments).summary()
    )


def test_it_frees_what_it_allocates():
    factory, inputs, arguments = CASES["gpt bf16"]
    trace = record_trace(factory, inputs, **arguments)
    state = sum(
        event.size_bytes
        for event in trace.events
        if event.kind == "alloc" and event.component in ("parameters", "buffers", "optimizer_state")
    )
    assert retained_bytes(trace) == state
