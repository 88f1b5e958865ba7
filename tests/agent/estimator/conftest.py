"""Real models to compare the formula with."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def zoo() -> ModuleType:
    """`zoo.py` next to this file: small models of transformers, and recorders of what they hold."""
    spec = importlib.util.spec_from_file_location(
        "estimator_zoo", Path(__file__).with_name("zoo.py")
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["estimator_zoo"] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module
