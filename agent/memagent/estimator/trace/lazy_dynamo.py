"""Puts off the import of torch's compiler, which takes longer than a whole trace.

Fake mode reads two of the compiler's settings, and functions that torch hides from the compiler import it to be told
so. Nothing is compiled in the tracer, and the settings can be had alone. Whatever else is asked of `torch._dynamo`
imports the real one at that moment.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

_NAME = "torch._dynamo"
_SETTINGS = "torch._dynamo.config"


def install() -> None:
    """Put the stand-in where the compiler would be, unless that is imported already. For a process that ends with the
    trace."""
    spec = None if _NAME in sys.modules else importlib.util.find_spec(_NAME)
    if spec is None:
        return
    late = _LateDynamo(_NAME)
    late.__spec__, late.__path__ = spec, spec.submodule_search_locations  # type: ignore[assignment]
    sys.modules[_NAME] = late
    torch._dynamo = late
    try:
        importlib.import_module(_SETTINGS)
    except Exception:  # noqa: BLE001  # not this torch: import everything, then
        _import_real()
        return
    sys.meta_path.insert(0, _WakeUp())


class _LateDynamo(ModuleType):
    """Answers what optimizers and fake mode call itself, everything else with the real compiler's."""

    @staticmethod
    def disable(function: Any, *_: Any, **__: Any) -> Any:
        """Hiding a function from a compiler that is not there: nothing to do."""
        return function

    @staticmethod
    def graph_break(*_: Any, **__: Any) -> None:
        """Where a graph would end, were there one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_import_real(), name)


class _WakeUp(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The first import of another part of the compiler brings all of it; the part asked for is then there already."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(_NAME + ".") or not isinstance(
            sys.modules.get(_NAME), _LateDynamo
        ):
            return None
        _import_real()
        return importlib.machinery.ModuleSpec(fullname, self) if fullname in sys.modules else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """It was executed when the compiler was imported."""


def _import_real() -> ModuleType:
    if isinstance(sys.modules.get(_NAME), _LateDynamo):
        del sys.modules[_NAME]
    real = importlib.import_module(_NAME)
    torch._dynamo = real
    return real
