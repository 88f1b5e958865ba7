"""Hooks on a module that a call of the module runs and nothing else sees.

`module.register_forward_hook` puts a hook into a dict that belongs to the module. That dict is
saved by `torch.save(model)`, copied with the model, and inspected: `torch.jit.script` compiles what
it finds there, `torch.cuda.make_graphed_callables` refuses it, and `nn.TransformerEncoder` leaves
its fast path. A `HookTable` takes the dict's place instead:

1. Torch runs a module's hooks by `items()` (torch/nn/modules/module.py, `_call_impl`). Only there,
   and in the truth value that it tests first, do hidden hooks exist.
2. Length, keys, values, comparison and `repr` are those of the dict.
3. A pickle or a copy of the table is a pickle or a copy of the dict: the same bytes as without
   memagent.
4. Handles of hooks that the script registered before or afterwards stay valid, because the table
   changes the dict itself.
"""

from __future__ import annotations

import copy
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

_PRE_HOOKS = "_forward_pre_hooks"
_PRE_HOOKS_WITH_KWARGS = "_forward_pre_hooks_with_kwargs"
_HOOKS = "_forward_hooks"


class HookTable(MutableMapping[Any, Any]):
    """One of a module's dicts of hooks, with `hidden` entries for calls of the module."""

    def __init__(self, hooks: OrderedDict[Any, Any]) -> None:
        self.hooks = hooks
        self.hidden: dict[object, Any] = {}

    def items(self) -> Any:
        return (*self.hooks.items(), *self.hidden.items())

    def __bool__(self) -> bool:
        return bool(self.hooks or self.hidden)

    def __contains__(self, key: object) -> bool:
        return key in self.hooks or key in self.hidden

    def __getitem__(self, key: Any) -> Any:
        return self.hooks[key]

    def __setitem__(self, key: Any, hook: Any) -> None:
        self.hooks[key] = hook

    def __delitem__(self, key: Any) -> None:
        del self.hooks[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.hooks)

    def __reversed__(self) -> Any:
        return reversed(self.hooks)

    def __len__(self) -> int:
        return len(self.hooks)

    def keys(self) -> Any:
        return self.hooks.keys()

    def values(self) -> Any:
        return self.hooks.values()

    def move_to_end(self, key: Any, last: bool = True) -> None:
        self.hooks.move_to_end(key, last)

    def copy(self) -> OrderedDict[Any, Any]:
        return self.hooks.copy()

    def __copy__(self) -> OrderedDict[Any, Any]:
        return copy.copy(self.hooks)

    def __deepcopy__(self, memo: dict[int, Any]) -> OrderedDict[Any, Any]:
        return copy.deepcopy(self.hooks, memo)

    def __reduce__(self) -> Any:
        return self.hooks.__reduce__()

    def __eq__(self, other: object) -> bool:
        return self.hooks == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.hooks)


def hide_forward_hooks(
    module: Any,
    before: Callable[[Any, tuple[Any, ...], dict[str, Any]], None],
    after: Callable[[Any, Any, Any], None],
) -> Callable[[], None]:
    """Call `before(module, args, kwargs)` and `after(module, args, output)` around each call.

    Returns a function that removes both. They run after the script's own hooks. The module is held
    weakly.
    """
    key = object()
    entries = {_PRE_HOOKS: before, _PRE_HOOKS_WITH_KWARGS: True, _HOOKS: after}
    for name, hook in entries.items():
        _table(module, name).hidden[key] = hook
    reference = weakref.ref(module)

    def remove() -> None:
        if (live := reference()) is not None:
            for name in entries:
                _remove(live, name, key)

    return remove


def _table(module: Any, name: str) -> HookTable:
    hooks = vars(module)[name]
    if not isinstance(hooks, HookTable):
        hooks = vars(module)[name] = HookTable(hooks)
    return hooks


def _remove(module: Any, name: str, key: object) -> None:
    table = vars(module).get(name)
    if isinstance(table, HookTable):
        table.hidden.pop(key, None)
        # A handle that the script received since refers to the table: it must go on working.
        if not table.hidden and not weakref.getweakrefcount(table):
            vars(module)[name] = table.hooks
