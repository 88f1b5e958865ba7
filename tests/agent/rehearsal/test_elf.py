"""Shared objects that Python writes, loaded by the system's loader."""

from __future__ import annotations

import ctypes
import platform
import struct
import sys
from pathlib import Path

import pytest

from memagent.rehearsal import elf
from memagent.rehearsal.stub_code import ARCHITECTURES, Result, Stub

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ARCHITECTURES,
    reason="there is no code for this processor",
)


@pytest.fixture
def library(tmp_path: Path) -> ctypes.CDLL:
    stubs = {
        "nothing": Stub(),
        "text": Stub(returns_text=True),
        **{f"size{k}": Stub(((Result.SIZE, k),)) for k in range(12)},
        **{f"int{k}": Stub(((Result.INT, k),)) for k in range(12)},
        **{f"handle{k}": Stub(((Result.HANDLE, k),)) for k in range(12)},
        "several": Stub(((Result.SIZE, 1), (Result.INT, 7), (Result.HANDLE, 8))),
    }
    elf.write(tmp_path / "stubs.so", stubs, "stubs.so", ARCHITECTURES[platform.machine()])
    return ctypes.CDLL(str(tmp_path / "stubs.so"))


def _call(function, place: int, value: ctypes.c_uint64) -> int:
    arguments = [ctypes.c_void_p(0)] * 12
    arguments[place] = ctypes.cast(ctypes.pointer(value), ctypes.c_void_p)
    return int(function(*arguments))


@pytest.mark.parametrize("place", range(12))
def test_a_result_is_written_through_the_argument(library: ctypes.CDLL, place: int) -> None:
    value = ctypes.c_uint64(2**64 - 1)
    assert _call(library[f"int{place}"], place, value) == 0
    assert value.value == 0xFFFFFFFF_00000000
    assert _call(library[f"size{place}"], place, value) == 0
    assert value.value == 0
    assert _call(library[f"handle{place}"], place, value) == 0
    assert ctypes.string_at(value.value, 4096) == bytes(4096)


def test_null_pointers_are_left_alone(library: ctypes.CDLL) -> None:
    nulls = [ctypes.c_void_p(0)] * 12
    assert library["size3"](*nulls) == library["handle9"](*nulls) == library.nothing(*nulls) == 0


def test_one_stub_writes_several_results(library: ctypes.CDLL) -> None:
    values = [ctypes.c_uint64(1) for _ in range(9)]
    assert library.several(*(ctypes.byref(value) for value in values)) == 0
    assert [value.value for value in values[:8]] == [1, 0, 1, 1, 1, 1, 1, 0]
    assert ctypes.string_at(values[8].value, 1) == b"\0"


def test_texts_are_empty(library: ctypes.CDLL) -> None:
    library.text.restype = ctypes.c_char_p
    assert library.text(5) == b""


def test_reading_names_imports_exports_and_needs(tmp_path: Path) -> None:
    found = elf.read(Path(ctypes.__file__).parent / "__init__.py")
    assert found is None
    extension = Path(sys.modules["_ctypes"].__file__ or "")
    library = elf.read(extension)
    assert library is not None
    assert "PyInit__ctypes" in library.exported
    assert "dlsym" in library.imported
    assert any(name.startswith("libc.so") for name in library.needed)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_code_and_data_share_no_page_of_64_kib(name: str, tmp_path: Path) -> None:
    stubs = {f"function{number}": Stub(((Result.SIZE, 1),)) for number in range(700)}
    path = tmp_path / "stubs.so"
    elf.write(path, stubs, "stubs.so", ARCHITECTURES[name])
    image = path.read_bytes()
    code, data, *_ = struct.iter_unpack("<IIQQQQQQ", image[64 : 64 + 4 * 56])
    assert code[0] == data[0] == 1  # PT_LOAD: kind, flags, offset, address, _, size ...
    assert (code[3] + code[5] - 1) >> 16 < data[3] >> 16
    assert code[7] == data[7] == 1 << 16
    assert elf.read(path) is not None
