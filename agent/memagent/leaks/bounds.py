"""Bounds for the size of what grows, with their values now: a cache that still fills doesn't leak.

If memory runs out before the bound is reached, it does: `free_memory` compares them.

`limits` finds in the source alone that something may stop growing. Here the numbers count, too:

1. Items are taken out if a comparison holds: `if len(rows) > self.size: rows.pop(0)`, also by
   what's called there: `while self.bytes > self.max_bytes: self.evict()`.
2. Items are added only if one holds: `if len(rows) < n: rows.append(x)`. Or one leaves before:
   `if len(rows) >= n: return`.
3. All but a number are cut off: `rows = rows[-n:]`, `del rows[:-n]`.
4. An object of a library has an attribute for it: the `maxlen` of a deque, the `maxsize` of a
   queue or of a cache of results.

A bound that was passed is none, and neither is a counter: `if step > warm_up: rows.append(x)`.
"""

from __future__ import annotations

import ast
import operator
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import BuiltinFunctionType
from typing import Any

from memagent.leaks.growing_statements import growth_strength
from memagent.leaks.library_calls import Meanings
from memagent.leaks.limits import LEAVING, takes_out
from memagent.leaks.object_names import file_of
from memagent.leaks.referrers import HolderPath
from memagent.leaks.source_lines import GROWS, SourceScope, root_of
from memagent.leaks.suspect import is_cache
from memagent.leaks.syntax import (
    FUNCTIONS,
    LOOPS,
    Parents,
    function_name,
    functions,
    is_mention,
    syntax_tree,
    walk,
)
from memagent.leaks.user_code import is_script_class, main_file, namespace

_SIZE_ATTRIBUTES = ("maxsize", "max_size", "maxlen", "capacity")
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
}
_GREATER = (ast.Gt, ast.GtE, ast.Eq)
_LESS = (ast.Lt, ast.LtE, ast.NotEq)


@dataclass(frozen=True)
class Bound:
    """A bound that was not passed yet. size: what it limits, now: entries, bytes, or another sum.

    entries: the number of entries now.
    """

    size: float
    limit: float
    entries: int

    def full_bytes(self, entry_bytes: float) -> float:
        """Return what is held when the bound is reached, if entries take as much as the newest."""
        return self.limit / self.size * self.entries * entry_bytes

    def missing_bytes(self, entry_bytes: float) -> float:
        """Return what must be free for that."""
        return self.full_bytes(entry_bytes) - self.entries * entry_bytes


def bound_of(holder: HolderPath) -> Bound | None:
    """Return the nearest bound of a container, None if nothing keeps it from growing."""
    for item in holder.objects:
        info = getattr(item, "cache_info", None) if is_cache(item) else None
        if isinstance(info, BuiltinFunctionType):
            _, _, max_size, size = info()
            if max_size is not None:
                return _nearest([(size, max_size)], size)
    try:
        length = len(holder.container)
    except (TypeError, ValueError):
        return None
    return _nearest(_sizes(holder, length), length)


def bound_of_rows(holder: HolderPath, tensor: Any) -> Bound | None:
    """Return the number of rows that a slice leaves of a tensor: `queue = cat(...)[-n:]`."""
    length = len(tensor) if tensor.ndim else 0
    values = _Values(holder, length)
    limits = (
        (length, limit)
        for root in _roots(holder)
        for node, _ in walk(root)
        if isinstance(node, ast.Assign)
        for limit in values.after_slice(node)
    )
    return _nearest(limits, length)


def _nearest(sizes: Iterable[tuple[float, float]], entries: int) -> Bound | None:
    bounds = [Bound(size, limit, entries) for size, limit in sizes if 0 < size <= limit]
    return min(bounds, key=lambda bound: bound.limit / bound.size, default=None)


def _sizes(holder: HolderPath, length: int) -> Iterator[tuple[float, float]]:
    """Yield a size with its bound."""
    if isinstance(holder.container, deque) and holder.container.maxlen is not None:
        yield length, holder.container.maxlen
    for owner in holder.above:
        yield from ((length, limit) for limit in _library_bounds(owner))
    values = _Values(holder, length)
    for root in _roots(holder):
        is_class = isinstance(root, ast.ClassDef)
        for node, parents in walk(root):
            if not is_class and values.is_of_other_class(parents):
                continue
            if isinstance(node, ast.If | ast.While):
                yield from values.at_condition(node, parents)
            elif isinstance(node, ast.Assign | ast.Delete):
                yield from ((length, limit) for limit in values.after_slice(node))


def _library_bounds(owner: Any) -> Iterator[float]:
    space = None if is_script_class(type(owner)) else namespace(owner)
    for name in _SIZE_ATTRIBUTES if space else ():
        if isinstance(limit := space.get(name), int):  # type: ignore[union-attr]
            yield limit


def _roots(holder: HolderPath) -> Iterator[ast.AST]:
    """Yield the classes of the holder's objects, then the files that may mention its name."""
    kinds = dict.fromkeys(type(item) for item in (holder.container, *holder.above))
    for kind in kinds:
        for base in filter(is_script_class, kind.__mro__):
            yield root_of(SourceScope(file_of(base), None, base.__name__))
    if holder.name is not None:
        for file in dict.fromkeys((holder.name.file, main_file() or "")):
            yield syntax_tree(file)


class _Values:
    """The comparisons of a script that concern a holder, with the values of both sides."""

    def __init__(self, holder: HolderPath, length: int) -> None:
        name = holder.name
        self._file = name.file if name is not None else ""
        self._names = set(name.identifiers[:1]) if name is not None else set()
        self._has_owner = name is not None and name.owner is not None
        if is_script_class(type(holder.container)):
            self._names.add("self")
        self._objects = (holder.container, *holder.above)
        self._length = length
        self._meanings = Meanings()

    def is_of_other_class(self, parents: Parents) -> bool:
        """Return True in a class, if the holder is an attribute of another one."""
        return self._has_owner and any(isinstance(item, ast.ClassDef) for item in parents)

    def at_condition(
        self, node: ast.If | ast.While, parents: Parents
    ) -> Iterator[tuple[float, float]]:
        """Yield sizes and bounds of one condition (1, 2)."""
        comparisons = list(filter(None, map(_comparison, ast.walk(node.test))))
        if not comparisons:
            return
        takes = self._takes_out(node.body, parents)
        leaves = self._leaves(node, parents)
        adds = self._adds(node.body, parents) or self._takes_out(node.orelse, parents)
        for greater, less in comparisons:
            has_room = self._is_length(less) or (adds and not takes)
            if self._is_length(greater):
                sides = (greater, less) if takes or leaves else None
            elif has_room:
                sides = (less, greater) if adds else None
            else:
                sides = (greater, less) if takes else None
            size, limit = (self._of(side, parents) for side in sides or (greater, greater))
            if sides is None or size is None or limit is None or _is_counted(sides[1], parents):
                continue
            yield size, limit

    def after_slice(self, node: ast.Assign | ast.Delete) -> Iterator[float]:
        """Yield the number of items that a slice leaves (3)."""
        targets = node.targets
        if not any(is_mention(target, self._names) for target in targets):
            return
        for part in ast.walk(node):
            if not isinstance(part, ast.Subscript) or not isinstance(part.slice, ast.Slice):
                continue
            is_kept = isinstance(node, ast.Assign)
            bound = part.slice.lower if is_kept else part.slice.upper
            if isinstance(bound, ast.UnaryOp) and isinstance(bound.op, ast.USub):
                limit = self._of(bound.operand, ())
                parts = ast.walk(part.value)
                if limit is not None and any(
                    isinstance(item, ast.expr) and is_mention(item, self._names) for item in parts
                ):
                    yield limit

    def _takes_out(self, body: list[ast.stmt], parents: Parents) -> bool:
        return any(
            takes_out(part, (*parents, *inner), self._names, 0)
            or (isinstance(part, ast.Call) and self._called_takes_out(part))
            for statement in body
            for part, inner in walk(statement)
        )

    def _called_takes_out(self, call: ast.Call) -> bool:
        return any(
            takes_out(part, (), self._names, 0)
            for node in functions(self._file).get(function_name(call), ())
            for part in ast.walk(node)
        )

    def _leaves(self, node: ast.If | ast.While, parents: Parents) -> bool:
        """Return True for `if len(rows) >= n: return` before items are added."""
        if not isinstance(node.body[-1], LEAVING) or not any(
            map(self._is_length, ast.walk(node.test))
        ):
            return False
        function = next((item for item in reversed(parents) if isinstance(item, FUNCTIONS)), None)
        return function is not None and self._adds(function.body, parents)

    def _adds(self, body: list[ast.stmt], parents: Parents) -> bool:
        return any(
            isinstance(part, ast.stmt)
            and growth_strength(part, self._names, (*parents, *inner), next(iter(self._names), ""))
            == GROWS
            for statement in body
            for part, inner in walk(statement)
        )

    def _is_length(self, node: ast.AST) -> bool:
        is_call = (
            isinstance(node, ast.Call) and function_name(node) == "len" and len(node.args) == 1
        )
        return is_call and is_mention(node.args[0], self._names)  # type: ignore[attr-defined]

    def _of(self, node: ast.expr, parents: Parents) -> float | None:
        """Return the value of an expression now, None if it isn't known."""
        value: Any = None
        if self._is_length(node):
            value = self._length
        elif isinstance(node, ast.Constant):
            value = node.value
        elif isinstance(node, ast.BinOp):
            left, right = self._of(node.left, parents), self._of(node.right, parents)
            function = _OPERATORS.get(type(node.op))
            if function is not None and left is not None and right is not None:
                value = function(left, right)
        elif isinstance(node, ast.Attribute):
            value = self._attribute(node)
        if value is None and isinstance(node, ast.Name | ast.Attribute):
            value = self._meanings.of(node, self._file, parents)
        return value if type(value) in (int, float) else None

    def _attribute(self, node: ast.Attribute) -> Any:
        """Return the attribute of the nearest object around the holder that has it."""
        for item in self._objects:
            spaces = [namespace(item) or {}, *(kind.__dict__ for kind in type(item).__mro__)]
            for space in spaces if is_script_class(type(item)) else ():
                if node.attr in space:
                    return space[node.attr]
        return None


def _is_counted(side: ast.expr, parents: Parents) -> bool:
    """Return True if the loops around a condition count what this side of it mentions."""
    loops = [item for item in parents if isinstance(item, LOOPS)]
    targets: list[ast.AST] = [item.target for item in loops if not isinstance(item, ast.While)]
    targets += [
        node.target
        for loop in loops
        for node, _ in walk(loop)
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add)
    ]
    counted = {
        ast.unparse(part) for target in targets for part in getattr(target, "elts", [target])
    }
    parts = (part for part in ast.walk(side) if isinstance(part, ast.Name | ast.Attribute))
    return any(ast.unparse(part) in counted for part in parts)


def _comparison(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """Return the greater side and the other one of `a > b`, `b <= a` or `a == b`."""
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return None
    left, right = node.left, node.comparators[0]
    if isinstance(node.ops[0], _GREATER):
        return left, right
    return (right, left) if isinstance(node.ops[0], _LESS) else None
