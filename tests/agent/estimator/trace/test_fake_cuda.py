"""Differences on a GPU: temporaries of optimizers, attention, dropout, autocast, step counters."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from memagent.estimator.trace.torch_patches import COMPILED_NOTE
from memagent.estimator.trace.tracing import record_trace
from tests.agent.estimator.trace.models import Transformer, ids, mlp, word_loss

ROWS = torch.ones(32, 64)


def born(trace, op, *, phase=None, step=1):
    """Return the sizes of an operator's allocations in the steady step."""
    return [
        event.size_bytes
        for event in trace.events
        if event.kind == "alloc"
        and event.op == op
        and event.step == step
        and phase in (None, event.phase)
    ]


def wide() -> nn.Module:
    return nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(8)))


def test_it_takes_the_foreach_optimizer_as_cuda_does():
    one = 256 * 256 * 4
    on_cuda = record_trace(wide(), torch.ones(1, 256))
    on_cpu = record_trace(wide(), torch.ones(1, 256), device="cpu")

    def temporaries(trace):
        summary = trace.summary()
        assert summary.peak_phase == "optimizer"
        return summary.components["workspace"]

    assert on_cuda.device_rules == "cuda"
    assert temporaries(on_cuda) == 8 * one  # a copy of all parameters at once
    assert temporaries(on_cpu) <= 3 * one  # one parameter at a time


@pytest.mark.parametrize(
    ("choice", "copies"), [({"foreach": True}, 8), ({"fused": True}, 0), ({"foreach": False}, 3)]
)
def test_it_uses_the_requested_optimizer(choice, copies):
    model = wide()
    optimizer = torch.optim.AdamW(model.parameters(), **choice)
    trace = record_trace(model, torch.ones(1, 256), optimizer=optimizer)
    largest = live = 0
    for event in trace.events:
        if event.step == 1 and event.phase == "optimizer" and event.component == "workspace":
            live += event.size_bytes if event.kind == "alloc" else -event.size_bytes
            largest = max(largest, live)
    assert largest // (256 * 256 * 4) == copies


def test_it_keeps_step_counters_on_the_host():
    trace = record_trace(mlp(), ROWS)
    state = [
        event
        for event in trace.events
        if event.kind == "alloc" and event.component == "optimizer_state"
    ]
    assert {event.shape for event in state} == {(128, 64), (128,), (10, 128), (10,)}


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, query: torch.Tensor) -> torch.Tensor:
        query = query * self.weight.to(query.dtype)
        return functional.scaled_dot_product_attention(query, query, query)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_it_holds_no_attention_scores_with_flash(dtype):
    batch, heads, length, size = 2, 4, 512, 64
    trace = record_trace(Scores(), torch.ones(batch, heads, length, size, dtype=dtype))
    sizes = born(trace, "aten::_scaled_dot_product_flash_attention")
    output, logsumexp = batch * heads * length * size * 2, batch * heads * length * 4
    assert [size for size in sizes if size > 1024] == [output, logsumexp]
    largest = max(event.size_bytes for event in trace.events)
    assert largest < batch * heads * length * length * 2


def test_it_counts_the_scratch_of_flash_attention_s_backward():
    batch, heads, length, size = 2, 4, 512, 64
    trace = record_trace(Scores(), torch.ones(batch, heads, length, size, dtype=torch.bfloat16))
    sizes = born(trace, "aten::_scaled_dot_product_flash_attention_backward")
    assert 4 * batch * heads * length * (size + 1) in sizes
    assert "aten::_scaled_dot_product_flash_attention_backward" in trace.hidden_ops


def test_it_takes_efficient_attention_in_fp32():
    trace = record_trace(Scores(), torch.ones(2, 4, 512, 64))
    assert (
        born(trace, "aten::_scaled_dot_product_efficient_attention", phase="forward")[0]
        == 2 * 4 * 512 * 64 * 4
    )
    assert max(event.size_bytes for event in trace.events) < 2 * 4 * 512 * 512 * 4


def test_it_falls_back_to_scores_if_a_kernel_is_disabled():
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        trace = record_trace(Scores(), torch.ones(2, 4, 512, 64))
    assert 2 * 4 * 512 * 512 * 4 in [event.size_bytes for event in trace.events]


@pytest.mark.parametrize("recompute", ["saved", "reentrant"])
def test_it_takes_flash_attention_when_recomputing_too(recompute):
    trace = record_trace(
        lambda: Transformer(recompute=recompute),
        ids(),
        targets=ids(),
        loss=word_loss,
        autocast="bf16",
    )
    assert born(trace, "aten::_scaled_dot_product_flash_attention", phase="backward")
    assert not [event for event in trace.events if event.op == "aten::_softmax"]


def test_dropout_s_mask_has_one_byte_per_element():
    model = nn.Sequential(nn.Linear(64, 128), nn.Dropout(0.1), nn.Linear(128, 10))
    on_cuda = [size for size in born(record_trace(model, ROWS), "aten::native_dropout") if size]
    assert on_cuda == [32 * 128, 32 * 128 * 4]


def test_it_casts_as_cuda_s_autocast_does_and_keeps_the_cast_weights():
    trace = record_trace(mlp(), ROWS, autocast="bf16")
    casts = born(trace, "aten::_to_copy", phase="forward")
    assert casts.count(128 * 64 * 2) == 1  # the first weight, once
    assert next(event.dtype for event in trace.events if event.op == "aten::addmm") == "bfloat16"
    gradients = {event.dtype for event in trace.events if event.component == "gradients"}
    assert gradients == {"float32"}


def test_it_keeps_statistics_of_half_precision_norms_in_fp32():
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 1)).to(torch.bfloat16)
    trace = record_trace(model, ROWS.to(torch.bfloat16))
    assert born(trace, "aten::native_layer_norm", phase="forward") == [32 * 64 * 2, 32 * 4, 32 * 4]


def test_it_runs_silu_s_backward_as_one_kernel():
    trace = record_trace(nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)), ROWS)
    assert born(trace, "aten::silu_backward") == [32 * 64 * 4]
    assert not born(trace, "aten::sigmoid")


def test_it_scales_gradients_with_a_scaler():
    trace = record_trace(mlp(), ROWS, autocast="fp16", scaler=True)
    assert trace.summary().peak_bytes > 0
    assert born(trace, "aten::zeros_like", phase="optimizer", step=0)  # the optimizer ran its step


def test_it_says_that_recurrent_layers_other_than_an_lstm_are_approximate():
    def notes(kind, device):
        layer = partial(kind, 16, 16, batch_first=True)
        loss = lambda output, _: output[0].sum()  # noqa: E731
        values = torch.zeros(2, 8, 16)
        return record_trace(layer, values, targets=ids(), loss=loss, device=device).notes

    assert "cuDNN" in notes(torch.nn.RNN, "cuda")[0]
    assert notes(torch.nn.RNN, "cpu") == notes(torch.nn.LSTM, "cuda") == ()


def test_it_counts_tied_weights_once():
    tied = record_trace(Transformer, ids(), targets=ids(), loss=word_loss)
    loose = record_trace(lambda: Transformer(tied=False), ids(), targets=ids(), loss=word_loss)
    assert loose.parameters_bytes - tied.parameters_bytes == 96 * 64 * 4


def test_an_output_is_released_before_backward_if_the_loop_drops_it():
    def peak(keep):
        return record_trace(
            Transformer,
            ids(64),
            targets=ids(64),
            loss=lambda o, t: word_loss(o.float() * 1, t),
            keep_output=keep,
        ).summary()

    assert (
        peak(True).phase_peak_bytes["backward"] - peak(False).phase_peak_bytes["backward"]
        == 64 * 32 * 96 * 4
    )


def test_it_returns_source_line_and_component_of_allocations():
    trace = record_trace(lambda: Transformer(layers=2), ids(64), targets=ids(64), loss=word_loss)
    top = trace.summary(top=500).top
    assert {"parameters", "gradients", "optimizer_state", "activations", "data"} >= {
        event.component for event in trace.events
    } - {"workspace"}
    inside = [
        tensor
        for tensor in top
        if tensor.module == "layers.1.after.1" and tensor.component == "activations"
    ]
    assert [tensor.shape for tensor in inside] == [(64 * 32, 256)]
    attention = [
        event
        for event in trace.events
        if event.op == "aten::_scaled_dot_product_efficient_attention"
    ]
    assert attention[0].source.startswith("models.py:")
    assert attention[0].module == "layers.0"


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # from torch, at the import of its compiler
@pytest.mark.parametrize("how", ["wrapped", "in place", "inner"])
def test_a_compiled_model_is_traced_as_it_is_written(how):
    def build():
        model = mlp()
        if how == "wrapped":
            return torch.compile(model)
        (model if how == "in place" else model[0]).compile()
        return model

    compiled, plain = record_trace(build, ROWS), record_trace(mlp, ROWS)
    assert COMPILED_NOTE in compiled.notes and COMPILED_NOTE not in plain.notes
    assert compiled.summary().phase_peak_bytes == plain.summary().phase_peak_bytes
    assert (
        record_trace(build(), ROWS).summary().phase_peak_bytes == plain.summary().phase_peak_bytes
    )


class ImportingCompiler(nn.Linear):
    def forward(self, rows):
        from torch._dynamo import trace_rules

        trace_rules.get_torch_obj_rule_map()
        return super().forward(rows)


def test_the_compiler_accepts_the_replaced_functions_of_cuda():
    assert record_trace(ImportingCompiler(64, 64), torch.ones(32, 64)).device_rules == "cuda"


class DroppedScores(Scores):
    def forward(self, query: torch.Tensor) -> torch.Tensor:
        query = query * self.weight
        return functional.scaled_dot_product_attention(query, query, query, dropout_p=0.1)


@pytest.mark.parametrize(("model", "seeds"), [(Scores, 2), (DroppedScores, 0)])
def test_attention_s_random_seed_is_on_the_host_with_dropout(model, seeds):
    trace = record_trace(model(), torch.ones(2, 4, 512, 64))
    sizes = born(trace, "aten::_scaled_dot_product_efficient_attention", phase="forward")
    assert sizes.count(8) == seeds
