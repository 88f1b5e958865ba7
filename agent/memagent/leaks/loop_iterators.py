"""Iterators that keep what they have passed: `for x in cycle(loader)`, `accumulate(losses)`.

A loop alone may hold one. Since Python 3.11 the collector doesn't see what a running function has
on its stack. But it sees the iterator, and the source tells which loops run and what they call.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from memagent.components import live_objects, safe_reads
from memagent.components.safe_reads import FrameReading
from memagent.leaks.object_names import ObjectName
from memagent.leaks.source_lines import GROWS, SourceLine, method_calls, source_line
from memagent.leaks.syntax import assigned_name, function_name, syntax_tree, walk
from memagent.leaks.user_code import script_code

_KEEPING = {itertools.cycle: "cycle", type(itertools.tee(())[0]): "tee"}
"""Functions by the type of iterators that they return."""


def loop_of(visited: Iterable[Any]) -> tuple[ObjectName, SourceLine] | None:
    """Return the call that made the iterator of a running loop, with the loop's line.

    visited: what leads to the tensors.
    """
    functions = set(filter(None, (_KEEPING.get(type(item)) for item in visited)))
    for reading in script_code() if functions else ():
        code = reading.code
        for loop, line in _running_loops(reading):
            for call in ast.walk(loop.iter):
                if isinstance(call, ast.Call) and function_name(call) in functions:
                    text, file = ast.unparse(call), code.co_filename
                    return ObjectName(text, (), file, line.function, code=code), line
    return None


def sum_of(tensor: Any, files: Iterable[str]) -> tuple[ObjectName, SourceLine] | None:
    """Return the call that made the iterator which adds to a tensor: its graph gets longer."""
    sums = live_objects.of_types([itertools.accumulate])
    if not any(part is tensor for part in safe_reads.parts_of(*sums).others):
        return None
    for file in files:
        for line in method_calls(file, "accumulate"):
            text = assigned_name(file, line.line) or "accumulate"
            return ObjectName(text, (), file, line.function), replace(line, strength=GROWS)
    return None


def _running_loops(reading: FrameReading) -> Iterator[tuple[ast.For | ast.AsyncFor, SourceLine]]:
    """Yield the loops of a function that run now, outermost first."""
    file, first, now = reading.code.co_filename, reading.code.co_firstlineno, reading.line or 0
    for node, parents in walk(syntax_tree(file)):
        if not isinstance(node, ast.For | ast.AsyncFor):
            continue
        if first <= node.lineno <= now <= (node.end_lineno or 0):
            yield node, source_line(file, node, GROWS, parents)
