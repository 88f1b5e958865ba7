"""Statements that keep what a call of the script returns, as far as its source shows.

From the innermost call of a path outwards, with the statement of each:

1. If it adds to something, that is the holder: `self.rows.append(read(file))`.
2. If it sets a variable that a later statement of the function adds to something, that one is:
   `self.table = concat([self.table, chunk])`.
3. If the result is returned, the caller's statement comes next.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memagent.leaks.growing_statements import growth_strength
from memagent.leaks.source_lines import GROWS, later_uses
from memagent.leaks.syntax import FUNCTIONS, Parents, assignment_targets, content, mention_of

_MODULES = frozenset(("np", "numpy", "torch"))


@dataclass(frozen=True)
class Statement:
    """A statement of the script, with the nodes that it's in."""

    file: str
    node: ast.stmt
    parents: Parents

    @property
    def function(self) -> ast.AST:
        """Return the function that it's in, else the module."""
        inner = reversed(self.parents)
        return next((item for item in inner if isinstance(item, FUNCTIONS)), self.parents[0])

    @property
    def calls(self) -> list[ast.Call]:
        """Return its calls, without those of the statements in it."""
        parts = (part for part in ast.iter_child_nodes(self.node) if not isinstance(part, ast.stmt))
        return [item for part in parts for item in ast.walk(part) if isinstance(item, ast.Call)]

    @property
    def variables(self) -> set[str]:
        """Return the local variables that it sets."""
        is_setting = isinstance(self.node, ast.Assign | ast.AnnAssign)
        targets = assignment_targets(self.node) if is_setting else []  # type: ignore[arg-type]
        return {item.id for item in targets if isinstance(item, ast.Name)}


def keeper_of(path: Sequence[Statement]) -> tuple[Statement, str] | None:
    """Return the statement that keeps what the last call of a path returns, and what it adds to."""
    for statement in reversed(path):
        for later in (statement, *_later_uses(statement)):
            if holder := _grown(later):
                return later, holder
        if not _is_returned(statement):
            return None
    return None


def keeper_at(file: str, line: int) -> tuple[Statement, str] | None:
    """Return the statement that keeps what a line makes, and what it adds to.

    None if that's a variable of its function, which ends with each call.
    """
    for node, parents in content(file).by_line.get(line, ())[-1:]:
        statement = Statement(file, node, parents)
        is_sum = isinstance(node, ast.AugAssign)
        keeper = (statement, ast.unparse(node.target)) if is_sum else keeper_of([statement])  # type: ignore[attr-defined]
        return keeper if keeper is not None and _outlives_call(*keeper) else None
    return None


def _outlives_call(statement: Statement, holder: str) -> bool:
    root: ast.AST = ast.parse(holder, mode="eval").body
    while isinstance(root, ast.Attribute | ast.Subscript | ast.Call):
        root = root.func if isinstance(root, ast.Call) else root.value
    function = statement.function
    if not isinstance(root, ast.Name) or not isinstance(function, FUNCTIONS):
        return True
    parts = list(ast.walk(function))
    outer = (part for part in parts if isinstance(part, ast.Global | ast.Nonlocal))
    stored = (part for part in parts if isinstance(part, ast.Name) and part.id == root.id)
    is_outer = any(root.id in part.names for part in outer)
    return is_outer or not any(isinstance(part.ctx, ast.Store) for part in stored)


def _is_module(value: ast.expr) -> bool:
    """Return True for the numpy of `np.append`, which returns another array."""
    return isinstance(value, ast.Name) and value.id in _MODULES


def _grown(statement: Statement) -> str:
    """Return what a statement adds to, "" if nothing. Not sums: they're of numbers."""
    node, targets = statement.node, list[ast.expr]()
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = assignment_targets(node)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        function = node.value.func
        is_method = isinstance(function, ast.Attribute) and not _is_module(function.value)
        targets = [function.value] if is_method else []  # type: ignore[attr-defined]
    for target in targets:
        name = mention_of(target)
        if name and growth_strength(node, {name}, statement.parents, name) == GROWS:
            return ast.unparse(target.value if isinstance(target, ast.Subscript) else target)
    return ""


def _later_uses(statement: Statement) -> Iterator[Statement]:
    """Yield the later statements of the function that pass on what one of them makes."""
    for node, parents in later_uses(statement.file, statement.node, statement.parents):
        if _passes(node, statement.variables):
            yield Statement(statement.file, node, parents)


def _passes(node: ast.AST, names: set[str]) -> bool:
    """Return True if a variable is used as it is, not only something of it."""
    parts = ast.Attribute | ast.Subscript
    owners = {id(item.value) for item in ast.walk(node) if isinstance(item, parts)}
    used = (item for item in ast.walk(node) if isinstance(item, ast.Name) and item.id in names)
    return any(isinstance(item.ctx, ast.Load) and id(item) not in owners for item in used)


def _is_returned(statement: Statement) -> bool:
    if isinstance(statement.node, ast.Return):
        return True
    names, parts = statement.variables, ast.walk(statement.function)
    return any(isinstance(part, ast.Return) and _passes(part, names) for part in parts)
