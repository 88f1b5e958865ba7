"""Reference cycles: what closes one. Downwards from the script's objects, which costs little; referrers cost a pass over everything."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from types import FrameType, FunctionType, ModuleType
from typing import Any

from memagent.leaks import source_lines
from memagent.leaks.object_names import Name, file_of
from memagent.leaks.user_code import is_script, is_script_class, namespace

_MOST_BELOW = 3_000


def is_telling(item: Any) -> bool:
    """What a cycle is told by: an object of the script, else a function or a frame of it."""
    if isinstance(item, FrameType | FunctionType):
        code = item.f_code if isinstance(item, FrameType) else item.__code__
        return is_script(code.co_filename)
    return is_script_class(type(item))


def closing(met: Sequence[Any]) -> tuple[Name, source_lines.Line | None] | None:
    """What closes a cycle: the attribute of the script's object that leads back to it, else the function whose frame or closure lies on
    the way."""
    for item in filter(is_telling, met):
        if isinstance(item, FrameType | FunctionType):
            code = item.f_code if isinstance(item, FrameType) else item.__code__
            return Name(
                f"variables of {code.co_name}", (), code.co_filename, code.co_name, code=code
            ), None
        for attribute, value in list((namespace(item) or {}).items()):
            if value is item or _leads_to(value, item):
                return _attribute_line(type(item), attribute)
    return None


def _leads_to(start: Any, target: Any) -> bool:
    todo, seen = [start], {id(start)}
    while todo and len(seen) < _MOST_BELOW:
        for part in gc.get_referents(todo.pop()):
            if part is target:
                return True
            if id(part) not in seen and not _is_end(part):
                seen.add(id(part))
                todo.append(part)
    return False


def _is_end(item: Any) -> bool:
    """Modules, their namespaces, classes, tensors: what lies below leads nowhere."""
    if isinstance(item, dict):
        return "__builtins__" in item
    return isinstance(item, ModuleType | type | str | int | float) or _is_tensor(item)


def _attribute_line(kind: type, attribute: str) -> tuple[Name, source_lines.Line | None]:
    file = file_of(kind)
    found = (
        source_lines.hook_calls(file)
        if "hooks" in attribute
        else source_lines.attribute_sets(file, kind.__name__, attribute)
    )
    inside = [line for line in found if kind.__name__ in line.function.split(".")]
    return Name(f"{kind.__name__}.{attribute}", (), file, kind.__name__, owner=kind), next(
        iter([*inside, *found]), None
    )


def _is_tensor(item: Any) -> bool:
    return any(
        kind.__name__ == "Tensor" and kind.__module__.startswith("torch")
        for kind in type(item).__mro__
    )
