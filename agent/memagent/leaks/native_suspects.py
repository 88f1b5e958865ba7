"""Suspects of native memory: the holder if the source shows it, else the call that allocates.

`keeping_statements` looks for the holder. If the script doesn't keep a result, the innermost call
of a path allocates and never frees.

A line that only calls torch isn't suspected: its workspaces and caches grow for a while. Stores of
torch.distributed are: they keep each key that they're given.
A container of the same function that grows by a library's objects, by the census, comes before.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import FunctionType

from msgspec.structs import replace

from memagent.leaks.census import MIN_SHARE
from memagent.leaks.detectors.base import CodePosition
from memagent.leaks.heap_trace import HeapTrace, LineStack
from memagent.leaks.keeping_statements import Statement, keeper_of
from memagent.leaks.library_calls import UNKNOWN, Meanings
from memagent.leaks.native_growth import NativeGrowth, native_growth
from memagent.leaks.source_lines import GROWS, SourceLine, source_line
from memagent.leaks.stored_values import quotable
from memagent.leaks.suspect import build_suspect, is_module_class
from memagent.leaks.syntax import function_name, syntax_tree, walk
from memagent.leaks.user_code import is_script, is_script_class
from memagent.wire.messages import Suspect

PROFILER_CONFIDENCE, KEEPS_CONFIDENCE, ALLOCATES_CONFIDENCE = 0.8, 0.7, 0.6
"""Confidence for the profiler, a holder that the source names, and a call without a holder."""
_NEUTRAL = frozenset(("builtins", "numpy", "torch"))
_MAX_HOLDER = 100
_OUTSIDE = "a library keeps memory for that outside of Python."
_FIX_KEPT = "Keep fewer objects in {0}, or write them to a file now and then: " + _OUTSIDE
_FIX_ALLOCATED = "Close or free what {0} makes once it is used, or call it less often: " + _OUTSIDE


_FIX_PROFILER = (
    "Give the profiler a schedule, `torch.profiler.schedule(wait=1, warmup=1, active=3)`, or stop "
    "it after some steps: it keeps each event until it stops."
)


def suspects_of_trace(trace: HeapTrace, opaque: Sequence[Suspect]) -> list[Suspect]:
    """Return the suspect of a trace, none if native memory didn't grow steadily.

    opaque: containers that grow by objects of a library, whose size is unknown.
    """
    statements, meanings = _Statements(), Meanings()
    start = statements.of_stack(trace.start_stack)
    steps = [_sizes(step, statements.of_stack) for step in trace.steps]
    growth = native_growth(steps, start, lambda item: _is_likely(statements.at(item), meanings))
    if growth is None:
        return []
    files = dict.fromkeys(file for file, _ in start)
    suspect = _profiler(files, growth) or _suspect(growth, statements, meanings, opaque)
    return [suspect] if suspect else []


def _profiler(files: Iterable[str], growth: NativeGrowth) -> Suspect | None:
    """Return torch's profiler if it has recorded all steps, and no single call explains growth."""
    autograd = getattr(getattr(sys.modules.get("torch"), "_C", None), "_autograd", None)
    if growth.path or autograd is None or not autograd._profiler_enabled():
        return None
    for file in files:
        for node, parents in walk(syntax_tree(file)):
            is_call = isinstance(node, ast.Call) and function_name(node) == "profile"
            if is_call and not any(item.arg == "schedule" for item in node.keywords):  # type: ignore[attr-defined]
                line, rate = source_line(file, node, GROWS, parents), growth.bytes_per_step
                text, sure = "torch.profiler: native memory of each event", PROFILER_CONFIDENCE
                place = file, line.line, line.function
                suspect = build_suspect(*place, text, "host", rate, sure)
                return replace(suspect, fix=_FIX_PROFILER)
    return None


def without_tensors(suspects: Sequence[Suspect], bytes_per_step: int) -> list[Suspect]:
    """Return suspects without those of native memory that tensors explain.

    The census tells whether these leak. bytes_per_step: growth of tensors on the host.
    """
    return [
        item
        for item in suspects
        if not item.fix.endswith(_OUTSIDE)
        or bytes_per_step < MIN_SHARE * (item.bytes_per_step or 0)
    ]


class _Statements:
    """Statements of the script by position: a call may spread over several lines."""

    def __init__(self) -> None:
        self._known: dict[CodePosition, Statement | None] = {}
        self._stacks: dict[LineStack, LineStack] = {}

    def at(self, position: CodePosition) -> Statement | None:
        """Return the innermost statement at a line, None if there's no source."""
        if position not in self._known:
            file, line = position
            around = [
                Statement(file, node, parents)
                for node, parents in walk(syntax_tree(file))
                if isinstance(node, ast.stmt)
                and node.lineno <= line <= (node.end_lineno or node.lineno)
            ]
            self._known[position] = around[-1] if around else None
        return self._known[position]

    def of_stack(self, stack: LineStack) -> LineStack:
        """Return a stack with the first line of each statement."""
        if stack not in self._stacks:
            self._stacks[stack] = tuple((item[0], self._first_line(item)) for item in stack)
        return self._stacks[stack]

    def _first_line(self, position: CodePosition) -> int:
        statement = self.at(position)
        return position[1] if statement is None else statement.node.lineno


def _sizes(
    step: Mapping[LineStack, int], of_stack: Callable[[LineStack], LineStack]
) -> Mapping[LineStack, int]:
    sizes: Counter[LineStack] = Counter()
    for stack, size in step.items():
        sizes[of_stack(stack)] += size
    return sizes


def _suspect(
    growth: NativeGrowth, statements: _Statements, meanings: Meanings, opaque: Sequence[Suspect]
) -> Suspect | None:
    """Return the container, the holder or the call, None for a call of torch or several calls."""
    rate = growth.bytes_per_step
    path = [statement for item in growth.path if (statement := statements.at(item))]
    places = {(line.file, line.function) for line in map(_line_of, path)}
    for item in opaque:
        if (item.file, item.function) in places:
            return replace(item, bytes_per_step=rate, fix=_FIX_KEPT.format(_quoted(item.holder)))
    if not path or not growth.is_certain or not _is_likely(path[-1], meanings):
        return None
    statement, holder, keeper = path[-1], _allocating_call(path[-1]), keeper_of(path)
    confidence, fix = ALLOCATES_CONFIDENCE, _FIX_ALLOCATED
    if keeper is not None:
        (statement, holder), confidence, fix = keeper, KEEPS_CONFIDENCE, _FIX_KEPT
    line, text = _line_of(statement), f"{holder[:_MAX_HOLDER]}: native memory"
    place = line.file, line.line, line.function
    suspect = build_suspect(*place, text, "host", rate, confidence)
    return replace(suspect, fix=fix.format(_quoted(text)))


def _quoted(holder: str) -> str:
    """Return the expression of a holder in backticks, words if it isn't short and plain."""
    with suppress(SyntaxError, ValueError, RecursionError):
        node = ast.parse(holder.partition(":")[0], mode="eval").body
        if (text := quotable(node)) is not None:
            return f"`{text}`"
    return "what this line uses"


def _line_of(statement: Statement) -> SourceLine:
    return source_line(statement.file, statement.node, GROWS, statement.parents)


def _allocating_call(statement: Statement) -> str:
    return next((ast.unparse(call.func) for call in statement.calls), "")


# -- what a line calls --------------------------------------------------------------------------


def _is_likely(statement: Statement | None, meanings: Meanings) -> bool:
    """Return True if a statement calls a library other than torch, or may do so."""
    return statement is not None and any(
        _is_foreign(call, statement, meanings) for call in statement.calls
    )


def _is_foreign(call: ast.Call, statement: Statement, meanings: Meanings) -> bool:
    if _is_store(call, statement, meanings):
        return True
    function = meanings.of(call.func, statement.file, statement.parents)
    if function is UNKNOWN:
        return not _is_torch_name(call, statement, meanings)
    kind = function if isinstance(function, type) else type(function)
    if is_module_class(kind) or is_script_class(kind):
        return False
    if isinstance(function, FunctionType) and is_script(function.__code__.co_filename):
        return False
    module = getattr(function, "__module__", None) or kind.__module__
    return str(module).partition(".")[0] not in _NEUTRAL


def _is_store(call: ast.Call, statement: Statement, meanings: Meanings) -> bool:
    """Return True for a method of a store of torch.distributed, which keeps what it's given."""
    distributed = sys.modules.get("torch.distributed")
    store = getattr(distributed, "Store", None)
    if store is None or not isinstance(call.func, ast.Attribute):
        return False
    owner = meanings.of(call.func.value, statement.file, statement.parents)
    return issubclass(type(owner), store)


def _is_torch_name(call: ast.Call, statement: Statement, meanings: Meanings) -> bool:
    """Return True for a method of tensors, and for `self.layers(x)` in a module."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor is not None and hasattr(tensor, function_name(call)):
        return True
    classes = (item for item in reversed(statement.parents) if isinstance(item, ast.ClassDef))
    names = (ast.Name(item.name) for item in classes)
    kinds = (meanings.of(name, statement.file, ()) for name in names)
    return any(isinstance(kind, type) and is_module_class(kind) for kind in kinds)
