"""Counts of floating-point operations, where torch's formula is at hand and where it refuses."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from memagent.estimator.trace.operation_counts import count_operations

ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention.default
QUERY, GROUPS = torch.empty(2, 8, 16, 4), torch.empty(2, 2, 16, 4)


class OlderAttention:
    """Attention with the formula of torch 2.11, which refuses fewer heads of keys and values."""

    _overloadpacket = "attention of torch 2.11"

    @staticmethod
    def formula(query: Any, key: Any, value: Any, *_: Any, out_val: Any = None) -> int:
        assert query.shape[1] == key.shape[1] == value.shape[1]
        return int(flop_registry[ATTENTION._overloadpacket](query, key, value, out_val=out_val))


def test_an_operator_without_a_formula_counts_as_none():
    assert count_operations(torch.ops.aten.add.Tensor, (QUERY, QUERY), {}, QUERY) == 0


def test_attention_in_groups_counts_as_that_of_all_heads(monkeypatch):
    expected = 2 * 2 * (2 * 8 * 16 * 16 * 4)  # two products of two operations a term
    whole = count_operations(ATTENTION, (QUERY, QUERY, QUERY), {}, (QUERY,))
    assert whole == expected
    monkeypatch.setitem(flop_registry, OlderAttention._overloadpacket, OlderAttention.formula)
    assert count_operations(OlderAttention, (QUERY, GROUPS, GROUPS), {}, (QUERY,)) == expected


def test_what_torch_refuses_ends_no_trace(monkeypatch):
    monkeypatch.setitem(flop_registry, OlderAttention._overloadpacket, OlderAttention.formula)
    assert count_operations(OlderAttention, (QUERY, QUERY[0], QUERY[0]), {}, (QUERY,)) == 0
