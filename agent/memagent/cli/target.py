"""Run the target of `memagent run` as `python` would.

1. The target is the module `__main__` until the process ends: for pickles, spawned processes, exit
   handlers and threads that outlive it.
2. It has the same `sys.argv` and `sys.path`, and an uncaught error the same traceback.
3. The process ends with the same status. After an uncaught KeyboardInterrupt that is the signal's.
"""

from __future__ import annotations

import argparse
import builtins
import os
import runpy
import sys
import types
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from pkgutil import read_code
from types import TracebackType
from typing import Any, NoReturn

from memagent.errors import SettingError

_PACKAGE = str(Path(__file__).resolve().parents[1])

OnEnd = Callable[[BaseException | None], None]


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name the target; what follows it is the script's own."""
    parser.add_argument("-m", dest="module", action="store_true", help="the target is a module")
    parser.add_argument("target", metavar="SCRIPT|MODULE")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="arguments of the script"
    ).required = False  # else an error about a missing script names ARGS, too


def check_target(arguments: argparse.Namespace) -> None:
    """Raise SettingError if the target is a file that doesn't exist."""
    if not arguments.target:
        raise SettingError("SCRIPT is empty: give a file, or -m MODULE")
    if not arguments.module and not Path(arguments.target).is_file():
        raise SettingError(
            f"Script {arguments.target} does not exist; for a module use -m {arguments.target}."
        )


def check_report(path: Path | None) -> None:
    """Raise SettingError if the file of --report is a folder."""
    if path is not None and path.is_dir():
        raise SettingError(f"--report {path} is a folder: give a file")


@dataclass(frozen=True)
class TargetEnd:
    """How the target ended. `status` is that of the shell, which is 130 for an interrupt."""

    status: int
    is_interrupt: bool = False


def run_target(target: str, arguments: list[str], *, is_module: bool, on_end: OnEnd) -> TargetEnd:
    """Run the target, call `on_end` with its uncaught error, and print that."""
    sys.argv = [target, *arguments]
    sys.path[0] = os.getcwd() if is_module else str(Path(target).resolve().parent)
    try:
        _execute(target, is_module=is_module)
    except SystemExit as error:
        on_end(error)
        return TargetEnd(_exit_status(error))
    except BaseException as error:  # noqa: BLE001 - every error of the script is reported
        error.__traceback__ = _without_own_frames(error.__traceback__)
        on_end(error)
        status = print_uncaught(error)
        return TargetEnd(status, is_interrupt=type(error) is KeyboardInterrupt)
    on_end(None)
    return TargetEnd(0)


def end_by_interrupt() -> NoReturn:
    """Leave as Python does after an uncaught KeyboardInterrupt: exit handlers, then the signal."""
    sys.excepthook = lambda *_arguments: None  # its traceback has been printed
    raise KeyboardInterrupt


def _execute(target: str, *, is_module: bool) -> None:
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    # This function is what `python -m` calls. `run_module` would take the module `__main__` away
    # when the target's code has ended, before its exit handlers.
    run_as_main: Callable[..., Any] = runpy._run_module_as_main  # type: ignore[attr-defined]
    if is_module:
        run_as_main(target, alter_argv=True)
    elif zipfile.is_zipfile(target):
        sys.path[0] = target
        run_as_main("__main__", alter_argv=False)
    else:
        _execute_file(target, main)


def _execute_file(path: str, main: types.ModuleType) -> None:
    with open(path, "rb") as file:  # noqa: PTH123
        code: Any = read_code(file)  # None if it isn't compiled
    if code is None:
        code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    main.__loader__ = SourceFileLoader("__main__", path)
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    main.__dict__["__builtins__"] = builtins
    main.__file__ = path
    main.__dict__["__cached__"] = None
    exec(code, main.__dict__)  # noqa: S102  # nosec B102


def print_uncaught(error: BaseException) -> int:
    """Pass the error to `sys.excepthook`, as Python does, and return the exit status."""
    error.__traceback__ = _without_own_frames(error.__traceback__)
    sys.last_type = type(error)
    sys.last_value = error
    sys.last_traceback = error.__traceback__
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as leaving:
        return _exit_status(leaving)
    except BaseException as hook_error:  # noqa: BLE001 - the script's hook may raise anything
        hook_error.__traceback__ = _without_own_frames(hook_error.__traceback__)
        hook_error.__context__ = None  # Python calls the hook outside of any handler
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(hook_error), hook_error, hook_error.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, error.__traceback__)
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _exit_status(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without frames of memagent, which wraps `Optimizer.__init__`."""
    while trace is not None and _is_own(trace):
        trace = trace.tb_next
    link = trace
    while link is not None:
        while link.tb_next is not None and _is_own(link.tb_next):
            link.tb_next = link.tb_next.tb_next
        link = link.tb_next
    return trace


def _is_own(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(_PACKAGE + os.sep)
