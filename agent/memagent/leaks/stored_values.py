"""Statement that stores something: what it stores, where, and how both are quoted in a fix.

1. The innermost statement at the line says what is stored and what holds it: `rows.append(x)`,
   `rows[key] = x`, `rows += [x]`, `rows = torch.cat([rows, x])`.
2. An expression that is long, has text other than keys, or wouldn't parse in the fix isn't quoted.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from memagent.leaks.syntax import FUNCTIONS, function_name, syntax_tree

_MAX_CHARACTERS = 60
_NUMBER = re.compile(r"(^|_)(loss|acc|accuracy)(_fn)?$")
"""Names of one-element tensors."""
ATOMS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)
_STORED_AT = {
    **dict.fromkeys(("append", "appendleft", "add", "put", "put_nowait", "push", "extend"), 0),
    **dict.fromkeys(("update", "record", "log", "store", "save", "write"), 0),
    **dict.fromkeys(("insert", "register_buffer"), 1),
}
"""Place of what a method stores, among its arguments."""
_VERBS = {"add": "Add", "put": "Put", "put_nowait": "Put", "append": "Append", "write": "Write"}
_NUMPY = ("np", "numpy")
_JOINING = ("cat", "concat", "concatenate", "stack", "hstack", "vstack", "append", "pad")


@dataclass(frozen=True)
class Traits:
    """Place and form of the tensors that a holder keeps."""

    is_on_host: bool = False
    has_graph: bool = False
    are_items: bool = True
    """False if they are parts of what is stored, such as a dict of outputs."""


@dataclass(frozen=True)
class StoringStatement:
    """A statement that stores `value` in `holder`, None if it isn't plain."""

    holder: str
    node: ast.stmt
    traits: Traits
    value: ast.expr | None = None
    verb: str = "Store"

    @property
    def stored(self) -> str:
        """Return the stored expression in backticks, "the value" if it can't be quoted."""
        text = quotable(_undetached(self.value))
        return f"`{text}`" if text else "the value"

    def with_method(self, suffix: str) -> str | None:
        """Return the stored expression with a method call, None if it can't be quoted."""
        text = quotable(self.value)
        is_display = isinstance(self.value, ast.Tuple | ast.List | ast.Dict | ast.Set)
        if text is None or is_display or not self.traits.are_items:
            return None
        return f"`{text}{suffix}`" if isinstance(self.value, ATOMS) else f"`({text}){suffix}`"

    @property
    def missing_methods(self) -> str:
        """Return what detaches the value and takes it off the device, as far as it's needed."""
        text = "" if self.value is None else ast.unparse(self.value)
        on_host = ["detach"] if self.traits.has_graph else []
        wanted = on_host if self.traits.is_on_host else ["detach", "cpu"]
        return "".join(f".{name}()" for name in wanted if f".{name}()" not in text)

    @property
    def is_number(self) -> bool:
        return self.value is not None and bool(_NUMBER.search(_last_name(self.value).lower()))


def quotable(node: ast.expr | None) -> str | None:
    """Return the source of an expression that may stand in a message, else None."""
    if node is None:
        return None
    text = ast.unparse(node)
    # strings may be secrets, but for keys, which holders show as well
    keys = {id(part.slice) for part in ast.walk(node) if isinstance(part, ast.Subscript)}
    strings = (part for part in ast.walk(node) if isinstance(part, ast.Constant))
    has_text = any(isinstance(item.value, str | bytes) for item in strings if id(item) not in keys)
    is_plain = len(text) <= _MAX_CHARACTERS and not has_text and not set(text) & set("`\n")
    return text if is_plain else None


def _undetached(value: ast.expr | None) -> ast.expr | None:
    """Return `x` for `x.detach().cpu()`."""
    is_method = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
    if is_method and function_name(value) in ("detach", "cpu", "clone"):  # type: ignore[arg-type]
        return _undetached(value.func.value)  # type: ignore[union-attr]
    return value


def statement_at(file: str, line: int, attribute: str) -> ast.stmt | None:
    """Return the innermost statement that spans a line.

    If a line has several statements, the one that stores in what ends with `attribute` counts.
    If none does, it's the statement that contains the others, or None.
    """
    spanning = [
        node
        for node in ast.walk(syntax_tree(file))
        if isinstance(node, ast.stmt) and _first_line(node) <= line <= (node.end_lineno or 0)
    ]
    innermost = max(map(_extent, spanning), default=None)
    nodes = [node for node in spanning if _extent(node) == innermost]
    outermost = nodes[0] if nodes and _spans(nodes[0], nodes) else None
    return next(
        (node for node in nodes if len(nodes) > 1 and _stores_in(node, attribute)), outermost
    )


def _extent(node: ast.stmt) -> tuple[int, int]:
    """Return what is largest for the innermost statement."""
    return node.lineno, -(node.end_lineno or 0)


def _spans(node: ast.stmt, nodes: Collection[ast.stmt]) -> bool:
    """Return True if a statement has all others in it."""
    inner = set(ast.walk(node)) if len(nodes) > 1 else {node}
    return all(other in inner for other in nodes)


def _stores_in(node: ast.stmt, attribute: str) -> bool:
    return any(attribute in ast.unparse(owner) for owner, _, _ in stored_by(node))


def _first_line(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", ())
    return min([node.lineno, *(int(item.lineno) for item in decorators)])


def parts_of(node: ast.stmt) -> Iterator[ast.AST]:
    """Yield what is in a statement, without the statements in it."""
    for part in ast.iter_child_nodes(node):
        if not isinstance(part, ast.stmt) and not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield from ast.walk(part)


def stored_by(node: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr | None, str]]:
    """Yield holder, value and verb of what a statement stores.

    The value is None if it has variables that only a part of the statement knows.
    """
    for owner, value, verb in _stored_by(node):
        yield owner, None if is_inner(value, node) else value, verb


def is_inner(value: ast.expr, node: ast.stmt) -> bool:
    """Return True if a part of a statement has variables of a comprehension, or `lambda`, in it."""
    own = _variables_of(ast.walk(value))
    inner = _variables_of(parts_of(node)) - own
    return any(isinstance(part, ast.Name) and part.id in inner for part in ast.walk(value))


def _variables_of(parts: Iterable[ast.AST]) -> set[str]:
    """Return the variables of comprehensions, and the parameters of `lambda`."""
    names: set[str] = set()
    for part in parts:
        if isinstance(part, ast.comprehension):
            targets = ast.walk(part.target)
            names.update(item.id for item in targets if isinstance(item, ast.Name))
        elif isinstance(part, ast.arg):
            names.add(part.arg)
    return names


def _stored_by(node: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr, str]]:
    if isinstance(node, ast.AugAssign):
        value = node.value
        is_one = isinstance(value, ast.List) and len(value.elts) == 1
        yield node.target, value.elts[0] if is_one else value, "Add"  # type: ignore[attr-defined]
    elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if (added := _added(node.value, ast.unparse(target))) is not None:
            yield target, added, "Add"
        elif isinstance(target, ast.Subscript):
            yield target.value, node.value, "Store"
        elif isinstance(target, ast.Name | ast.Attribute):
            yield target, node.value, "Store"
    for part in parts_of(node):
        if not isinstance(part, ast.Call):
            continue
        called, arguments = function_name(part), part.args
        place = _STORED_AT.get(called)
        is_method = isinstance(part.func, ast.Attribute) and not _is_numpy(part.func.value)
        if is_method and place is not None and place < len(arguments):
            yield part.func.value, arguments[place], _VERBS.get(called, "Store")  # type: ignore[attr-defined]
        elif called in ("heappush", "insort") and len(arguments) == 2:
            yield arguments[0], arguments[1], "Add"
        elif called == "setattr" and len(arguments) == 3:
            yield arguments[0], arguments[2], "Store"


def _is_numpy(value: ast.expr) -> bool:
    """Return True for the module: its `append` returns another array."""
    return isinstance(value, ast.Name) and value.id in _NUMPY


def _added(value: ast.expr, name: str) -> ast.expr | None:
    """Return `x` of `[*name, x]`, `name + [x]` and `torch.cat([name, x])`."""
    items: list[ast.expr] = []
    if isinstance(value, ast.BinOp):
        items = [value.left, value.right]
    elif isinstance(value, ast.Call) and function_name(value) in _JOINING:
        items = list(value.args)
    elif isinstance(value, ast.List | ast.Tuple):
        items = list(value.elts)
    if items and isinstance(items[0], ast.List | ast.Tuple) and isinstance(value, ast.Call):
        items = list(items[0].elts)
    others = [item for item in items if name not in ast.unparse(item)]
    if len(others) == len(items) or not others:
        return None
    is_one = isinstance(others[0], ast.List | ast.Tuple) and len(others[0].elts) == 1
    return others[0].elts[0] if is_one else others[0]  # type: ignore[attr-defined]


def _last_name(value: ast.expr) -> str:
    """Return `loss` for `output.loss`, `losses["loss"]`, `loss.detach()` and `loss(x)`."""
    if isinstance(value, ast.Call):
        is_method = isinstance(value.func, ast.Attribute) and not value.args
        return _last_name(value.func.value if is_method else value.func)  # type: ignore[attr-defined]
    if isinstance(value, ast.Subscript):
        is_key = isinstance(value.slice, ast.Constant) and isinstance(value.slice.value, str)
        return value.slice.value if is_key else _last_name(value.value)  # type: ignore[attr-defined]
    if isinstance(value, ast.Attribute):
        return value.attr
    return value.id if isinstance(value, ast.Name) else ""
