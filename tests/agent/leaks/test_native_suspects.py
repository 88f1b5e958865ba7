"""Whom a trace of the heap suspects, by the source of the lines that allocate."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from memagent.leaks.native_suspects import (
    ALLOCATES_CONFIDENCE,
    KEEPS_CONFIDENCE,
    suspects_of_trace,
    without_tensors,
)
from memagent.leaks.suspect import build_suspect

SOURCE = """
import library, torch

class Store:
    def keep_directly(self, data):
        self.rows.append(library.read(data))

    def keep_later(self, data):
        chunk = library.read(
            data,
        )
        width = chunk.width
        sizes.append(chunk.height)
        self.table = library.join(self.table, chunk)

    def keep_by_caller(self, data):
        self.by_key[data] = self.made(data)

    def made(self, data):
        result = library.read(data)
        return result

    def write(self, data):
        self.connection.execute("insert", data)

    def scale(self, data):
        data = torch.tanh(data)

def exchange(step, data):
    key_store.set(f"features/{step}", data)

with torch.profiler.profile() as prof:
    pass
"""
LEAK = 100_000


@pytest.fixture
def suspects_at(tmp_path):
    path = tmp_path / "store.py"
    path.write_text(SOURCE)
    lines = SOURCE.splitlines()

    def suspects(*texts, opaque=()):
        numbers = [next(n for n, line in enumerate(lines, 1) if text in line) for text in texts]
        stack = tuple((str(path), number) for number in (1, *numbers))
        trace = SimpleNamespace(steps=[{stack: LEAK}] * 8, start_stack=stack[:1])
        return suspects_of_trace(trace, opaque)

    return suspects


@pytest.fixture
def suspect_of(suspects_at):
    def suspected(*texts, opaque=()):
        (suspect,) = suspects_at(*texts, opaque=opaque)
        text = SOURCE.splitlines()[suspect.line - 1].strip()
        return text, suspect.holder, suspect.confidence

    return suspected


def test_it_names_what_the_statement_adds_to(suspect_of):
    line = "self.rows.append(library.read(data))"
    assert suspect_of(line) == (line, "self.rows: native memory", KEEPS_CONFIDENCE)


def test_it_names_what_a_later_statement_adds_the_result_to(suspect_of):
    line = "self.table = library.join(self.table, chunk)"
    expected = (line, "self.table: native memory", KEEPS_CONFIDENCE)
    assert suspect_of("            data,") == expected


def test_it_names_what_the_caller_adds_the_result_to(suspect_of):
    line = "self.by_key[data] = self.made(data)"
    expected = (line, "self.by_key: native memory", KEEPS_CONFIDENCE)
    assert suspect_of(line, "result = library") == expected


def test_it_names_the_call_that_allocates_if_nothing_keeps_the_result(suspect_of):
    line = 'self.connection.execute("insert", data)'
    expected = (line, "self.connection.execute: native memory", ALLOCATES_CONFIDENCE)
    assert suspect_of(line) == expected


def test_a_store_of_torch_distributed_keeps_what_it_is_given(suspects_at, monkeypatch, tmp_path):
    distributed = pytest.importorskip("torch.distributed")
    space = ModuleType("store_script")
    space.__file__, space.key_store = str(tmp_path / "store.py"), distributed.HashStore()
    monkeypatch.setitem(sys.modules, "store_script", space)
    [suspect] = suspects_at("key_store.set(")
    assert suspect.holder == "key_store.set: native memory"


def test_a_line_that_only_calls_torch_is_no_suspect(suspects_at):
    pytest.importorskip("torch")
    assert suspects_at("data = torch.tanh(data)") == []


def test_it_names_the_profiler_that_records_each_step(suspects_at):
    profiler = pytest.importorskip("torch.profiler")
    with profiler.profile():
        (suspect,) = suspects_at()
    assert suspect.holder == "torch.profiler: native memory of each event"
    assert suspect.line == 1 + SOURCE.splitlines().index("with torch.profiler.profile() as prof:")
    assert suspects_at() == []


def test_a_container_of_the_function_that_grows_by_a_librarys_objects_comes_first(
    suspect_of, tmp_path
):
    file = str(tmp_path / "store.py")
    opaque = build_suspect(file, 20, "Store.made", "cache: list of 9", "host", 0, 0.8)
    holder = suspect_of("result = library", opaque=[opaque])[1]
    assert holder == "cache: list of 9"


def test_memory_that_tensors_explain_is_not_a_librarys(suspects_at):
    native = suspects_at("self.connection.execute")
    other = build_suspect("store.py", 3, None, "rows: list of 40", "host", LEAK, 0.8)
    for rate, is_named in ((0, True), (LEAK // 3, True), (LEAK // 2, False), (LEAK, False)):
        kept = without_tensors([*native, other], rate)
        assert kept == ([*native, other] if is_named else [other])
