"""The library of stubs: CUDA functions that torch imports and that need no behaviour.

1. Read which CUDA symbols the libraries of the installed torch import.
2. Leave out those that the compiled device exports, and those that need no device and stay with
   NVIDIA's libraries: versions and error texts.
3. Write a function for each of the others, with the result that `stubs.txt` gives it.
4. Return the names that the table lacks: torch has begun to call them since it was made.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from memagent.rehearsal import elf
from memagent.rehearsal.stub_code import ARCHITECTURES, Result, Stub

SONAME = "libmemagent-rehearsal-stubs.so"
TABLE = Path(__file__).with_name("stubs.txt")
CUDA_SYMBOL = re.compile(
    r"(__cuda|cuda[A-Z]|cublas|cudnn|cufft|cusparse|cusolver|curand|nccl[A-Z]|p?nccl[A-Z]|cupti"
    r"|cu[A-Z])"
)
REAL_SYMBOL = re.compile(
    r"(cudnnGetVersion|cudnnGetCudartVersion|cudnnGetErrorString|cudnnGetProperty"
    r"|cudnnGetLastError.*|cublas(Lt)?GetVersion|cublas(Lt)?GetStatus.*|cublasGetProperty"
    r"|ncclGetVersion|ncclGetErrorString|cudaGetErrorString|cudaGetErrorName|cudaRuntimeGetVersion"
    r"|cusparseGetErrorString|cuptiGetVersion|cuptiGetResultString|cuFile.*)"
)


@dataclass(frozen=True)
class Coverage:
    """CUDA symbols that torch imports: where each is served from."""

    by_device: frozenset[str]
    by_stub: frozenset[str]
    real: frozenset[str]
    unknown: frozenset[str]


def cuda_imports(libraries: Iterable[Path]) -> frozenset[str]:
    """Return the CUDA symbols that these libraries import."""
    symbols: set[str] = set()
    for path in libraries:
        library = elf.read(path)
        if library is not None:
            symbols |= {name for name in library.imported if CUDA_SYMBOL.match(name)}
    return frozenset(symbols)


@cache
def table() -> dict[str, Stub]:
    """Return the stubs that are known."""
    return dict(map(parse_line, TABLE.read_text().splitlines()))


def parse_line(line: str) -> tuple[str, Stub]:
    """Return a name and its stub. A line is `NAME`, `NAME text`, or `NAME size:5 int:6`."""
    name, *words = line.split()
    if words == ["text"]:
        return name, Stub(returns_text=True)
    pairs = (word.split(":") for word in words)
    return name, Stub(tuple((Result(result), int(argument)) for result, argument in pairs))


def format_line(name: str, stub: Stub) -> str:
    """Return the line that `parse_line` reads."""
    words = [f"{result.value}:{argument}" for result, argument in stub.results]
    return " ".join([name, *(["text"] if stub.returns_text else words)])


def coverage(imports: frozenset[str], device: frozenset[str]) -> Coverage:
    """Return the library that serves each import."""
    real = frozenset(name for name in imports if REAL_SYMBOL.fullmatch(name)) - device
    by_stub = imports - device - real
    return Coverage(imports & device, by_stub, real, by_stub - frozenset(table()))


def write(path: Path, imports: frozenset[str], device: frozenset[str]) -> Coverage:
    """Write the library, and return what it covers. Unknown functions return 0."""
    result = coverage(imports, device)
    functions = {name: table().get(name, Stub()) for name in result.by_stub}
    elf.write(path, functions, SONAME, ARCHITECTURES[platform.machine()])
    return result
