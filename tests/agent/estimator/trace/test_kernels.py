"""Scratch memory of kernels, compared with the sizes in the libraries' sources."""

from __future__ import annotations

import pytest
import torch

from memagent.estimator.trace.kernels import scratch_bytes


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
