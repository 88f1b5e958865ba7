"""Reference cycles: what closes one, among the objects that lead to a tensor.

They are searched downwards from the script's objects, which costs little; `gc` finds referrers only
by a pass over all objects.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from memagent.components import safe_reads
from memagent.leaks import source_lines
from memagent.leaks.growth import growing_lines
from memagent.leaks.object_names import ObjectName, file_of
from memagent.leaks.user_code import is_script, is_script_class, namespace
from memagent.leaks.variable_walk import CONTAINERS

_MAX_CYCLE_OBJECTS = 3_000


def can_name_cycle(item: Any) -> bool:
    """Return True for an object, a function or a frame of the script."""
    if issubclass(type(item), FrameType | FunctionType):
        return is_script(_code_of(item).co_filename)
    return is_script_class(type(item))


def name_cycle(visited: Iterable[Any]) -> tuple[ObjectName, source_lines.SourceLine | None] | None:
    """Return what closes a cycle, and its line.

    That is the attribute of a script's object that leads back to the object, else the function
    whose frame or closure is on the way.
    """
    for item in filter(can_name_cycle, visited):
        if issubclass(type(item), FrameType | FunctionType):
            code = _code_of(item)
            text = f"variables of {code.co_name}"
            return ObjectName(text, (), code.co_filename, code.co_name, code=code), None
        space = namespace(item) or {}
        attributes = safe_reads.keys_by_id(space)
        for value in safe_reads.items_of(space.values()).others:
            if id(value) in attributes and (value is item or _leads_to(value, item)):
                return _cycle_attribute(type(item), attributes[id(value)], value)
    return None


def _code_of(item: FrameType | FunctionType) -> CodeType:
    return item.f_code if isinstance(item, FrameType) else item.__code__


def _leads_to(start: Any, target: Any) -> bool:
    todo, visited = [start], {id(start)}
    while todo and len(visited) < _MAX_CYCLE_OBJECTS:
        for part in safe_reads.parts_of(todo.pop()).others:
            if part is target:
                return True
            if id(part) not in visited and not _is_dead_end(part):
                visited.add(id(part))
                todo.append(part)
    return False


def _is_dead_end(item: Any) -> bool:
    """Return True for modules, their namespaces, classes, plain values and tensors."""
    if issubclass(type(item), dict):
        # only the namespace of a module, or of executed code, has this key
        return "__builtins__" in item
    return issubclass(type(item), ModuleType | type | str | int | float) or any(
        kind.__name__ == "Tensor" and kind.__module__.startswith("torch")
        for kind in type(item).__mro__
    )


def _cycle_attribute(
    kind: type, attribute: str, value: Any
) -> tuple[ObjectName, source_lines.SourceLine | None]:
    file = file_of(kind)
    if "hooks" in attribute:
        lines = source_lines.hook_calls(file)
    else:
        lines = source_lines.attribute_assignments(file, kind.__name__, attribute)
    if type(value) in CONTAINERS:  # what is added to it closes the cycle
        scope = source_lines.SourceScope(file, None, kind.__name__)
        added = growing_lines([scope], [f".{attribute}"])
        lines = [line for line in added if line.strength == source_lines.GROWS] or lines
    inside = [line for line in lines if kind.__name__ in line.function.split(".")]
    name = ObjectName(f"{kind.__name__}.{attribute}", (), file, kind.__name__, owner=kind)
    return name, next(iter([*inside, *lines]), None)
