"""Operators whose fake storages differ from the kernel's: each runs on real tensors, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from memagent.estimator.trace.corrections import onednn_lstm_workspace_bytes
from memagent.estimator.trace.tracing import record_trace
from tests.agent.estimator.trace.real_steps import real_trace

ROWS = torch.rand(32, 64)


class Scored(nn.Module):
    def __init__(self, score: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)
        self.score = score

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.score(self.inner(rows))


LOSSES = {
    "mse": lambda x: functional.mse_loss(x, torch.ones_like(x)),
    "mse, each": lambda x: functional.mse_loss(x, torch.ones_like(x), reduction="none").sum(),
    "mse, broadcast": lambda x: functional.mse_loss(x, torch.ones_like(x[:1]).expand_as(x)),
    "smooth l1": lambda x: functional.smooth_l1_loss(x, torch.ones_like(x), beta=0.5),
    "huber": lambda x: functional.huber_loss(x, torch.ones_like(x)),
    "soft margin": lambda x: functional.soft_margin_loss(x, torch.ones_like(x)),
    "bce": lambda x: functional.binary_cross_entropy(x.sigmoid(), torch.ones_like(x)),
    "bce, weighted": lambda x: functional.binary_cross_entropy(
        x.sigmoid(), torch.ones_like(x), torch.ones_like(x)
    ),
    "bce of logits": lambda x: functional.binary_cross_entropy_with_logits(x, torch.ones_like(x)),
    "kl": lambda x: functional.kl_div(x.log_softmax(-1), torch.ones_like(x), reduction="batchmean"),
}


def births(trace):
    """Return the sizes of all storages, by phase."""
    return sorted(
        (event.phase, event.size_bytes) for event in trace.events if event.kind == "alloc"
    )


@pytest.mark.parametrize("name", LOSSES)
def test_a_scalar_loss_keeps_the_storage_that_its_kernel_gave_it(name):
    def build():
        return Scored(LOSSES[name])

    real, traced = real_trace(build, ROWS), record_trace(build, ROWS, device="cpu")
    assert traced.summary().phase_peak_bytes == real.summary().phase_peak_bytes
    assert births(traced) == births(real)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "shape", [(32, 4, 64, 64), (32, 4, 64, 256), (7, 3, 50, 70), (1, 1, 16, 16), (5, 2, 300, 100)]
)
def test_the_workspace_of_an_lstm_is_that_of_onednn(shape, dtype):
    length, batch, inputs, hidden = shape
    if dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no bfloat16 kernels in oneDNN")
    weights = [torch.randn(4 * hidden, size, dtype=dtype) for size in (inputs, hidden)]
    biases, state = (
        [torch.randn(4 * hidden, dtype=dtype)] * 2,
        torch.zeros(1, batch, hidden, dtype=dtype),
    )
    values = torch.randn(length, batch, inputs, dtype=dtype)
    workspace = torch.ops.aten.mkldnn_rnn_layer(
        values,
        *weights,
        *biases,
        state,
        state.clone(),
        False,
        [],
        2,
        hidden,
        1,
        True,
        False,
        False,
        True,
    )[3]
    expected = onednn_lstm_workspace_bytes(length, batch, inputs, hidden, dtype.itemsize)
    assert workspace.untyped_storage().nbytes() == expected


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(
    "choice", [{"bidirectional": True}, {"num_layers": 3, "dropout": 0.1}, {"proj_size": 16}]
)
def test_recurrent_layers_of_every_kind_are_as_in_a_real_run(choice):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells = nn.LSTM(64, 48, **choice)

        def forward(self, rows):
            return self.cells(rows.view(8, 4, 64))[0].sum()

    real, traced = real_trace(Net, ROWS), record_trace(Net, ROWS, device="cpu")
    assert traced.summary().phase_peak_bytes == real.summary().phase_peak_bytes


@pytest.mark.parametrize("dtype", [None, "bf16"])
def test_norms_give_gradients_in_their_input_s_dtype(dtype):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(1, 8, 3, padding=1)
            self.norm = nn.GroupNorm(4, 8)
            self.last = nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, rows):
            image = self.first(rows.view(8, 1, 16, 16))
            return self.last(functional.silu(self.norm(image))).float().mean()

    real, traced = (make(Net, ROWS, autocast=dtype) for make in (real_trace, traced_on_cpu))
    assert traced.summary().phase_peak_bytes == real.summary().phase_peak_bytes
    assert births(traced) == births(real)


def traced_on_cpu(*arguments, **options):
    return record_trace(*arguments, device="cpu", **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_products_are_traced_in_every_dtype(dtype):
    if not hasattr(torch, "_grouped_mm"):
        pytest.skip(f"torch {torch.__version__} has no grouped product")

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.Parameter(torch.randn(4, 64, 32, dtype=dtype))

        def forward(self, rows):
            ends = torch.arange(8, 40, 8, dtype=torch.int32, device=rows.device)
            return torch._grouped_mm(rows, self.weights, offs=ends).float().square().mean()

    rows = ROWS.to(dtype)
    real, traced = real_trace(Experts, rows), traced_on_cpu(Experts, rows)
    assert traced.summary().phase_peak_bytes == real.summary().phase_peak_bytes
    assert record_trace(Experts, rows).device_rules == "cuda"
