"""CUDA tensors without CUDA: autograd on fake `cuda` tensors in any torch build, without a driver.

`FakeTensorMode` makes tensors that report the device `cuda`. Autocast, dropout and the foreach
optimizers then behave as on a GPU. On a CPU-only build the autograd engine stops it: the engine
looks up a *device guard* (streams, events, current device) in a table of libc10. CUDA's slot is
empty there, and the process aborts. On a CUDA build the slot has a guard that talks to the driver,
which a forked child must not do.

1. In both cases `install` puts a stub guard in that slot. Each of its methods has the same three
   instructions: return (1, 0). The caller reads that as `DeviceType::CUDA`, `Device(cuda, 0)`,
   `Stream(cuda:0, id 0)`, one device, or "true". A void method ignores it.
2. The engine also asks torch's CUDA hooks whether CUDA is compiled in (`isBuilt`) and has a context
   (`hasPrimaryContext`). The stub answers both with true. Their indices in the virtual method table
   come from the header that ships with torch.
3. The engine starts one thread for each device at the first backward of a process. In the fork of a
   process that has run a backward without a device, `_start_engine` starts them again.

Only a child process that lives for one trace does this: see `isolation`. If it isn't possible (no
machine code for this processor, missing symbols, no executable page), `install` returns the reason,
and the tracer uses CPU tensors with CUDA's rules instead.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import re
import sys
from pathlib import Path

_RETURN_ONE_ZERO = {
    "x86_64": "b80100000031d2c3",  # mov eax, 1; xor edx, edx; ret
    "aarch64": "200080d2010080d2c0035fd6",  # mov x0, #1; mov x1, #0; ret
}
_CUDA = 1
"""`c10::DeviceType::CUDA`."""
_MAX_METHODS = 64
"""More than either virtual method table has (31 and 53 in torch 2.13)."""
_DESTRUCTOR_ENTRIES = 2
"""The Itanium C++ ABI has two entries for a virtual destructor, at the start of the table."""
_HEADER_ENTRIES = 2
"""Words of a virtual method table before its first method: offset to top and type information."""
_never_freed: list[object] = []
"""The tables and pages, which C++ uses until the process ends."""


def install() -> str | None:
    """Make autograd on fake cuda tensors work in this process. Return the reason if it can't."""
    if sys.platform != "linux":
        return f"fake cuda needs Linux, this is {sys.platform}"
    code = _RETURN_ONE_ZERO.get(platform.machine())
    if code is None:
        return f"fake cuda does not support {platform.machine()} processors"
    try:
        stub = _make_executable(bytes.fromhex(code))
        _install_guard(stub)
        _install_hooks(stub)
        _start_engine()
    except (OSError, AttributeError, ValueError, RuntimeError) as error:
        return f"fake cuda could not be set up: {error}"
    return None


def _start_engine() -> None:
    """Run one backward on a fake tensor. Raises RuntimeError if the engine refuses."""
    try:
        _run_backward()
    except RuntimeError as error:
        # The fork inherited an engine whose threads exist in the parent only.
        if "device_ready_queues_" not in str(error):
            raise
        library = ctypes.CDLL(str(_library_path() / "libtorch_cpu.so"))
        get_engine = library["_ZN5torch8autograd6Engine18get_default_engineEv"]
        get_engine.restype = ctypes.c_void_p
        get_engine.argtypes = []
        start_threads = library["_ZN5torch8autograd6Engine20start_device_threadsEv"]
        start_threads.restype = None
        start_threads.argtypes = [ctypes.c_void_p]
        start_threads(get_engine())
        _run_backward()


def _run_backward() -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        torch.empty(1, device="cuda", requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]


def _library_path() -> Path:
    import torch

    return Path(torch.__file__).parent / "lib"


def _make_executable(code: bytes) -> int:
    """Return the address of an executable page with `code`."""
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    # mmap itself doesn't say its address
    start = ctypes.c_char.from_buffer(page)
    _never_freed.extend((page, start))
    return ctypes.addressof(start)


def _install_guard(stub: int) -> None:
    library = ctypes.CDLL(str(_library_path() / "libc10.so"))
    registry = (ctypes.c_void_p * (_CUDA + 1)).in_dll(
        library, "_ZN3c104impl26device_guard_impl_registryE"
    )
    table = (ctypes.c_void_p * _MAX_METHODS)(*[stub] * _MAX_METHODS)
    # A C++ object without members is a pointer to its virtual method table.
    guard = ctypes.c_void_p(ctypes.addressof(table))
    _never_freed.extend((table, guard))
    registry[_CUDA] = ctypes.addressof(guard)


def _install_hooks(stub: int) -> None:
    library = ctypes.CDLL(str(_library_path() / "libtorch_cpu.so"))
    get_hooks = library["_ZN2at6detail12getCUDAHooksEv"]
    get_hooks.restype = ctypes.c_void_p
    get_hooks.argtypes = []
    hooks = ctypes.cast(get_hooks(), ctypes.POINTER(ctypes.c_void_p))
    header_bytes = _HEADER_ENTRIES * ctypes.sizeof(ctypes.c_void_p)
    table_type = ctypes.c_void_p * (_MAX_METHODS + _HEADER_ENTRIES)
    original = ctypes.cast((hooks[0] or 0) - header_bytes, ctypes.POINTER(table_type)).contents
    # A copy, because the original is in read-only memory.
    table = table_type(*original)
    for method in ("isBuilt", "hasPrimaryContext"):
        index = _method_index(method)
        if index is not None:
            table[_HEADER_ENTRIES + index] = stub
    _never_freed.append(table)
    hooks[0] = ctypes.addressof(table) + header_bytes


def _method_index(method: str) -> int | None:
    """Return a method's index in the table of `AcceleratorHooksInterface`, from its header.

    Returns None if this torch has no such method.
    """
    include = _library_path().parent / "include"
    header = include / "ATen" / "detail" / "AcceleratorHooksInterface.h"
    names = re.findall(
        r"^\s*virtual\s+[^;{]*?(~?\w+)\s*\(", header.read_text(encoding="utf-8"), re.MULTILINE
    )
    # the index counts from the destructor: another order would patch another method
    if not names or not names[0].startswith("~"):
        raise ValueError("torch's AcceleratorHooksInterface.h is not as expected")
    # the destructor is one name, but two entries
    return names.index(method) - 1 + _DESTRUCTOR_ENTRIES if method in names else None
