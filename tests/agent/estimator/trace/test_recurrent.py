"""An LSTM as cuDNN runs it, against what an H200 showed."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks.estimator import history
from benchmarks.estimator.truths import FOLDER
from memagent.estimator.trace import record_trace
from memagent.estimator.trace.recurrent import replace_lstm, reserve_bytes, workspace_bytes

# steps, batch, width, layers, bytes of an element, and the measured reserve and workspace
MEASURED = [
    (32, 4, 64, 2, 4, 361_728, 17_809_696),
    (256, 32, 1024, 4, 4, 774_897_920, 407_896_576),
    (256, 128, 1024, 4, 4, 3_099_590_912, 1_128_269_056),
    (256, 64, 1024, 4, 2, 778_043_648, 340_787_968),
]


@pytest.mark.parametrize(
    ("steps", "batch", "width", "layers", "element", "kept", "passing"), MEASURED
)
def test_reserve_and_workspace_are_those_of_cudnn(
    steps, batch, width, layers, element, kept, passing
):
    assert reserve_bytes(steps, batch, width, layers, element, dropout=True) == kept
    weights = layers * 8 * width * width
    known = workspace_bytes(steps, batch, width, width, weights, element)
    assert known == pytest.approx(passing, abs=2**19)


def traced_sizes(**settings):
    """Return the sizes of the buffers that a traced LSTM allocates in its first forward."""
    values = torch.zeros(4, 32, 64)
    trace = record_trace(
        lambda: torch.nn.LSTM(64, 64, 2, batch_first=True, **settings),
        values,
        targets=torch.zeros(1),
        loss=lambda output, _: output[0].sum(),
        device="cuda",
    )
    return [
        event.size_bytes
        for event in trace.events
        if event.kind == "alloc" and event.step == 0 and event.dtype == "uint8"
    ]


def test_a_traced_lstm_allocates_them():
    workspace = workspace_bytes(32, 4, 64, 64, 2 * 8 * 64 * 64 + 2 * 8 * 64, 4)
    plain = reserve_bytes(32, 4, 64, 2, 4, dropout=False)
    assert traced_sizes() == [workspace, plain, workspace, workspace]
    dropped = reserve_bytes(32, 4, 64, 2, 4, dropout=True)
    assert traced_sizes(dropout=0.1)[1:3] == [workspace, dropped]


def test_packed_sequences_and_projections_keep_torch_s_kernels():
    lstm = replace_lstm(lambda *arguments: arguments)
    packed = torch.zeros(3, 4), torch.ones(2), [], [], True, 1, 0.0, True, False
    assert lstm(*packed) == packed
    states = torch.zeros(1, 2, 3), torch.zeros(1, 2, 8)
    projected = torch.zeros(2, 2, 4), states, [], True, 1, 0.0, True, False, False
    assert lstm(*projected) == projected


def test_the_recorded_histories_have_these_sizes():
    rows = json.loads((FOLDER / "nvidia_h200.json").read_text())["cases"]
    (row,) = (row for row in rows if row["case"]["name"] == "lstm")
    (events,) = history.read(FOLDER / row["history"])["device_traces"]
    assert {361_728, 17_809_696} <= {event["size"] for event in events}
