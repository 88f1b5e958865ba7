"""Scratch memory of kernels, compared with the sizes in the libraries' sources."""

from __future__ import annotations

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
