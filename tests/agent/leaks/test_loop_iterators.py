"""Iterators that keep what they passed, and that a running loop alone holds."""

from __future__ import annotations

import inspect
from itertools import accumulate, cycle, tee

import torch

from memagent.leaks import find
from memagent.leaks.loop_iterators import loop_of


def test_the_call_in_a_running_loop_is_named_with_its_line():
    for _ in zip(range(1), cycle([1]), strict=False):
        name, line = loop_of([cycle([1])])
    assert name.expression == "cycle([1])" and name.code.co_name == line.function
    assert line.text == "for _ in zip(range(1), cycle([1]), strict=False):"
    assert line.line == inspect.currentframe().f_lineno - 4


def test_a_loop_over_a_copy_of_an_iterator_is_named():
    for _ in tee([1])[0]:
        name, _ = loop_of([tee([1])[0]])
    assert name.expression == "tee([1])"


def test_nothing_is_named_without_such_an_iterator_or_a_loop():
    assert loop_of([cycle([1])]) is None
    for _ in cycle([1]):
        assert loop_of([zip([1], strict=False), [1]]) is None
        break
    assert loop_of([cycle([1])]) is None


def test_the_iterator_that_sums_up_losses_is_named_for_their_graph():
    weight = torch.ones(1000, requires_grad=True)
    totals = accumulate((weight * number).square().sum() for number in iter(int, 1))
    line = inspect.currentframe().f_lineno - 1
    [suspect, *_] = find(lambda: next(totals)).suspects
    assert (suspect.file, suspect.line, suspect.kind) == (__file__, line, "graph")
    assert suspect.holder.startswith("totals: graph of")
