"""Names that a person knows: variables of running functions, globals of modules, classes of the script; and whose code is whose."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

_OWN = str(Path(__file__).parents[1])
_RUNNER = str(Path(_OWN, "__main__.py"))
_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_OPTIMIZED = (
    0x1 | 0x2
)  # CO_OPTIMIZED, CO_NEWLOCALS: a function's frame, not a module's or a class body's


@dataclass(frozen=True)
class Variable:
    """A name in a running function, or in a module (`code` is None then, or the module's own)."""

    name: str
    file: str
    function: str
    code: CodeType | None = None


def is_script(file: str) -> bool:
    """Whether a file is the user's: what Python was started with, else not Python's, not an installed package's, not ours."""
    return _is_main(file) or _is_written_here(file)


def main_file() -> str | None:
    """What Python was started with; under `memagent run` the script that it runs, as its arguments say."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return sys.argv[0] if file == _RUNNER else file


def _is_main(file: str) -> bool:
    """A training script may be installed, as the demo's is."""
    return file == main_file()


@lru_cache(maxsize=4096)
def _is_written_here(file: str) -> bool:
    if file.startswith("<") or not file:
        return file.startswith("<ipython") or file.startswith("<string")
    path = file if file.startswith("/") else str(Path(file).absolute())
    if (
        path.startswith(_OWN)
        or "site-packages" in path
        or "dist-packages" in path
        or "ipykernel_launcher" in path
    ):
        return False
    return not path.startswith(_LIBRARIES)


def own_frame(frame: FrameType) -> bool:
    return is_own(frame.f_code.co_filename)


def is_own(file: str) -> bool:
    """Whether a file is memagent's; the demo's script is nobody's but the demo's."""
    return file.startswith(_OWN) and not _is_main(file)


def frames() -> Iterator[FrameType]:
    """Every running frame of every thread but ours, innermost first."""
    for frame in list(sys._current_frames().values()):
        current: FrameType | None = frame
        while current is not None:
            if not own_frame(current):
                yield current
            current = current.f_back


def local_values(frame: FrameType) -> dict[str, Any]:
    """A copy of a frame's variables. Before Python 3.13 asking for them leaves a dict in the frame that keeps them alive: it is emptied,
    unless somebody else holds it."""
    held = frame.f_locals
    values = dict(held)
    if (
        sys.version_info < (3, 13)
        and frame.f_code.co_flags & _OPTIMIZED == _OPTIMIZED
        and sys.getrefcount(held) <= 3
    ):
        held.clear()
    return values


class Scopes:
    """A snapshot of what has a name. Keeps nothing alive: ids only."""

    def __init__(self, ended: Iterable[FrameType] = ()) -> None:
        """ended: frames that run no more, of an error's traceback."""
        self.modules: dict[int, tuple[str, str]] = {}
        """id of a module's namespace -> its name and file"""
        self.files: list[str] = []
        """the script's files: those of running functions first, innermost last called"""
        self._variables: dict[int, list[Variable]] = {}
        for frame in (*frames(), *ended):
            self._add_frame(frame)
        for name, module in list(sys.modules.items()):
            if isinstance(module, ModuleType):
                file = str(getattr(module, "__file__", None) or "")
                self.modules.setdefault(id(module.__dict__), (name, file))
                self._add_file(file)

    def variables(self, value: Any) -> list[Variable]:
        """Running functions' names for `value`: the script's first."""
        return self._variables.get(id(value), [])

    def _add_frame(self, frame: FrameType) -> None:
        code = frame.f_code
        self._add_file(code.co_filename)
        if frame.f_locals is frame.f_globals:
            self.modules.setdefault(
                id(frame.f_globals), (str(frame.f_globals.get("__name__")), code.co_filename)
            )
            return
        function = getattr(code, "co_qualname", code.co_name)
        for name, value in local_values(frame).items():
            if not isinstance(value, int | float | str | bool | type(None)):
                found = self._variables.setdefault(id(value), [])
                variable = Variable(name, code.co_filename, function, code)
                if is_script(code.co_filename):
                    found.insert(sum(is_script(other.file) for other in found), variable)
                else:
                    found.append(variable)

    def _add_file(self, file: str) -> None:
        if file.endswith((".py", ".ipynb", ">")) and is_script(file) and file not in self.files:
            self.files.append(file)


def is_script_class(kind: type) -> bool:
    """Whether a class is defined in the script."""
    module = sys.modules.get(kind.__module__)
    if kind.__module__ == "__main__":
        return True
    file = getattr(module, "__file__", None)
    return bool(file) and is_script(str(file))


def namespace(item: Any) -> dict[str, Any] | None:
    """An object's `__dict__`, without running its code; None where it has none."""
    try:
        found = object.__getattribute__(item, "__dict__")
    except (AttributeError, TypeError):
        return None
    return found if isinstance(found, dict) else None
