"""Limits in the script's source for what grows: whether a suspect may stop growing by itself.

A buffer that is flushed, a cache with few keys and a replay memory that fills up grow as steadily
as a leak, for a while. The source tells that such a limit may exist, but not when it's reached:
only a longer window shows that.

1. Something takes items out or begins anew: `name.clear()`, `heappop(name)`, `del name[key]`,
   `name = {"a": []}` or `name = new()` after its beginning, `name = name[-n:]`, `get()` for a
   queue, and `name.execute("delete ...")`.
2. The line that adds depends on what is there: `name[key] = x`, `if key not in name`, `if len(name)
   < n`, `name = (name + x)[-n:]`, also where such a condition returns before.
3. It's the state of an optimizer or a cache of results: they grow until all parameters or arguments
   are known. Threads become more until a pool is full.
4. It's added once for each key: `if word not in numbers`, where the word gets a number. Of what is
   kept by key (`is_keyed`), less and less is added if keys come again.

What grows only while something is left that the source counts down ends by itself: `if budget > 0`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from memagent.leaks.source_lines import is_in_loop, later_uses
from memagent.leaks.syntax import (
    FUNCTIONS,
    Parents,
    assignment_targets,
    content,
    function_name,
    is_mention,
    mention_of,
    uses,
)
from memagent.leaks.user_code import main_file
from memagent.wire.messages import Suspect

LIMITED_KINDS = frozenset(("optimizer", "cache", "thread"))
_TAKING_METHODS = frozenset(
    ("clear", "pop", "popleft", "popitem", "discard", "remove", "reset", "flush", "move_to_end")
)
_QUEUE_METHODS = frozenset(("get", "get_nowait"))
_KEY_METHODS = frozenset(("setdefault", "add"))
_TAKING_FUNCTIONS = frozenset(("heappop", "heappushpop", "heapreplace"))
_NEW_CONTAINERS = frozenset(
    ("list", "dict", "set", "deque", "defaultdict", "OrderedDict", "Counter")
)
_DELETION = re.compile(r"\s*(delete|drop|truncate|replace)\b", re.IGNORECASE)
LEAVING = (ast.Return, ast.Continue, ast.Break, ast.Raise)
_HOLDER = re.compile(r"(\.?\w+)(?:\[[^\]]*\]|\.\.\.)*(?::|$)")


def may_stop_growing(suspect: Suspect) -> bool:
    """Return True if the source has a limit for what a suspect names."""
    if suspect.kind in LIMITED_KINDS:
        return True
    statements = statements_of(suspect)
    names = names_of(suspect, statements)
    return are_limited(statements, names) or any(
        takes_out(node, parents, names, suspect.line) for node, parents in nodes_of(suspect.file)
    )


def are_limited(statements: list[tuple[ast.stmt, Parents]], names: set[str]) -> bool:
    """Return True if a statement itself limits what it adds to (2, 4)."""
    return any(
        _is_keyed(node)
        or _crops_itself(node, names)
        or depends_on(node, parents, names)
        or _is_once_per_key(node, parents)
        for node, parents in statements
    )


def is_keyed(suspect: Suspect) -> bool:
    """Return True for what is kept by key, or once for each key: one that comes again adds nothing.

    The line may be another one, so the name of the holder counts as well.
    """
    if suspect.kind == "cache":
        return True
    statements = statements_of(suspect)
    holder = _HOLDER.search(suspect.holder)
    names = {holder[1]} if holder else set()
    return any(
        _is_keyed(node) or _is_once_per_key(node, parents) for node, parents in statements
    ) or any(_stores_by_key(node, names) for node, _ in nodes_of(suspect.file))


def statements_of(suspect: Suspect) -> list[tuple[ast.stmt, Parents]]:
    """Return the statements at a suspect's line, and what uses the variables that they set."""
    statements = content(suspect.file).by_line.get(suspect.line or 0, [])
    return statements + [
        later for node, parents in statements for later in later_uses(suspect.file, node, parents)
    ]


def names_of(suspect: Suspect, statements: list[tuple[ast.stmt, Parents]]) -> set[str]:
    names = {name for node, _ in statements for name in _growing_names(node)}
    if holder := _HOLDER.search(suspect.holder):
        names.add(holder[1])
    return names - {""}


def nodes_of(file: str) -> Iterator[tuple[ast.AST, Parents]]:
    """Yield the statements and calls of a file, and of the main one."""
    for item in files_of(file):
        yield from content(item).nodes


def files_of(file: str) -> Iterable[str]:
    """Return a file and the main one."""
    return dict.fromkeys((file, main_file() or file))


def ends_by_itself(suspect: Suspect) -> bool:
    """Return True if the line, or each call of its function, asks for what is counted down."""
    nodes = list(nodes_of(suspect.file))
    counters = {
        mention_of(node.target)
        for node, _ in nodes
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Sub)
    }
    if not counters:
        return False
    lines = content(suspect.file).by_line.get(suspect.line or 0, [])
    function = (suspect.function or "").rpartition(".")[2]
    is_call = (isinstance(node, ast.Call) and function_name(node) == function for node, _ in nodes)
    calls = [item for item, matches in zip(nodes, is_call, strict=True) if matches]
    return any(
        bool(places) and all(_asks_for_rest(parents, counters) for _, parents in places)
        for places in (lines, calls)
    )


def _asks_for_rest(parents: Parents, counters: set[str]) -> bool:
    """Return True if one of the conditions compares a counter: `if self.budget > 0`.

    Not that of a loop, which may count down the steps.
    """
    tests = [item.test for item in parents if isinstance(item, ast.If)]
    return any(
        isinstance(part, ast.Compare) and mention_of(part.left) in counters
        for test in tests
        for part in ast.walk(test)
    )


def replaces_items(file: str, line: int) -> bool:
    """Return True if what a line makes is stored by key, perhaps in place of another item."""
    for node, parents in content(file).by_line.get(line, ()):
        later = (item for item, _ in later_uses(file, node, parents))
        if any(map(_is_keyed, (node, *later))) and not _lengthens_item(node):
            return True
    return False


def _lengthens_item(node: ast.stmt) -> bool:
    """Return True for `rows[key] = concatenate([rows[key], x])`: the item grows by itself."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return False
    target = ast.unparse(node.targets[0])
    return any(ast.unparse(part) == target for part in ast.walk(node.value))


def _growing_names(node: ast.stmt) -> Iterator[str]:
    """Yield what a statement adds to: `.rows` for `self.rows.append(x)`."""
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        yield from map(mention_of, assignment_targets(node))
    if isinstance(node, ast.Expr | ast.Assign):
        yield from _called_names(node.value)


def _called_names(value: ast.AST) -> Iterator[str]:
    """Yield the objects of method calls. Those in the arguments of one are what is added."""
    if isinstance(value, ast.Call) and function_name(value) == "heappush":
        yield from map(mention_of, value.args[:1])
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        value = value.func.value
        while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            value = value.func.value  # `name.setdefault(key, []).append(x)`
        yield mention_of(value)
    else:
        for part in ast.iter_child_nodes(value):
            yield from _called_names(part)


def _is_keyed(node: ast.stmt) -> bool:
    """Return True for `rows[key] = x`: keys may come again."""
    targets = assignment_targets(node) if isinstance(node, ast.Assign) else ()
    return any(isinstance(item, ast.Subscript) for item in targets)


def _stores_by_key(node: ast.AST, names: set[str]) -> bool:
    """Return True for `rows[key] = x`, `rows.setdefault(key, x)` and `rows.add(key)`."""
    if isinstance(node, ast.Assign):
        stored = [item for item in assignment_targets(node) if isinstance(item, ast.Subscript)]
        return any(mention_of(item) in names and _is_computed(item.slice) for item in stored)
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return (
        is_method
        and node.func.attr in _KEY_METHODS  # type: ignore[attr-defined]
        and mention_of(node.func.value) in names  # type: ignore[attr-defined]
    )


def _is_computed(key: ast.expr) -> bool:
    return not isinstance(key, ast.Constant | ast.Slice)


def _is_once_per_key(node: ast.stmt, parents: Parents) -> bool:
    """Return True if a condition asks for a key that the same function stores."""
    tests = [item.test for item in parents if isinstance(item, ast.If)]
    tables = {
        mention_of(value)
        for test in (*tests, *_tests_before(node, parents))
        for part in ast.walk(test)
        if isinstance(part, ast.Compare)
        for operator, value in zip(part.ops, part.comparators, strict=True)
        if isinstance(operator, ast.In | ast.NotIn)
    } - {""}
    function = next((item for item in reversed(parents) if isinstance(item, FUNCTIONS)), None)
    scope = function or next(iter(parents), None)
    return bool(tables and scope) and any(_stores_by_key(part, tables) for part in ast.walk(scope))  # type: ignore[arg-type]


def _crops_itself(node: ast.stmt, names: set[str]) -> bool:
    """Return True for `queue = torch.cat([queue, x])[-n:]`."""
    return isinstance(node, ast.Assign) and any(
        isinstance(part, ast.Subscript)
        and isinstance(part.slice, ast.Slice)
        and uses(part.value, names)
        for part in ast.walk(node.value)
    )


def depends_on(node: ast.stmt, parents: Parents, names: set[str]) -> bool:
    """Return True if a condition asks for a key, or for the number of items, before a statement."""
    tests = [item.test for item in parents if isinstance(item, ast.If | ast.While)]
    return any(_asks(test, names) for test in (*tests, *_tests_before(node, parents)))


def _tests_before(node: ast.stmt, parents: Parents) -> Iterator[ast.expr]:
    """Yield the tests of what leaves a function or a loop before it comes to a statement."""
    for outer, inner in pairwise((*parents, node)):
        body = getattr(outer, "body", ())
        for item in body[: body.index(inner)] if inner in body else ():
            if isinstance(item, ast.If) and isinstance(item.body[-1], LEAVING):
                yield item.test


def _asks(test: ast.expr, names: set[str]) -> bool:
    return any(
        (isinstance(part, ast.Compare) and _asks_for_key(part, names))
        or (isinstance(part, ast.Call) and function_name(part) == "len" and uses(part, names))
        for part in ast.walk(test)
    )


def _asks_for_key(test: ast.Compare, names: set[str]) -> bool:
    return any(
        isinstance(operator, ast.In | ast.NotIn) and is_mention(value, names)
        for operator, value in zip(test.ops, test.comparators, strict=True)
    )


def takes_out(node: ast.AST, parents: Parents, names: set[str], line: int) -> bool:
    """Return True for what takes items out or begins anew, unless it's on the suspect's line."""
    if isinstance(node, ast.Delete):
        return any(is_mention(target, names) for target in node.targets)
    if isinstance(node, ast.Call) and function_name(node) in _TAKING_FUNCTIONS:
        return any(is_mention(item, names) for item in node.args[:1])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        methods = _TAKING_METHODS if node.args else _TAKING_METHODS | _QUEUE_METHODS
        is_taking = node.func.attr in methods or _deletes_rows(node)
        return is_taking and is_mention(node.func.value, names)
    if not isinstance(node, ast.Assign) or node.lineno == line:
        return False
    return any(
        mention_of(target) in names
        and not isinstance(target, ast.Subscript)
        and (_crops(value) or not uses(value, {mention_of(target)}))
        and _is_later(target, parents)
        for target, value in assignments(node)
    )


def _deletes_rows(call: ast.Call) -> bool:
    """Return True for `db.execute("delete from rows where ...")`."""
    texts = (item.value for item in call.args[:1] if isinstance(item, ast.Constant))
    is_query = function_name(call) in ("execute", "executemany")
    return is_query and any(_DELETION.match(text) for text in texts if isinstance(text, str))


def assignments(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield targets with their values, one by one for `self.predictions, self.count = [], 0`."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


def _crops(value: ast.expr) -> bool:
    """Return True for a selection of items: `names[-n:]`, `[name for name in names if ...]`."""
    if isinstance(value, ast.Call):
        return function_name(value) in _NEW_CONTAINERS
    return isinstance(value, ast.Subscript | ast.ListComp | ast.DictComp | ast.SetComp)


def _is_later(target: ast.expr, parents: Parents) -> bool:
    """Return True unless an assignment is the first: at the top of a function or a module."""
    functions = [item.name for item in parents if isinstance(item, FUNCTIONS)]
    is_method = bool(functions) and functions[-1] != "__init__"
    return is_in_loop(parents) or (isinstance(target, ast.Attribute) and is_method)
