"""The user's code: which files and classes belong to it, and the names it gives to objects."""

from __future__ import annotations

import contextvars
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from memagent.components import safe_reads
from memagent.components.safe_reads import FrameReading

_PACKAGE = str(Path(__file__).parents[1])
_RUNNER = str(Path(_PACKAGE, "__main__.py"))
_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


def is_script(file: str) -> bool:
    """Return True for the user's files: the main script, and what isn't installed or built in."""
    # the main script may be installed, like the demo's
    return file == main_file() or _is_outside_libraries(file)


def main_file() -> str | None:
    """Return the script that Python was started with, or that `memagent run` runs."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    # under `python -m memagent run`, __main__ is memagent's
    return sys.argv[0] if file == _RUNNER else file


@lru_cache(maxsize=2**16)
def _is_outside_libraries(file: str) -> bool:
    if file.startswith("<") or not file:
        return file.startswith("<ipython") or file.startswith("<string")
    path = file if file.startswith("/") else str(Path(file).absolute())
    if path.startswith((_PACKAGE, *_LIBRARIES)):
        return False
    return not any(
        part in path for part in ("site-packages", "dist-packages", "ipykernel_launcher")
    )


def is_own(file: str) -> bool:
    """Return True for memagent's files, except for the demo's script while it is run."""
    return file.startswith(_PACKAGE) and file != main_file()


def is_own_frame(frame: FrameType) -> bool:
    """Return True for a frame of memagent's code."""
    return is_own(frame.f_code.co_filename)


def is_script_class(kind: type) -> bool:
    """Return True if a class is defined in the user's code."""
    if kind.__module__ == "__main__":
        return True
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return bool(file) and is_script(str(file))


def functions_among(values: Iterable[Any]) -> Iterator[FunctionType]:
    """Yield the functions, also those of methods, without asking an object for an attribute.

    An object of the script may answer by its own code, or store what it was asked for.
    """
    for item in values:
        function = item.__func__ if type(item) in _METHODS else item
        if type(function) is FunctionType:
            yield function


_METHODS = (staticmethod, classmethod, MethodType)


def namespace(item: Any) -> dict[str, Any] | None:
    """Return an object's `__dict__` without running its code, or None if it has none."""
    try:
        space = object.__getattribute__(item, "__dict__")
    except (AttributeError, TypeError):
        return None
    return space if isinstance(space, dict) else None


class _ModuleTable(NamedTuple):
    """The loaded modules as searches need them, without a reference to any."""

    names: list[str]
    ids: list[int]
    """Those of the modules. While names and ids are the same, so is all the rest."""
    spaces: dict[int, tuple[str, str]]
    """Name and file ("" if it has none) by the id of a module's namespace."""
    outside: list[str]
    """The names of those that are in no library."""


_table = _ModuleTable([], [], {}, [])


def _module_table() -> _ModuleTable:
    """Return the table, read anew if modules came or went: each slice of a search asks for it."""
    global _table  # noqa: PLW0603
    modules = dict(sys.modules)
    names, ids = list(modules), list(map(id, modules.values()))
    if (names, ids) != _table[:2]:
        spaces: dict[int, tuple[str, str]] = {}
        outside = []
        for name, module in modules.items():
            # a module's own `__getattr__` isn't called: it's code of a library
            space = namespace(module) if issubclass(type(module), ModuleType) else None
            if space is not None:
                file = str(space.get("__file__") or "")
                spaces.setdefault(id(space), (name, file))
                if _is_outside_libraries(file):
                    outside.append(name)
        _table = _ModuleTable(names, ids, spaces, outside)
    return _table


def script_modules() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield name, file and namespace of each module of the user."""
    main = main_file()
    for name in dict.fromkeys(("__main__", *_module_table().outside, *_names_of(main))):
        space = namespace(sys.modules.get(name))
        file = "" if space is None else str(space.get("__file__") or "")
        if space is not None and (file == main or _is_outside_libraries(file)):
            yield name, file, space


def _names_of(file: str | None) -> Iterator[str]:
    """Yield the names of a file's modules."""
    return (name for name, of in _module_table().spaces.values() if of == file)


def running_code() -> list[FrameReading]:
    """Return what all threads run, except for memagent's functions, innermost first."""
    return safe_reads.running_code(_PACKAGE, main_file())


def script_code() -> list[FrameReading]:
    """Return what runs of the user's code."""
    return [reading for reading in running_code() if is_script(reading.code.co_filename)]


@dataclass(frozen=True)
class LocalVariable:
    """A variable of a running function, or a context variable, which has no `code`."""

    name: str
    file: str
    function: str
    code: CodeType | None = None


class UserScopes:
    """Snapshot of all named objects: variables of running functions, and modules.

    Holds ids only, so it keeps nothing alive.
    """

    def __init__(self, ended: Iterable[FrameType] = ()) -> None:
        """`ended`: frames that have returned, from an error's traceback."""
        self.modules: dict[int, tuple[str, str]] = {}
        """Name and file of a module by the id of its namespace."""
        self.files: list[str] = []
        """The user's files: those of running functions first, innermost call last."""
        self._variables: dict[int, list[LocalVariable]] = {}
        for reading in (*running_code(), *map(safe_reads.read_frame, ended)):
            self._add_code(reading)
        self.script_modules: dict[str, str] = {}
        """File of each of the user's modules, by its name."""
        self._add_modules()
        self._add_context_variables()

    def variables_of(self, value: Any) -> list[LocalVariable]:
        """Return the variables that hold `value`, those of the user's functions first."""
        return self._variables.get(id(value), [])

    def _add_code(self, reading: FrameReading) -> None:
        code = reading.code
        self._add_file(code.co_filename)
        if reading.is_module:
            name = str(reading.globals.get("__name__"))
            self.modules.setdefault(id(reading.globals), (name, code.co_filename))
            return
        function = getattr(code, "co_qualname", code.co_name)  # co_qualname: Python 3.11
        for name, value in reading.variables.items():
            if not isinstance(value, int | float | str | bool | type(None)):
                variables = self._variables.setdefault(id(value), [])
                variable = LocalVariable(name, code.co_filename, function, code)
                if is_script(code.co_filename):
                    variables.insert(sum(is_script(other.file) for other in variables), variable)
                else:
                    variables.append(variable)

    def _add_modules(self) -> None:
        self.modules = _module_table().spaces | self.modules
        for name, file, _space in script_modules():
            self.script_modules[name] = file
            self._add_file(file)

    def _add_context_variables(self) -> None:
        """Add the context variables of this thread, by the global that each is assigned to.

        A context doesn't show up as a referrer of their values.
        """
        values = list(contextvars.copy_context().items())
        for name, file in self.script_modules.items() if values else ():
            keys = safe_reads.keys_by_id(namespace(sys.modules.get(name)) or {})
            for variable, value in values:
                if id(variable) in keys:
                    local = LocalVariable(keys[id(variable)], file, name)
                    self._variables.setdefault(id(value), []).append(local)

    def _add_file(self, file: str) -> None:
        if file.endswith((".py", ".ipynb", ">")) and is_script(file) and file not in self.files:
            self.files.append(file)
