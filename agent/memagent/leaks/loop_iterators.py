"""Iterators that keep what they have passed, held by a loop alone: `for x in cycle(loader)`.

Since Python 3.11 the collector doesn't see what a running function has on its stack. But it sees
the iterator, and the source tells which loops run and what they call.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from memagent.components.safe_reads import FrameReading
from memagent.leaks.object_names import ObjectName
from memagent.leaks.source_lines import GROWS, SourceLine, source_line
from memagent.leaks.syntax import function_name, syntax_tree, walk
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


def _running_loops(reading: FrameReading) -> Iterator[tuple[ast.For | ast.AsyncFor, SourceLine]]:
    """Yield the loops of a function that run now, outermost first."""
    file, first, now = reading.code.co_filename, reading.code.co_firstlineno, reading.line or 0
    for node, parents in walk(syntax_tree(file)):
        if not isinstance(node, ast.For | ast.AsyncFor):
            continue
        if first <= node.lineno <= now <= (node.end_lineno or 0):
            yield node, source_line(file, node, GROWS, parents)
