"""Kinds of growth that has a limit in the source: evidence for the forecast.

`limits` finds that something may stop growing. Its kind decides how often that happens:

1. An *epoch*'s values: something empties all of it, `rows.clear()`, `metric.reset()`, `rows = []`.
   A function that neither its file nor the main one calls doesn't count, unless a framework does:
   `on_validation_end`.
2. A *cache* is filled by key. A key that counts the run's steps never comes again, so nothing ends
   that growth: it's a *list*. So does a text, sum or tuple with such a number: `f"step {n}"`.
   Numbers within an epoch come again, and other results of a number may: `words.get(step)`.
3. Anything else that has a limit is a *buffer*: its items are counted, cut off, or leave one by
   one. `bounds` couldn't read the number.
4. Of several suspects, the kind that most of the growth is of counts. Lines that allocate don't if
   the others hold most of it: what a table keeps was allocated somewhere, too.

A source of thousands of lines takes longer than one slice, so all of it is work in slices: reading
each file once, and a pass over its statements for each suspect.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from memagent.forecast.types import Growing
from memagent.leaks.detectors.base import Work
from memagent.leaks.limits import (
    LIMITED_KINDS,
    are_limited,
    assignments,
    depends_on,
    ends_by_itself,
    files_of,
    is_keyed,
    names_of,
    nodes_of,
    statements_of,
    takes_out,
)
from memagent.leaks.syntax import (
    FUNCTIONS,
    LOOPS,
    NODES_AT_ONCE,
    Parents,
    assignment_targets,
    content,
    function_name,
    read_content,
)
from memagent.leaks.time_budgets import TimeBudget
from memagent.wire.messages import Suspect

_EMPTYING_METHODS = frozenset(("clear", "reset", "flush"))
_CALLED_BY_FRAMEWORKS = ("on_", "__", "training_", "validation_", "test_")
_COUNTING_CALLS = frozenset(("range", "enumerate", "count"))
_TEXTS = frozenset(("str", "repr", "format"))


@dataclass(frozen=True)
class SourceEvidence:
    """Kinds of suspects and their growth, by the source.

    suspects: those that don't end by themselves. growing: what most of their growth is (4),
    "unknown" without any. keyed: lines of those that fill a table by keys that may come again.
    """

    suspects: list[Suspect]
    growing: Growing
    keyed: frozenset[tuple[str, int | None]]


def source_evidence(
    suspects: Sequence[Suspect], is_beyond: Callable[[Suspect], bool], budget: TimeBudget
) -> Work[SourceEvidence]:
    """Read the source of suspects in slices.

    is_beyond: returns True if memory doesn't suffice for the limit of a suspect.
    """
    reading = _Reading(is_beyond)
    for _ in reading.read(suspects):
        if budget.is_slice_over():
            yield
    return SourceEvidence(reading.suspects, _main_kind(reading.kinds), frozenset(reading.keyed))


def _main_kind(kinds: Sequence[tuple[Suspect, Growing]]) -> Growing:
    """Return what most of the growth of suspects is (4), "unknown" without any."""
    rates, allocated = Counter[Growing](), Counter[Growing]()
    for suspect, kind in kinds:
        counted = allocated if suspect.kind == "allocation" else rates
        counted[kind] += max(1, round(suspect.bytes_per_step or 0))
    if 2 * rates.total() < allocated.total():
        rates += allocated
    return rates.most_common(1)[0][0] if rates else "unknown"


class _Reading:
    """Reads the source in parts, each of about a millisecond, or one pass over a file's calls."""

    def __init__(self, is_beyond: Callable[[Suspect], bool]) -> None:
        self._is_beyond = is_beyond
        self.suspects: list[Suspect] = []
        self.kinds: list[tuple[Suspect, Growing]] = []
        """Suspects with the kinds of their growth."""
        self.keyed: set[tuple[str, int | None]] = set()
        self._counters: dict[str, set[str]] = {}
        """Variables that count the run's steps, by file."""

    def read(self, suspects: Sequence[Suspect]) -> Iterator[None]:
        """Read all suspects. Yield where training may go on."""
        for suspect in suspects:
            for file in files_of(suspect.file):
                yield from read_content(file)
            if not ends_by_itself(suspect):
                self.suspects.append(suspect)
                yield
                yield from self._read_kind(suspect)
            yield

    def _read_kind(self, suspect: Suspect) -> Iterator[None]:
        keyed = is_keyed(suspect)
        if keyed:
            self.keyed.add((suspect.file, suspect.line))
        yield
        kind: Growing = "list"
        if not self._is_beyond(suspect):
            kind = yield from self._kind_of(suspect, keyed=keyed)
        self.kinds.append((suspect, kind))

    def _kind_of(self, suspect: Suspect, *, keyed: bool) -> Work[Growing]:
        statements = statements_of(suspect)
        names = names_of(suspect, statements)
        taking: list[tuple[ast.AST, Parents]] = []
        for count, (node, parents) in enumerate(nodes_of(suspect.file), 1):
            if takes_out(node, parents, names, suspect.line):
                taking.append((node, parents))
            if count % NODES_AT_ONCE == 0:
                yield
        is_limited = suspect.kind in LIMITED_KINDS or are_limited(statements, names)
        if not taking and not is_limited:
            return "list"
        called = {_function(parents) for _, parents in statements}
        called = called.union(*(content(file).called for file in files_of(suspect.file)))
        running = [node for node, parents in taking if _runs(parents, called)]
        if any(map(_empties, running)):
            return "epoch"
        if not keyed:
            return "buffer"
        asks = any(depends_on(node, parents, names) for node, parents in statements)
        if running or asks or not (yield from self._has_new_keys(suspect)):
            return "cache"
        self.keyed.discard((suspect.file, suspect.line))
        return "list"

    def _has_new_keys(self, suspect: Suspect) -> Work[bool]:
        """Return True if a key of what the line stores counts the steps of the run (2)."""
        for node, parents in statements_of(suspect):
            targets = assignment_targets(node) if isinstance(node, ast.Assign) else []
            keys = [target.slice for target in targets if isinstance(target, ast.Subscript)]
            if not keys:
                continue
            if suspect.file not in self._counters:
                self._counters[suspect.file] = yield from _counters(suspect.file)
            new = yield from _new_before(node, parents, self._counters[suspect.file])
            if any(_is_new(key, new) for key in keys):
                return True
        return False


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


def _new_before(node: ast.stmt, parents: Parents, counters: set[str]) -> Work[set[str]]:
    """Return the counters, and what is set to a new value before a statement, in the same block."""
    new = set(counters)
    body = getattr(parents[-1], "body", ())
    for count, item in enumerate(body[: body.index(node)] if node in body else (), 1):
        for target, value in assignments(item) if isinstance(item, ast.Assign) else ():
            (new.update if _is_new(value, new) else new.difference_update)(_variables(target))
        if count % NODES_AT_ONCE == 0:
            yield
    return new


def _is_new(value: ast.expr, new: set[str]) -> bool:
    """Return True for a counter, and for a text, sum or tuple with one.

    Any other result may come again: `rows[step]`, `bucket_of(step)`, `step > 100`.
    """
    if isinstance(value, ast.Name | ast.Attribute):
        return not new.isdisjoint(_variables(value))
    return any(_is_new(part, new) for part in _parts(value))


def _parts(value: ast.expr) -> list[ast.expr]:
    """Return the parts of a text, sum or tuple: with a new one, all of it is new."""
    if isinstance(value, ast.Tuple):
        return value.elts
    if isinstance(value, ast.JoinedStr):
        return [part.value for part in value.values if isinstance(part, ast.FormattedValue)]
    if isinstance(value, ast.BinOp) and _is_text(value.left) and isinstance(value.op, ast.Mod):
        return [value.right]
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return [value.left, value.right]
    if isinstance(value, ast.BinOp) and isinstance(value.right, ast.Constant):
        return [value.left] if isinstance(value.op, ast.Sub | ast.Mult) else []
    is_text = isinstance(value, ast.Call) and function_name(value) in _TEXTS
    return value.args if is_text else []  # type: ignore[attr-defined]


def _is_text(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _counters(file: str) -> Work[set[str]]:
    """Return the variables that count up and never begin again."""
    repeated, counted, begun_again = set[str](), set[str](), set[str]()
    for count, (node, parents) in enumerate(nodes_of(file), 1):
        if isinstance(node, ast.Call) and _is_looped(parents, set()):
            repeated.add(function_name(node))
        if count % NODES_AT_ONCE == 0:
            yield
    repeated.discard("")  # what `functions[0]()` calls is unknown, and not the module
    for count, (node, parents) in enumerate(nodes_of(file), 1):
        if isinstance(node, ast.AugAssign):
            is_sum = isinstance(node.op, ast.Add)
            (counted if is_sum else begun_again).update(_variables(node.target))
        elif isinstance(node, ast.For) and _is_counting(node.iter):
            target = node.target.elts[0] if isinstance(node.target, ast.Tuple) else node.target
            is_again = _is_looped(parents, repeated)
            (begun_again if is_again else counted).update(_variables(target))
        elif isinstance(node, ast.Assign):
            begun_again |= _begun_again(node, parents, repeated)
        if count % NODES_AT_ONCE == 0:
            yield
    return counted - begun_again


def _begun_again(node: ast.Assign, parents: Parents, repeated: set[str]) -> set[str]:
    is_again = _is_looped(parents, repeated)
    is_method = _function(parents) not in ("", "__init__")
    targets = (
        _variables(target)
        for target in assignment_targets(node)
        if is_again or (is_method and isinstance(target, ast.Attribute))
    )
    return set().union(*targets)


def _variables(target: ast.expr) -> set[str]:
    """Return `{"self.count"}`, and nothing for a target that isn't a variable or attribute."""
    if isinstance(target, ast.Name):
        return {target.id}
    return {ast.unparse(target)} if isinstance(target, ast.Attribute) else set()


def _is_counting(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and function_name(value) in _COUNTING_CALLS


def _is_looped(parents: Parents, repeated: set[str]) -> bool:
    """Return True in a loop, and in a function that is called in one."""
    return any(isinstance(item, LOOPS) for item in parents) or _function(parents) in repeated
