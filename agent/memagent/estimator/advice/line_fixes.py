"""Fix of a leak as a change of its line, from the source that the agent sent.

1. The line must be a whole statement.
2. The kind of the suspect says which expression keeps too much, and what to put around it: the
   graph of a sum or of a carried state is cut, a view is copied, an error becomes its text.
3. A stored loss becomes a number. Other tensors move to the host, if a device runs out of memory;
   on a host itself they have to be dropped, which is more than a change of this line.
4. A line that does so already, or that is more than one place could be meant in, has no change.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from memagent.record.masking import MASK

_ATOMS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)
"""Expressions that take a `.method()` without parentheses."""
_STORING_CALLS = ("append", "appendleft", "add", "put", "put_nowait")
_SCALAR = re.compile(r"(^|_)(loss|acc|accuracy)(_fn)?$")
"""Names of numbers, by which people call one-element tensors."""
Edit = tuple[ast.expr, str, str]
"""An expression, and the text before and after it."""


def diff_of(suspect: Mapping[str, Any], *, on_host: bool = False) -> str:
    """Return the suspect's line and the changed line as a diff, "" if it needs more than that.

    on_host: the memory that grows is the host's.
    """
    change = change_in_source(suspect, on_host=on_host)
    return f"- {change[1]}\n+ {change[2]}" if change else ""


def change_in_source(
    suspect: Mapping[str, Any], *, on_host: bool = False
) -> tuple[int, str, str] | None:
    """Return where in the suspect's source its line is, the line and the changed line, if any."""
    if (place := _line_of(suspect)) is None:
        return None
    kind, (index, line) = str(suspect.get("kind")), place
    changed = changed_line(kind, line, on_host=is_on_host(suspect, on_host=on_host))
    return (index, line, changed) if changed and _agrees(suspect, line, changed) else None


def is_on_host(suspect: Mapping[str, Any], *, on_host: bool = False) -> bool:
    """Return True if what the suspect keeps is in host memory: by its fix, which the agent wrote.

    on_host: that of the device is.
    """
    fix, kind = str(suspect.get("fix") or ""), suspect.get("kind")
    is_quoting = "`" in fix and _EDITS.get(str(kind)) is _store_less
    return on_host or (is_quoting and ".cpu()" not in fix)


def stored_at(suspect: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return what a suspect's line fills and what it stores there, None if that isn't plain."""
    place = _line_of(suspect)
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        [statement] = ast.parse(place[1] if place else "").body
        [(holder, value)] = _stored(statement)
        if isinstance(holder, ast.Name | ast.Attribute | ast.Subscript):
            text = ast.unparse(value)
            return ast.unparse(holder), text if isinstance(value, _ATOMS) else f"({text})"
    return None


def _line_of(suspect: Mapping[str, Any]) -> tuple[int, str] | None:
    """Return the suspect's line and its place in the source, None if that isn't known."""
    source, first = suspect.get("source"), suspect.get("source_first_line")
    index = (suspect.get("line") or 0) - (first or 0)
    if not isinstance(source, Sequence) or not 0 <= index < len(source):
        return None
    line = str(source[index]).strip()
    return None if MASK in line else (index, line)


def _agrees(suspect: Mapping[str, Any], line: str, changed: str) -> bool:
    """Return False for `loss.item()` if the fix doesn't say so: the agent saw what is stored."""
    is_number = changed.count(".item()") > line.count(".item()")
    fix = str(suspect.get("fix") or "")
    return not is_number or "`" not in fix or ".item()" in fix


def changed_line(kind: str, line: str, *, on_host: bool = False) -> str | None:
    """Return the line that no longer leaks, None if no change of it alone is sure to do that."""
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        [statement] = ast.parse(line).body
        edits = list(_EDITS[kind](statement, on_host)) if kind in _EDITS else []
        if edits and not _are_ambiguous(kind, edits):
            changed = _edited(line, edits)
            ast.parse(changed)
            return changed
    return None


def _are_ambiguous(kind: str, edits: Sequence[Edit]) -> bool:
    return kind != "hidden_state" and len(edits) > 1


def _edited(line: str, edits: Sequence[Edit]) -> str:
    text = line.encode()  # columns count bytes
    for node, before, after in sorted(edits, key=lambda item: -item[0].col_offset):
        begin, end = node.col_offset, node.end_col_offset
        expression = text[begin:end].decode()
        if after.startswith(".") and not isinstance(node, _ATOMS):
            expression = f"({expression})"
        text = text[:begin] + f"{before}{expression}{after}".encode() + text[end:]
    return text.decode()


def _stored(statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what a statement fills, and stores: `a` and `x` of `a.append(x)`, `a[i] = x`, ..."""
    for node in ast.walk(statement):
        is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if is_method and node.func.attr in _STORING_CALLS and len(node.args) == 1:  # type: ignore[attr-defined]
            yield node.func.value, node.args[0]  # type: ignore[attr-defined]
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            yield node.targets[0].value, node.value
        elif isinstance(node, ast.AugAssign) and isinstance(node.value, ast.List):
            yield from ((node.target, item) for item in node.value.elts)


def _store_less(statement: ast.stmt, on_host: bool) -> Iterator[Edit]:
    for _, value in _stored(statement):
        text = ast.unparse(value)
        calls = re.findall(r"\.(detach|cpu|item|tolist)\(\)", text)
        if not isinstance(value, _ATOMS) or calls[-1:] in (["item"], ["tolist"]):
            continue
        if _SCALAR.search(_last_name(value).lower()):
            yield value, "", ".item()"
        elif not on_host:
            missing = [name for name in ("detach", "cpu") if name not in calls]
            if missing:
                yield value, "", "".join(f".{name}()" for name in missing)


def _copy_view(statement: ast.stmt, _on_host: bool) -> Iterator[Edit]:
    for _, value in _stored(statement):
        if isinstance(value, _ATOMS) and ".clone()" not in ast.unparse(value):
            yield value, "", ".clone()"


def _keep_text(statement: ast.stmt, _on_host: bool) -> Iterator[Edit]:
    yield from (
        (value, "str(", ")") for _, value in _stored(statement) if isinstance(value, ast.Name)
    )


def _cut_sum(statement: ast.stmt, _: bool) -> Iterator[Edit]:
    """Detach what is added: the sum keeps its type, and may be used as before."""
    added: Sequence[ast.expr] = ()
    if isinstance(statement, ast.AugAssign):
        added = [statement.value]
    elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.BinOp):
        names = {ast.unparse(target) for target in statement.targets}
        sides = [statement.value.left, statement.value.right]
        added = [side for side in sides if ast.unparse(side) not in names]
        added = added if len(added) < len(sides) else ()
    for value in added:
        if not re.search(r"\.(detach|item)\(\)$", ast.unparse(value)):
            yield value, "", ".detach()"


def _cut_state(statement: ast.stmt, _: bool) -> Iterator[Edit]:
    """Detach the state where it enters: `h` of `out, h = cell(x, h)`.

    An LSTM's is a pair, which has no `detach` unless both are named.
    """
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return
    call = statement.value
    names = {ast.unparse(item) for target in statement.targets for item in _leaves(target)}
    for argument in (*call.args, *(item.value for item in call.keywords)):
        is_pair = not isinstance(argument, ast.Tuple) and "lstm" in ast.unparse(call.func).lower()
        for item in () if is_pair else _leaves(argument):
            if ast.unparse(item) in names:
                yield item, "", ".detach()"


def _leaves(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Tuple):
        for item in node.elts:
            yield from _leaves(item)
    else:
        yield node


def _last_name(value: ast.expr) -> str:
    """Return `loss` for `output.loss`, `losses["loss"]`, `loss.detach()` and `loss(x)`."""
    if isinstance(value, ast.Call):
        is_method = isinstance(value.func, ast.Attribute) and not value.args
        return _last_name(value.func.value if is_method else value.func)  # type: ignore[attr-defined]
    if isinstance(value, ast.Attribute):
        return value.attr
    if isinstance(value, ast.Subscript):
        key = value.slice
        has_name = isinstance(key, ast.Constant) and isinstance(key.value, str)
        return key.value if has_name else _last_name(value.value)  # type: ignore[attr-defined]
    return value.id if isinstance(value, ast.Name) else ""


_EDITS: Mapping[str, Callable[[ast.stmt, bool], Iterator[Edit]]] = {
    **dict.fromkeys(("list", "dict", "deque", "set"), _store_less),
    "view": _copy_view,
    "exception": _keep_text,
    "graph": _cut_sum,
    "hidden_state": _cut_state,
}
