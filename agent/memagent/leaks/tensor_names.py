"""What a person calls a large tensor that is no parameter: the variable that holds it, else the module whose output it is."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from memagent.leaks import source_lines
from memagent.leaks.diagnosis import lines_of
from memagent.leaks.object_names import Name
from memagent.leaks.referrers import ReferrerSearch
from memagent.leaks.time_budget import TimeBudget
from memagent.leaks.user_code import Scopes, own_frame

_LONGEST_S = 0.3
_MOST_NODES = 64
_PASSING = re.compile(
    r"^(T|Transpose|Permute|Expand|View|Reshape|ToCopy|Detach|Clone|AsStrided|Unsafe\w*)Backward\d*$"
)
"""Nodes between a parameter and the operation that it is for."""


@dataclass(frozen=True)
class Origin:
    """A readable expression; the line that sets it, as far as it is known."""

    name: str
    file: str = ""
    line: int = 0


def variables(
    tensors: Sequence[Any], error: BaseException | None = None, *, overlook: Sequence[Any] = ()
) -> list[Origin | None]:
    """The names by which the script holds these, in its running functions and those that the `error` has ended. As many as there is
    time for, in their order. `overlook`: one more list of ours that holds tensors. Raises MemoryError where there is no room to look."""
    ended = [
        frame
        for frame, _ in traceback.walk_tb(error.__traceback__ if error else None)
        if not own_frame(frame)
    ]
    scopes = Scopes(ended)
    deadline = TimeBudget.after(cpu_s=_LONGEST_S, wall_s=2 * _LONGEST_S)
    climber = ReferrerSearch(scopes, {id(tensors), id(overlook), id(ended)}, deadline)
    found: list[Origin | None] = []
    try:
        for tensor in tensors:
            name = None if deadline.is_over() else climber.name(tensor).name
            found.append(_origin(scopes, name) if name is not None and name.is_good else None)
    finally:
        climber.close()
        source_lines.forget()
    return found


def _origin(scopes: Scopes, name: Name) -> Origin:
    line = next(iter(lines_of(scopes, name)), None)
    if line is None:
        first = name.code.co_firstlineno if name.code is not None else None
        scope = source_lines.Scope(
            name.file, first, name.owner.__name__ if name.owner is not None else ""
        )
        with suppress(OSError, SyntaxError, ValueError):
            line = next(
                filter(
                    None, (source_lines.setting(scope, part) for part in reversed(name.identifiers))
                ),
                None,
            )
    return (
        Origin(name.expression, line.file, line.line)
        if line
        else Origin(name.expression, name.file)
    )


def output_of(tensor: Any, parameters: Mapping[int, str], modules: Mapping[str, str]) -> str:
    """`output of layers.3.fc1 (Linear)`, `relu after layers.3.fc1 (Linear)`, or `result of relu`: by the nearest parameter in its graph.

    parameters: names by id. modules: class names by path."""
    node = tensor.grad_fn
    if node is None:
        return "tensor"
    operation = _operation(node)
    path, is_own = _nearest(node, parameters)
    if path is None:
        return f"result of {operation}"
    module = path.rpartition(".")[0] or path
    place = f"{module} ({modules[module]})" if module in modules else module
    return f"output of {place}" if is_own else f"{operation} after {place}"


def _nearest(node: Any, parameters: Mapping[int, str]) -> tuple[str | None, bool]:
    """The name of the nearest parameter, breadth first, and whether it is this very node's."""
    todo: list[tuple[Any, bool]] = [(following, True) for following, _ in node.next_functions]
    for _ in range(_MOST_NODES):
        if not todo:
            break
        following, is_own = todo.pop(0)
        if following is None:
            continue
        name = parameters.get(id(getattr(following, "variable", None)))
        if name is not None:
            return name, is_own
        passes = is_own and _PASSING.match(type(following).__name__) is not None
        todo += [(further, passes) for further, _ in following.next_functions]
    return None, False


def _operation(node: Any) -> str:
    """`log_softmax` of LogSoftmaxBackward0."""
    name = re.sub(r"Backward\d*$", "", type(node).__name__)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
