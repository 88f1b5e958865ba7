"""Reads of autograd's graphs."""

from __future__ import annotations

import torch

from memagent.leaks import autograd_graphs, find
from memagent.leaks.autograd_graphs import node_of


def changed_rows(parameter):
    """Rows of a parameter that was changed in place since: torch refuses to name their node."""
    rows = list(parameter)
    with torch.no_grad():
        parameter.add_(1)
    return rows


def test_rows_of_a_parameter_that_has_changed_have_no_node(recwarn):
    rows = changed_rows(torch.nn.Parameter(torch.ones(3, 2)))
    output = torch.ones(2, requires_grad=True).exp()
    assert [node_of(item) for item in (*rows, output)] == [None, None, None, output.grad_fn]
    assert autograd_graphs.count_nodes([*rows, output]) == 2
    assert autograd_graphs.outermost([*rows, output]) == [*rows, output]
    assert autograd_graphs.held_storages(rows)[1] == {}
    assert not recwarn.list, "the gradient of what is no leaf wasn't asked for"


def test_a_leak_is_found_beside_such_rows():
    scales, kept = torch.nn.Parameter(torch.ones(3)), []
    rows = changed_rows(scales)

    def step():
        kept.append(torch.ones(1000) * len(rows))
        rows[:] = changed_rows(scales)

    [suspect, *_] = find(step).suspects
    assert suspect.holder.startswith("kept: list of")
