"""Fixes in the script's own words: with what a suspect's statement stores, and where.

1. The innermost statement at the line says what is stored and what holds it: `rows.append(x)`,
   `rows[key] = x`, `rows += [x]`, `rows = torch.cat([rows, x])`.
2. An expression that is long, has text other than keys, or wouldn't parse in the fix isn't quoted.
   The fix then names the holder.
3. `.cpu()` is suggested only for tensors on a device: on the host it frees nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from memagent.leaks.syntax import FUNCTIONS, function_name, syntax_tree

_MAX_CHARACTERS = 60
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+|\[[^\[\]]+\])*")
_NUMBER = re.compile(r"(^|_)(loss|acc|accuracy)(_fn)?$")
"""Names of one-element tensors."""
_ATOMS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)
_STORED_AT = {
    **dict.fromkeys(("append", "appendleft", "add", "put", "put_nowait", "push", "extend"), 0),
    **dict.fromkeys(("update", "record", "log", "store", "save", "write"), 0),
    **dict.fromkeys(("insert", "register_buffer"), 1),
}
"""Place of what a method stores, among its arguments."""
_VERBS = {"add": "Add", "put": "Put", "put_nowait": "Put", "append": "Append", "write": "Write"}
_JOINING = ("cat", "concat", "concatenate", "stack", "hstack", "vstack", "append", "pad")
_HOLDER_WORDS = {
    "list": "the list",
    "dict": "the dict",
    "deque": "the deque",
    "set": "the set",
    "variable": "the tensor",
    "buffer": "the buffer",
    "graph": "the sum",
    "hidden_state": "the state",
    "hook": "what the hook fills",
    "cache": "the function",
}


@dataclass(frozen=True)
class Traits:
    """Place and form of the tensors that a holder keeps."""

    is_on_host: bool = False
    has_graph: bool = False
    are_items: bool = True
    """False if they are parts of what is stored, such as a dict of outputs."""


UNKNOWN = Traits()


@dataclass(frozen=True)
class _Statement:
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
        return f"`{text}{suffix}`" if isinstance(self.value, _ATOMS) else f"`({text}){suffix}`"

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


def statement_fix(kind: str, file: str, line: int, holder: str, traits: Traits) -> str | None:
    """Return the fix for a kind of suspect at a statement, None if its source isn't known.

    holder: the suspect's.
    """
    node = _statement_at(file, line)
    if node is None or kind not in _TEXTS:
        return None
    name = holder.partition(":")[0].removesuffix(".grad")
    quoted = f"`{name}`" if _NAME.fullmatch(name) else _HOLDER_WORDS.get(kind, "it")
    statement = _Statement(quoted, node, traits)
    with suppress(RecursionError, ValueError):
        for owner, value, verb in _stored(node):
            text = quotable(owner)
            statement = _Statement(f"`{text}`" if text else quoted, node, traits, value, verb)
            if name.rpartition(".")[2] in ast.unparse(owner):
                break  # of several, the one that fills the holder
        return _TEXTS[kind](statement)
    return None


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


def _statement_at(file: str, line: int) -> ast.stmt | None:
    """Return the innermost statement that spans a line."""
    spanning = (
        node
        for node in ast.walk(syntax_tree(file))
        if isinstance(node, ast.stmt) and _first_line(node) <= line <= (node.end_lineno or 0)
    )
    return max(spanning, key=lambda node: (node.lineno, -(node.end_lineno or 0)), default=None)


def _first_line(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", ())
    return min([node.lineno, *(int(item.lineno) for item in decorators)])


def _parts(node: ast.stmt) -> Iterator[ast.AST]:
    """Yield what is in a statement, without the statements in it."""
    for part in ast.iter_child_nodes(node):
        if not isinstance(part, ast.stmt) and not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield from ast.walk(part)


def _stored(node: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr, str]]:
    """Yield holder, value and verb of what a statement stores."""
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
    for part in _parts(node):
        if not isinstance(part, ast.Call):
            continue
        called, arguments = function_name(part), part.args
        place = _STORED_AT.get(called)
        if isinstance(part.func, ast.Attribute) and place is not None and place < len(arguments):
            yield part.func.value, arguments[place], _VERBS.get(called, "Store")
        elif called in ("heappush", "insort") and len(arguments) == 2:
            yield arguments[0], arguments[1], "Add"
        elif called == "setattr" and len(arguments) == 3:
            yield arguments[0], arguments[2], "Store"


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


def _store_less(item: _Statement, rest: str) -> str:
    """Return what to store instead; `rest` says what to do with the holder."""
    if item.is_number and (number := item.with_method(".item()")):
        return f"{item.verb} {number} instead of {item.stored}, and {rest}."
    missing = item.missing_methods
    if missing and (other := item.with_method(missing)):
        return f"{item.verb} {other} instead of {item.stored}, and {rest}."
    begin = rest[0].upper() + rest[1:]
    if item.value is None:
        return f"{begin}, or keep numbers in it instead of tensors."
    if missing and not item.traits.is_on_host:
        return f"{begin}, and move the tensors of {item.stored} to the CPU, detached."
    is_tensor = item.traits.are_items and isinstance(item.value, _ATOMS)
    return f"{begin}, or store less than {item.stored}{', such as its mean' * is_tensor}."


def _keep_fewer(item: _Statement) -> str:
    if item.value is None:
        what = "the objects created at this line" if item.holder == "it" else item.holder
        return f"Delete what is no longer needed of {what}, or keep fewer of them."
    return f"Clear {item.holder} once its values are used, or store less than {item.stored}."


def _list(item: _Statement) -> str:
    return _store_less(item, f"clear {item.holder} once its values are used")


def _dict(item: _Statement) -> str:
    return _store_less(item, f"delete entries of {item.holder} once they are used")


def _deque(item: _Statement) -> str:
    return _store_less(item, f"give {item.holder} a `maxlen`")


def _object(item: _Statement) -> str:
    return _store_less(item, f"delete what is no longer needed of {item.holder}")


def _row(item: _Statement) -> str:
    what = "what is added" if item.value is None else item.stored
    return (
        f"Make {item.holder} once, as long as it gets, and write {what} into its rows, "
        "or keep running statistics of all values."
    )


def _graph(item: _Statement) -> str:
    end = f"{item.holder} keeps the graph of every step otherwise."
    number, cut = item.with_method(".item()"), item.with_method(".detach()")
    if number is None or cut is None:
        return f"Detach {item.stored}: {end}"
    return f"{item.verb} {number} or {cut}: {end}"


def _hidden_state(item: _Statement) -> str:
    name = item.holder.strip("`")
    state = f"`{name}.detach()`" if name != item.holder else "the state, detached,"
    return f"Carry {state} into the next step: it keeps the graphs of all earlier steps otherwise."


def _gradient(item: _Statement) -> str:
    for part in _parts(item.node):
        if isinstance(part, ast.Call) and function_name(part) == "backward":
            loss = quotable(part.func.value) if isinstance(part.func, ast.Attribute) else None
            if loss is not None:
                return (
                    f"Use `torch.autograd.grad({loss}, ..., create_graph=True)` instead of "
                    f"`{loss}.backward(create_graph=True)`, or clear each `grad` after each step."
                )
    return "Use the gradients in the same step, or clear each `grad` after each step."


def _hook(item: _Statement) -> str:
    for part in _parts(item.node):
        if isinstance(part, ast.Call) and "hook" in function_name(part):
            owner = quotable(part.func)
            call = f"`{owner}`" if owner else "the registration"
            return f"Call {call} once only, or keep its handle and call the handle's `remove()`."
    return _store_less(item, f"clear {item.holder} before each forward, or remove the hook")


def _closure(item: _Statement) -> str:
    return (
        f"Clear {item.holder}, or let the function take tensors as arguments: "
        "a closure keeps everything it mentions."
    )


def _exception(item: _Statement) -> str:
    if isinstance(item.value, ast.Name):
        name = item.value.id
        how = f"Keep `str({name})` in {item.holder}, or call `{name}.with_traceback(None)`"
    else:
        how = f"Keep the error's text in {item.holder}"
    return f"{how}: a traceback keeps all local variables of its frames."


def _autograd_function(item: _Statement) -> str:
    if (text := quotable(item.value)) is None:
        text = "..."
    return (
        f"Use `ctx.save_for_backward({text})` instead of {item.holder}: autograd frees what is "
        "saved that way."
    )


def _cache(item: _Statement) -> str:
    name = item.holder.strip("`")
    clear = f"`{name}.cache_clear()`" if name != item.holder else "`cache_clear()`"
    return (
        f"Cache {item.holder} by a number or string, as each tensor is a new key, "
        f"or set `maxsize` and call {clear}."
    )


def _view(item: _Statement) -> str:
    copied = item.with_method(".clone()") or "a clone"
    return f"Keep {copied} instead: even a small view keeps the whole tensor that it was cut from."


def _optimizer(item: _Statement) -> str:
    calls = (part for part in _parts(item.node) if isinstance(part, ast.Call))
    is_group = any(function_name(call) == "add_param_group" for call in calls)
    if item.value is not None and not is_group:
        return _store_less(item, f"delete what is no longer needed of {item.holder}")
    return (
        f"Add each parameter group to {item.holder} only once, and create a new optimizer when "
        "parameters are replaced."
    )


def _dataloader(item: _Statement) -> str:
    return f"Keep no batches of the loader in {item.holder}, and return plain tensors from it."


def _cycle(item: _Statement) -> str:
    text = quotable(item.value)
    proxy = f" by `weakref.proxy({text})`" if isinstance(item.value, ast.Name) else ""
    return (
        "Not a leak: a reference cycle that waits for the garbage collector. "
        f"Break the cycle through {item.holder}{proxy}, or call `gc.collect()` now and then."
    )


def _thread(item: _Statement) -> str:
    waits = _call(item)
    is_put = waits is not None and ".put(" in waits
    return (
        f"End each thread that waits {f'at `{waits}`' if waits else 'here'}, and `join` it: "
        "it keeps its variables for as long as it waits."
        + (" Put with a timeout if readers may have ended." if is_put else "")
    )


def _result(item: _Statement) -> str:
    text = _call(item)
    return f"the result of `{text}`" if text else "what this line makes"


def _call(item: _Statement) -> str | None:
    value = getattr(item.node, "value", None)
    return quotable(value) if isinstance(value, ast.expr) else None


_TEXTS: Mapping[str, Callable[[_Statement], str]] = {
    "list": _list,
    "set": _list,
    "dict": _dict,
    "deque": _deque,
    "object": _object,
    "variable": _row,
    "buffer": _row,
    "graph": _graph,
    "hidden_state": _hidden_state,
    "gradient": _gradient,
    "hook": _hook,
    "closure": _closure,
    "exception": _exception,
    "autograd_function": _autograd_function,
    "cache": _cache,
    "view": _view,
    "optimizer": _optimizer,
    "dataloader": _dataloader,
    "cycle": _cycle,
    "host": _keep_fewer,
    "allocation": lambda item: f"Check what keeps {_result(item)}: it's still in use steps later.",
    "thread": _thread,
    "worker": lambda item: (
        f"Store nothing in {item.holder} in `__getitem__`: each worker has its "
        "own copy of the dataset, which grows until the epoch ends."
    ),
    "copy_on_write": lambda item: (
        f"Keep {item.holder} as a numpy array or a tensor: reading "
        "Python objects writes their reference counts, which copies their pages."
    ),
}
