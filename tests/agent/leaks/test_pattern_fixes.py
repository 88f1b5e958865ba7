"""Fixes for what libraries keep."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging.handlers
import queue
import re
import warnings
from concurrent.futures import Future
from contextlib import ExitStack

import pytest

from memagent.leaks.library_containers import finalizers
from memagent.leaks.pattern_fixes import with_pattern_fix
from memagent.leaks.suspect import build_suspect, fix_for

OWNERS = [
    (functools.cache(len), "lru_cache(maxsize="),
    (queue.Queue(), "Queue(maxsize="),
    (logging.handlers.MemoryHandler(10), "MemoryHandler(1000"),
    (warnings.WarningMessage("old", UserWarning, "train.py", 1), "catch_warnings"),
    (Future(), "as by `add_done_callback`"),
    (ExitStack(), "with ExitStack()"),
    (itertools.cycle([]), "instead of `cycle`"),
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


def test_a_task_of_a_loop_that_does_not_run_is_not_to_be_dropped(event_loop_task):
    """It isn't done: what keeps its arguments is that the loop doesn't run."""
    suspect = build_suspect("train.py", 1, None, "loop._ready: deque", "deque", 1, 0.8)
    fix = with_pattern_fix(suspect, ([], event_loop_task)).fix
    assert fix.startswith("Let the event loop run") and "add_done_callback" not in fix


@pytest.fixture
def event_loop_task():
    async def send(payload):
        return payload

    loop = asyncio.new_event_loop()
    task = loop.create_task(send([1]))
    yield task
    loop.run_until_complete(task)
    loop.close()


@pytest.mark.parametrize(
    ("line", "start"),
    [
        ("guard = weakref.finalize(model, put_back, raw)", "Call `guard.detach()`"),
        ("self.guard = weakref.finalize(model, put_back, raw)", "Call `self.guard.detach()`"),
        ("weakref.finalize(model, put_back, raw)", "Detach each finalizer"),
        ("guards[1] = weakref.finalize(model, put_back, raw)", "Detach each finalizer"),
        ("a = b = weakref.finalize(model, put_back, raw)", "Detach each finalizer"),
        ("a, b = finalizers(); c = 1", "Detach each finalizer"),
    ],
)
def test_a_finalizer_is_detached_by_its_name_in_the_script(line, start, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(f"{line}\n")
    suspect = build_suspect(str(script), 1, None, "weakref.finalize._registry", "dict", 1, 0.8)
    assert with_pattern_fix(suspect, ([], finalizers())).fix.startswith(start)


@pytest.mark.parametrize(("owner", "_"), OWNERS)
def test_the_code_of_a_fix_names_nothing_that_the_script_lacks(owner, _):
    suspect = build_suspect("train.py", 1, None, "x: list", "host", 1, 0.8)
    code = " ".join(re.findall("`(.*?)`", with_pattern_fix(suspect, ([], owner)).fix))
    names = {"task", "tasks", "loader", "x", "log", "metric", "model", "name", "caught", "store"}
    assert not names.intersection(re.findall(r"\w+", code))
