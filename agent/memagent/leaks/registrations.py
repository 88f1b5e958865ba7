"""Registrations of parameters and buffers: the line of the script that a module gets them from.

A library's call makes modules deep inside of other modules: `model.add_adapter(name, config)`. What
holds their parameters is the library's, and no statement of the script fills it. So while a
diagnosis counts, note for each parameter and buffer that is registered the innermost line of the
script on the stack, outside of constructors.

Functions may be registered with code in C, which Python doesn't see: `passing_call` finds which
call of the script got one.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from types import FrameType
from typing import Any

from memagent.leaks.autograd_graphs import is_leaf
from memagent.leaks.detectors.base import CodePosition
from memagent.leaks.source_lines import GROWS, SourceLine, source_line
from memagent.leaks.syntax import function_name, mention_of, syntax_tree, walk
from memagent.leaks.user_code import is_script, namespace, script_modules

_MAX_FRAMES = 100
_MAX_NOTES = 100_000
_TAKING_BACK = ("un", "remove", "discard", "cancel")
"""Beginnings of the names of what takes a function back."""
_KEY = -1
"""Key of the hooks among torch's, whose own keys count from 0."""


class Registrations:
    """Notes of one window, by the id of the tensor. An id may be that of a later tensor."""

    def __init__(self) -> None:
        self._lines: dict[int, CodePosition] = {}

    def start(self) -> None:
        """Note registrations from now on, in all threads."""
        _begin(self._lines)

    def stop(self) -> None:
        """Forget all notes."""
        _end(self._lines)
        self._lines = {}

    @property
    def lines(self) -> Mapping[int, CodePosition]:
        return self._lines


_active: list[dict[int, CodePosition]] = []
"""The notes to add to, at most one. The hooks stay: to remove one may fail in another thread."""


def _begin(notes: dict[int, CodePosition]) -> None:
    _active[:] = [notes]
    if "torch" in sys.modules:
        _install_hooks()


@cache
def _install_hooks() -> None:
    # without the functions that register hooks: they number the hooks of the script, too
    module = sys.modules["torch"].nn.modules.module
    module._global_parameter_registration_hooks[_KEY] = _note
    module._global_buffer_registration_hooks[_KEY] = _note


def _end(notes: dict[int, CodePosition]) -> None:
    if any(notes is other for other in _active):
        _active.clear()


def _note(_: Any, __: str, tensor: Any) -> None:
    for notes in _active:
        if tensor is not None and len(notes) < _MAX_NOTES:
            notes.pop(id(tensor), None)
            with suppress(Exception):  # it would end the script's call
                if (line := _script_line(sys._getframe(1))) is not None:
                    notes[id(tensor)] = line


def _script_line(frame: FrameType | None) -> CodePosition | None:
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return None
        code = frame.f_code
        if code.co_name != "__init__" and is_script(code.co_filename):
            return code.co_filename, frame.f_lineno or 0
        frame = frame.f_back
    return None


def registering_line(
    tensors: Iterable[Any], lines: Mapping[int, CodePosition]
) -> tuple[CodePosition | None, float]:
    """Return the line that registered most of the tensors or what they're gradients of.

    Also return its share of all tensors, 0 if there's none.
    """
    places: dict[int, CodePosition | None] = {}
    for tensor in tensors:
        line = places[id(tensor)] = places.get(id(tensor)) or lines.get(id(tensor))
        if line is not None and is_leaf(tensor) and tensor.grad is not None:
            places[id(tensor.grad)] = line
    counts = Counter(filter(None, places.values()))
    for line, count in counts.most_common(1):
        return line, count / len(places)
    return None, 0.0


def receiver_of(position: CodePosition) -> tuple[str, str]:
    """Return the object that a line calls a method of, and the call: `model`, `model.add(x)`.

    The object is the function if it's no method, and the first argument of an imported one:
    `prune.identity(layer, "weight")`. Both are "" if the line calls nothing.
    """
    file, number = position
    for node, _ in walk(syntax_tree(file)):
        if isinstance(node, ast.Call) and node.lineno <= number <= (node.end_lineno or 0):
            function = node.func
            owner = function.value if isinstance(function, ast.Attribute) else function
            if _is_imported(function, file) and node.args and _root(node.args[0]):
                owner = node.args[0]
            return ast.unparse(owner), ast.unparse(function)
    return "", ""


def passing_call(name: str, files: Iterable[str]) -> tuple[ast.Call, SourceLine] | None:
    """Return the first call that gets a function of the script: `atexit.register(self.close)`."""
    for file in files:
        for node, parents in walk(syntax_tree(file)):
            if not isinstance(node, ast.Call) or function_name(node).startswith(_TAKING_BACK):
                continue
            values = (*node.args, *(item.value for item in node.keywords))
            if any(mention_of(value).lstrip(".") == name for value in values):
                return node, source_line(file, node, GROWS, parents)
    return None


def _root(expression: ast.expr) -> str:
    """Return the variable of `a.b.c`, "" for what is neither a name nor an attribute of one."""
    while isinstance(expression, ast.Attribute):
        expression = expression.value
    return expression.id if isinstance(expression, ast.Name) else ""


def _is_imported(function: ast.expr, file: str) -> bool:
    """Return True for an imported function, `f` or `module.f`: not for an instance's method."""
    imported = _imports(file)
    if isinstance(function, ast.Name):
        return function.id in imported
    if not isinstance(function, ast.Attribute) or _root(function) not in imported:
        return False
    root, *rest = ast.unparse(function.value).split(".")
    return ".".join((imported[root], *rest)) in sys.modules


def _imports(file: str) -> dict[str, str]:
    """Return what imported names are in full: "torch.nn" for `import torch.nn as nn`."""
    names: dict[str, str] = {}
    for node, _ in walk(syntax_tree(file)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                names[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom):
            package = _package(file, node)
            names |= {alias.asname or alias.name: package + alias.name for alias in node.names}
    return names


def _package(file: str, node: ast.ImportFrom) -> str:
    """Return what a name is imported from, with a dot at its end: `from ..models import x`."""
    parts: list[str] = []
    if node.level:
        modules = (name for name, of, _ in script_modules() if of == file)
        space = namespace(sys.modules.get(next(modules, ""))) or {}
        parts = str(space.get("__package__") or "").split(".")
        parts = parts[: len(parts) + 1 - node.level]
    return ".".join((*parts, *filter(None, [node.module]), ""))
