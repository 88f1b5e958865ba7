"""Fixes in the script's own words: with what a suspect's statement stores, and where.

1. `stored_values` reads what the statement stores, and in which holder.
2. If that can't be quoted, the fix names the suspect's holder.
3. `.cpu()` is suggested only for tensors on a device: on the host it frees nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from contextlib import suppress

from memagent.leaks.stored_values import (
    ATOMS,
    StoringStatement,
    Traits,
    is_inner,
    parts_of,
    quotable,
    statement_at,
    stored_by,
)
from memagent.leaks.syntax import function_name

_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+|\[[^\[\]]+\])*")
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


UNKNOWN = Traits()


def statement_fix(kind: str, file: str, line: int, holder: str, traits: Traits) -> str | None:
    """Return the fix for a kind of suspect at a statement, None if its source isn't known.

    holder: the suspect's.
    """
    name = holder.partition(":")[0].removesuffix(".grad")
    attribute = name.rpartition(".")[2]
    quoted = f"`{name}`" if _NAME.fullmatch(name) else _HOLDER_WORDS.get(kind, "it")
    with suppress(RecursionError, ValueError):
        node = statement_at(file, line, attribute)
        if node is None or kind not in _TEXTS:
            return None
        statement = StoringStatement(quoted, node, traits)
        for owner, value, verb in stored_by(node):
            text = None if is_inner(owner, node) else quotable(owner)
            statement = StoringStatement(f"`{text}`" if text else quoted, node, traits, value, verb)
            if attribute in ast.unparse(owner):
                break  # of several, the one that fills the holder
        return _TEXTS[kind](statement)
    return None


def _store_less(item: StoringStatement, rest: str) -> str:
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
    is_tensor = item.traits.are_items and isinstance(item.value, ATOMS)
    return f"{begin}, or store less than {item.stored}{', such as its mean' * is_tensor}."


def _keep_fewer(item: StoringStatement) -> str:
    if item.value is None:
        what = "the objects created at this line" if item.holder == "it" else item.holder
        return f"Delete what is no longer needed of {what}, or keep fewer of them."
    return f"Clear {item.holder} once its values are used, or store less than {item.stored}."


def _list(item: StoringStatement) -> str:
    return _store_less(item, f"clear {item.holder} once its values are used")


def _dict(item: StoringStatement) -> str:
    return _store_less(item, f"delete entries of {item.holder} once they are used")


def _deque(item: StoringStatement) -> str:
    return _store_less(item, f"give {item.holder} a `maxlen`")


def _object(item: StoringStatement) -> str:
    return _store_less(item, f"delete what is no longer needed of {item.holder}")


def _row(item: StoringStatement) -> str:
    what = "what is added" if item.value is None else item.stored
    return (
        f"Make {item.holder} once, as long as it gets, and write {what} into its rows, "
        "or keep running statistics of all values."
    )


def _graph(item: StoringStatement) -> str:
    end = f"{item.holder} keeps the graph of every step otherwise."
    number, cut = item.with_method(".item()"), item.with_method(".detach()")
    if number is None or cut is None:
        return f"Detach {item.stored}: {end}"
    return f"{item.verb} {number} or {cut}: {end}"


def _hidden_state(item: StoringStatement) -> str:
    name = item.holder.strip("`")
    state = f"`{name}.detach()`" if name != item.holder else "the state, detached,"
    return f"Carry {state} into the next step: it keeps the graphs of all earlier steps otherwise."


def _gradient(item: StoringStatement) -> str:
    for part in parts_of(item.node):
        if isinstance(part, ast.Call) and function_name(part) == "backward":
            loss = quotable(part.func.value) if isinstance(part.func, ast.Attribute) else None
            if loss is not None:
                return (
                    f"Use `torch.autograd.grad({loss}, ..., create_graph=True)` instead of "
                    f"`{loss}.backward(create_graph=True)`, or clear each `grad` after each step."
                )
    return "Use the gradients in the same step, or clear each `grad` after each step."


def _hook(item: StoringStatement) -> str:
    for part in parts_of(item.node):
        if isinstance(part, ast.Call) and "hook" in function_name(part):
            owner = quotable(part.func)
            call = f"`{owner}`" if owner else "the registration"
            return f"Call {call} once only, or keep its handle and call the handle's `remove()`."
    return _store_less(item, f"clear {item.holder} before each forward, or remove the hook")


def _closure(item: StoringStatement) -> str:
    return (
        f"Clear {item.holder}, or let the function take tensors as arguments: "
        "a closure keeps everything it mentions."
    )


def _exception(item: StoringStatement) -> str:
    if isinstance(item.node, ast.Raise):
        how = f"Raise a new error each time instead of {item.holder}"
    elif isinstance(item.value, ast.Name):
        name = item.value.id
        how = f"Keep `str({name})` in {item.holder}, or call `{name}.with_traceback(None)`"
    else:
        how = f"Keep the error's text in {item.holder}"
    return f"{how}: a traceback keeps all local variables of its frames."


def _autograd_function(item: StoringStatement) -> str:
    if (text := quotable(item.value)) is None:
        text = "..."
    return (
        f"Use `ctx.save_for_backward({text})` instead of {item.holder}: autograd frees what is "
        "saved that way."
    )


def _cache(item: StoringStatement) -> str:
    name = item.holder.strip("`")
    clear = f"`{name}.cache_clear()`" if name != item.holder else "`cache_clear()`"
    return (
        f"Cache {item.holder} by a number or string, as each tensor is a new key, "
        f"or set `maxsize` and call {clear}."
    )


def _view(item: StoringStatement) -> str:
    copied = item.with_method(".clone()") or "a clone"
    return f"Keep {copied} instead: even a small view keeps the whole tensor that it was cut from."


def _optimizer(item: StoringStatement) -> str:
    calls = (part for part in parts_of(item.node) if isinstance(part, ast.Call))
    is_group = any(function_name(call) == "add_param_group" for call in calls)
    if item.value is not None and not is_group:
        return _store_less(item, f"delete what is no longer needed of {item.holder}")
    return (
        f"Add each parameter group to {item.holder} only once, and create a new optimizer when "
        "parameters are replaced."
    )


def _dataloader(item: StoringStatement) -> str:
    return f"Keep no batches of the loader in {item.holder}, and return plain tensors from it."


def _cycle(item: StoringStatement) -> str:
    text = quotable(item.value)
    proxy = f" by `weakref.proxy({text})`" if isinstance(item.value, ast.Name) else ""
    return (
        "Not a leak: a reference cycle that waits for the garbage collector. "
        f"Break the cycle through {item.holder}{proxy}, or call `gc.collect()` now and then."
    )


def _thread(item: StoringStatement) -> str:
    waits = _call(item)
    is_put = waits is not None and ".put(" in waits
    return (
        f"End each thread that waits {f'at `{waits}`' if waits else 'here'}, and `join` it: "
        "it keeps its variables for as long as it waits."
        + (" Put with a timeout if readers may have ended." if is_put else "")
    )


def _result(item: StoringStatement) -> str:
    text = _call(item)
    return f"the result of `{text}`" if text else "what this line makes"


def _call(item: StoringStatement) -> str | None:
    value = getattr(item.node, "value", None)
    return quotable(value) if isinstance(value, ast.expr) else None


_TEXTS: Mapping[str, Callable[[StoringStatement], str]] = {
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
