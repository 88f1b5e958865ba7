"""Kinds of growth that has a limit in the source: evidence for the forecast.

`limits` finds that something may stop growing. Its kind decides how often that happens:

1. An *epoch*'s values: something empties all of it, `rows.clear()`, `metric.reset()`, `rows = []`.
   A function that neither its file nor the main one calls doesn't count, unless a framework does:
   `on_validation_end`.
2. A *cache* is filled by key. A key that counts the run's steps never comes again, so nothing ends
   that growth: it's a *list*. Numbers within an epoch come again.
3. Anything else that has a limit is a *buffer*: its items are counted, cut off, or leave one by
   one. `bounds` couldn't read the number.
4. Of several suspects, the kind that most of the growth is of counts.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Sequence

from memagent.forecast.types import Growing
from memagent.leaks.limits import (
    depends_on,
    is_keyed,
    may_stop_growing,
    names_of,
    nodes_of,
    statements_of,
    takes_out,
)
from memagent.leaks.syntax import FUNCTIONS, Parents, assignment_targets, function_name
from memagent.wire.messages import Suspect

_EMPTYING_METHODS = frozenset(("clear", "reset", "flush"))
_CALLED_BY_FRAMEWORKS = ("on_", "__", "training_", "validation_", "test_")
_COUNTING_CALLS = frozenset(("range", "enumerate", "count"))
_REPEATING = (ast.Mod, ast.FloorDiv)
_LOOPS = (ast.For, ast.While, ast.AsyncFor)


def growth_of(suspects: Sequence[Suspect], is_beyond: Callable[[Suspect], bool]) -> Growing:
    """Return what most of the suspects' growth is (4), "unknown" without any.

    is_beyond: returns True if memory doesn't suffice for the limit of a suspect.
    """
    rates = Counter[Growing]()
    for item in suspects:
        kind: Growing = "list" if is_beyond(item) else _kind_of(item)
        rates[kind] += max(1, round(item.bytes_per_step or 0))
    return rates.most_common(1)[0][0] if rates else "unknown"


def _kind_of(suspect: Suspect) -> Growing:
    if not may_stop_growing(suspect):
        return "list"
    statements = statements_of(suspect)
    names = names_of(suspect, statements)
    nodes = list(nodes_of(suspect.file))
    called = {function_name(node) for node, _ in nodes if isinstance(node, ast.Call)}
    called.update(_function(parents) for _, parents in statements)
    taking = [
        node
        for node, parents in nodes
        if takes_out(node, parents, names, suspect.line) and _runs(parents, called)
    ]
    if any(map(_empties, taking)):
        return "epoch"
    asks = any(depends_on(node, parents, names) for node, parents in statements)
    if is_keyed(suspect):
        return "list" if not taking and not asks and _has_new_keys(suspect) else "cache"
    return "buffer"


# -- what is emptied ----------------------------------------------------------------------------


def _empties(node: ast.AST) -> bool:
    """Return True for what leaves no item: a selection of items leaves some."""
    if isinstance(node, ast.Assign):
        selections = (ast.Subscript, ast.comprehension)
        return not any(isinstance(part, selections) for part in ast.walk(node.value))
    return isinstance(node, ast.Call) and function_name(node) in _EMPTYING_METHODS


def _runs(parents: Parents, called: set[str]) -> bool:
    name = _function(parents)
    return not name or name in called or name.startswith(_CALLED_BY_FRAMEWORKS)


def _function(parents: Parents) -> str:
    """Return the name of the innermost function, "" outside of functions."""
    return next((item.name for item in reversed(parents) if isinstance(item, FUNCTIONS)), "")


# -- keys ---------------------------------------------------------------------------------------


def _has_new_keys(suspect: Suspect) -> bool:
    """Return True if a key of what the line stores counts the steps of the run (2)."""
    keys = [
        target.slice
        for node, _ in statements_of(suspect)
        if isinstance(node, ast.Assign)
        for target in assignment_targets(node)
        if isinstance(target, ast.Subscript)
    ]
    counters = _counters(suspect) if keys else set()
    return any(_counts(key, counters) for key in keys)


def _counts(key: ast.expr, counters: set[str]) -> bool:
    parts = list(ast.walk(key))
    if any(isinstance(part, ast.BinOp) and isinstance(part.op, _REPEATING) for part in parts):
        return False
    names = (part for part in parts if isinstance(part, ast.Name | ast.Attribute))
    return any(ast.unparse(part) in counters for part in names)


def _counters(suspect: Suspect) -> set[str]:
    """Return the variables that count up and never begin again."""
    nodes = list(nodes_of(suspect.file))
    repeated = {
        function_name(node)
        for node, parents in nodes
        if isinstance(node, ast.Call) and _is_looped(parents, set())
    }
    counted, begun_again = set[str](), set[str]()
    for node, parents in nodes:
        is_again = _is_looped(parents, repeated)
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            counted.add(ast.unparse(node.target))
        elif isinstance(node, ast.For) and _is_counting(node.iter):
            target = node.target.elts[0] if isinstance(node.target, ast.Tuple) else node.target
            (begun_again if is_again else counted).add(ast.unparse(target))
        elif isinstance(node, ast.Assign):
            is_method = _function(parents) not in ("", "__init__")
            begun_again |= {
                ast.unparse(target)
                for target in assignment_targets(node)
                if is_again or (is_method and isinstance(target, ast.Attribute))
            }
    return counted - begun_again


def _is_counting(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and function_name(value) in _COUNTING_CALLS


def _is_looped(parents: Parents, repeated: set[str]) -> bool:
    """Return True in a loop, and in a function that is called in one."""
    return any(isinstance(item, _LOOPS) for item in parents) or _function(parents) in repeated
