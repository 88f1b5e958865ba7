"""Fixes for what libraries keep."""

from __future__ import annotations

import functools
import itertools
import logging.handlers
import queue
import warnings
from concurrent.futures import Future
from contextlib import ExitStack

import pytest

from memagent.leaks.pattern_fixes import with_pattern_fix
from memagent.leaks.suspect import build_suspect, fix_for

OWNERS = [
    (functools.cache(len), "lru_cache(maxsize="),
    (queue.Queue(), "Queue(maxsize="),
    (logging.handlers.MemoryHandler(10), "MemoryHandler(1000"),
    (warnings.WarningMessage("old", UserWarning, "train.py", 1), "catch_warnings"),
    (Future(), "add_done_callback"),
    (ExitStack(), "with ExitStack()"),
    (itertools.cycle([]), "yield from loader"),
]


@pytest.mark.parametrize(("owner", "code"), OWNERS)
def test_the_fix_is_for_the_library_that_owns_a_container(owner, code):
    suspect = build_suspect("train.py", 1, None, "x: list", "host", 1, 0.8)
    assert code in with_pattern_fix(suspect, ([], owner)).fix


def test_without_a_pattern_the_fix_is_that_of_the_kind():
    suspect = build_suspect("train.py", 1, None, "x: list", "list", 1, 0.8)
    assert with_pattern_fix(suspect, ([], object())).fix == fix_for("list")


def test_a_cache_of_tensors_keeps_its_own_fix():
    suspect = build_suspect("train.py", 1, None, "f: lru_cache", "cache", 1, 0.8)
    assert with_pattern_fix(suspect, (functools.cache(len),)).fix == fix_for("cache")
