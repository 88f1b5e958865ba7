"""Hooks on a module that a call of the module runs and nothing else sees.

`module.register_forward_hook` puts a hook into a dict that belongs to the module. That dict is
saved by `torch.save(model)`, copied with the model, and inspected: `torch.jit.script` compiles what
it finds there, `torch.cuda.make_graphed_callables` refuses it, and `nn.TransformerEncoder` leaves
its fast path. A `HookTable` takes the dict's place instead:

1. Torch runs a module's hooks by `items()` (torch/nn/modules/module.py, `_call_impl`). Only there,
   and in the truth value that it tests first, do hidden hooks exist.
2. Length, keys, values, comparison and `repr` are those of the dict, and so is what C code and
   torch.compile read: the table is a dict of the script's hooks.
3. A pickle or a copy of the table is a pickle or a copy of the dict: the same bytes as without
   memagent.
4. While torch.compile, torch.export or torch.jit.trace records a call, there are no hidden hooks.
5. Handles of hooks that the script registered earlier remove them from the dict itself. The next
   call of the module removes them from the table, too.
6. A training forward in a step that isn't read (`memagent.sampling.repetition`) has no hidden
   hooks either. With cold caches, torch's way to them takes as long as they do: 35 us together.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from memagent.hooks.compiling import compiling_test, dynamo_test
from memagent.sampling.sampler import Sampler

_PRE_HOOKS = "_forward_pre_hooks"
_PRE_HOOKS_WITH_KWARGS = "_forward_pre_hooks_with_kwargs"
_HOOKS = "_forward_hooks"


class HookTable(OrderedDict[Any, Any]):
    """One of a module's dicts of hooks, with `hidden` entries for calls of the module."""

    def __init__(self, hooks: OrderedDict[Any, Any]) -> None:
        super().__init__(hooks)
        self.hidden: dict[object, Any] = {}
        self.module: Callable[[], Any] = type(None)
        self.sampler: Sampler | None = None
        """The one whose unread steps need none of `hidden`."""
        self._hooks = hooks
        self._hooks_before = tuple(hooks)
        self._is_recorded = recording_test()
        self._is_dynamo = dynamo_test()
        self._records_gradients: Callable[[], bool] = sys.modules["torch"].is_grad_enabled

    # Torch calls these five times a forward: with cold caches, each Python function takes 2 us.

    def items(self) -> Any:
        if self._is_recorded():
            return super().items()
        if len(self._hooks) != len(self._hooks_before):
            self._follow_removals()
        return (*super().items(), *self.hidden.items())

    def __bool__(self) -> bool:
        # other recorders than Dynamo may take the way of a module with hooks: `items` has none
        if len(self) > 0 or not self.hidden or self._is_dynamo():
            return len(self) > 0
        sampler = self.sampler
        if (
            sampler is None
            or not sampler.is_unread
            or not self._records_gradients()
            or (module := self.module()) is None
            or not module.training
        ):
            return True
        sampler.phase = "forward"
        return False

    def __contains__(self, key: object) -> bool:
        return key in self.hidden or super().__contains__(key)

    def __repr__(self) -> str:
        return repr(self.copy())

    def copy(self) -> OrderedDict[Any, Any]:  # type: ignore[override]
        return OrderedDict(self)

    def __copy__(self) -> OrderedDict[Any, Any]:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> OrderedDict[Any, Any]:
        return copy.deepcopy(self.copy(), memo)

    def __reduce__(self) -> Any:
        return self.copy().__reduce__()

    def restored(self) -> OrderedDict[Any, Any]:
        """Return the module's own dict, with what the script has changed since."""
        self._follow_removals()
        self._hooks.clear()
        self._hooks.update(self.copy())
        return self._hooks

    def _follow_removals(self) -> None:
        for key in self._hooks_before:
            if key not in self._hooks:
                self.pop(key, None)
        self._hooks_before = tuple(self._hooks)


def hide_forward_hooks(
    module: Any,
    before: Callable[..., None],
    after: Callable[[Any, Any, Any], None] | None = None,
    sampler: Sampler | None = None,
) -> Callable[[], None]:
    """Call `before(module, args, kwargs)` and `after(module, args, output)` around each call.

    Torch calls `before(module, args)` if a hook that ran before it in the same call has removed it.

    Except training forwards in unread steps of `sampler`, if no other hooks are hidden there.

    Returns a function that removes both. They run after the script's own hooks. The module is held
    weakly.
    """
    key = object()
    entries: dict[str, Any] = {_PRE_HOOKS: before, _PRE_HOOKS_WITH_KWARGS: True}
    if after is not None:
        entries[_HOOKS] = after
    reference = weakref.ref(module)
    for name, hook in entries.items():
        table = _table(module, name)
        table.hidden[key] = hook
        table.module = reference
        table.sampler = sampler if len(table.hidden) == 1 else None

    def remove() -> None:
        if (live := reference()) is not None:
            for name in entries:
                _remove(live, name, key)

    return remove


def recording_test() -> Callable[[], bool]:
    """Return a test for being recorded by torch.compile, torch.export or torch.jit.trace."""
    is_compiling = compiling_test()
    tracing_state: Callable[[], Any] = sys.modules["torch"]._C._get_tracing_state
    # torch.compile reads the first as a constant, and never reaches the second
    return lambda: is_compiling() or tracing_state() is not None


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
            vars(module)[name] = table.restored()
