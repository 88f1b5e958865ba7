"""Scratch memory of kernels, compared with the sizes in the libraries' sources."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from benchmarks.estimator import history
from memagent.estimator.trace.kernels import scratch_bytes

HISTORIES = Path(history.__file__).parent / "truth" / "nvidia_h200"


def test_it_rounds_flash_attention_s_scratch_as_the_kernel_does():
    query = torch.empty(1, 2, 100, 40, device="meta", dtype=torch.bfloat16)
    args = (query, query, query)
    assert scratch_bytes(
        "aten::_scaled_dot_product_flash_attention_backward", args
    ) == 4 * 2 * 128 * (64 + 1)


def test_it_counts_the_keys_that_are_repeated_for_grouped_queries():
    query = torch.empty(1, 8, 128, 64, device="meta", dtype=torch.bfloat16)
    key = torch.empty(1, 2, 128, 64, device="meta", dtype=torch.bfloat16)
    alone = scratch_bytes(
        "aten::_scaled_dot_product_flash_attention_backward", (query, query, query)
    )
    grouped = scratch_bytes(
        "aten::_scaled_dot_product_flash_attention_backward", (query, query, key)
    )
    assert grouped - alone == 2 * 8 * 128 * 64 * 2


def convolution(shape, weight, stride=1, groups=1, **changes) -> tuple[tuple, torch.Tensor]:
    values = torch.empty(shape, device="meta", dtype=changes.get("dtype", torch.float32))
    weights = torch.empty(weight, device="meta", dtype=values.dtype)
    if "layout" in changes:
        weights = weights.to(memory_format=changes["layout"])
    dims = len(weight) - 2
    args = (
        values, weights, None, [stride] * dims, [size // 2 for size in weight[2:]], [1] * dims,
        False, [0] * dims, groups,
    )  # fmt: skip
    return args, torch.ops.aten.convolution(*args)


@pytest.mark.parametrize(
    ("recorded", "shape", "weight", "stride"),
    [
        ("vgg16_x_64", (64, 64, 224, 224), (64, 64, 3, 3), 1),
        ("vgg16_x_64", (64, 128, 56, 56), (256, 128, 3, 3), 1),
        ("timm_resnet18_x_64", (64, 3, 224, 224), (64, 3, 7, 7), 2),
        ("resnet50_x_64", (64, 128, 56, 56), (128, 128, 3, 3), 2),
        ("r3d_18_x_8", (8, 64, 16, 56, 56), (128, 64, 3, 3, 3), 2),
    ],
)
def test_a_convolution_takes_the_scratch_that_a_gpu_recorded(recorded, shape, weight, stride):
    events = history.read(HISTORIES / f"{recorded}.json.gz")["device_traces"][0]
    brief = {
        first["size"]
        for first, then in pairwise(events)
        if first["action"] == "alloc"
        and (then["action"], then["addr"]) == ("free_requested", first["addr"])
    }
    args, output = convolution(shape, weight, stride)
    backward = (output, *args[:2], None, *args[3:], [True, True, False])
    forward_bytes = scratch_bytes("aten::convolution", args, output)
    assert forward_bytes == scratch_bytes("aten::convolution_backward", backward, args[0])
    aligned = range(forward_bytes, forward_bytes + 256)
    assert any(size in aligned for size in brief)


@pytest.mark.parametrize(
    ("weight", "changes"),
    [
        ((64, 64, 1, 1), {}),
        ((64, 1, 3, 3), {"groups": 64}),
        ((64, 64, 3, 3), {"layout": torch.channels_last}),
        ((64, 64, 3, 3), {"dtype": torch.float64}),
    ],
)
def test_a_convolution_in_the_given_layout_takes_no_scratch(weight, changes):
    args, output = convolution((8, 64, 56, 56), weight, **changes)
    assert scratch_bytes("aten::convolution", args, output) == 0


def test_a_convolution_without_tf32_takes_no_scratch(monkeypatch):
    args, output = convolution((8, 64, 56, 56), (64, 64, 3, 3))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert scratch_bytes("aten::convolution", args, output) == 0


def test_it_takes_no_scratch_for_other_operators():
    assert scratch_bytes("aten::mm", (torch.empty(1), torch.empty(1))) == 0


@pytest.mark.parametrize(
    ("dtype", "size", "measured"),
    [
        (torch.bfloat16, 64, 16_384 + 1_049_600),
        (torch.bfloat16, 96, 16_384 + 2_097_664),
        (torch.bfloat16, 256, 16_384 + 12_584_960),
        (torch.float32, 64, 1_048_576 + 2 * 16_384),
        (torch.float32, 256, 4_194_304 + 2 * 16_384),
    ],
)
def test_it_counts_the_scratch_of_efficient_attention_as_measured(dtype, size, measured):
    query = torch.empty(2, 4, 512, size, device="meta", dtype=dtype)
    op = "aten::_scaled_dot_product_efficient_attention_backward"
    assert scratch_bytes(op, (query, query, query)) == measured


@pytest.mark.parametrize(
    ("shape", "dims", "measured"),
    [
        ((2048, 4096), [0], 67_108_864 + 128),
        ((2, 1024, 4096), [0, 1], 67_108_864 + 128),
        ((2048, 4096), [1], 0),
        ((64, 4096), [0], 0),
    ],
)
def test_it_counts_the_parts_of_a_sum_over_rows(shape, dims, measured):
    values = torch.empty(shape, device="meta")
    assert scratch_bytes("aten::sum.dim_IntList", (values, dims, True)) == measured
