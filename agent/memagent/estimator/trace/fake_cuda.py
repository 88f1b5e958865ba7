"""CUDA tensors without CUDA: lets autograd run on fake `cuda` tensors in any torch build, without touching a driver.

`FakeTensorMode` gives tensors that say they are on `cuda`, and autocast, dropout and the foreach optimizers then
behave as they do on a GPU. What stops it on a CPU-only build is the autograd engine: it asks a table in libc10 for a
*device guard* (streams, events, current device), and CUDA's slot is empty, so the process aborts. On a CUDA build the
slot holds a guard that talks to the driver, which a forked child must not.

1. Both cases are answered by a guard of our own in that slot. Each of its methods is the same three instructions:
   return (1, 0). That reads as `DeviceType::CUDA`, `Device(cuda, 0)`, `Stream(cuda:0, id 0)`, one device, or "yes",
   and nothing at all for a method that returns nothing.
2. The engine also asks torch's CUDA hooks whether CUDA is built in (`isBuilt`) and has a context
   (`hasPrimaryContext`): those two say yes. Their places in the table of virtual methods are read from the header
   that torch ships.
3. The engine makes one thread for each device the first time anything runs backward in a process. A fork of a process
   where that has happened (with no device) is told to make them now.

This is done only in a child process that lives for one trace: see `isolation`. Where it can't be done (no known
machine code for this processor, no such symbols, no executable page), `install` says why, and the tracer uses cpu
tensors with CUDA's rules instead.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import re
import sys
from pathlib import Path
from typing import Any

_RETURN_ONE_ZERO = {
    "x86_64": "b80100000031d2c3",  # mov eax, 1; xor edx, edx; ret
    "aarch64": "200080d2010080d2c0035fd6",  # mov x0, #1; mov x1, #0; ret
}
_CUDA = 1  # c10::DeviceType::CUDA
_METHODS = 64  # more than either table of virtual methods has (31 and 53 in torch 2.13)
_HOOKS_BEFORE_FIRST = 2  # the two entries of a virtual destructor come first
_kept: list[Any] = []  # the tables must outlive every call: they are never freed


def install() -> str | None:
    """Make autograd on fake cuda tensors work in this process, for good. Returns why not, or None when it is done."""
    if sys.platform != "linux":
        return f"fake cuda needs Linux, this is {sys.platform}"
    code = _RETURN_ONE_ZERO.get(platform.machine())
    if code is None:
        return f"fake cuda is not known for {platform.machine()} processors"
    try:
        stub = _executable(bytes.fromhex(code))
        _install_guard(stub)
        _install_hooks(stub)
        _start_engine()
    except (OSError, AttributeError, ValueError, RuntimeError) as error:
        return f"fake cuda could not be set up: {error}"
    return None


def _start_engine() -> None:
    """Run one backward on a fake tensor. Raises RuntimeError where the engine refuses."""
    try:
        _run_backward()
    except RuntimeError as error:
        if "device_ready_queues_" not in str(error):
            raise
        library = ctypes.CDLL(str(_libraries() / "libtorch_cpu.so"))
        engine_of = library["_ZN5torch8autograd6Engine18get_default_engineEv"]
        engine_of.restype, engine_of.argtypes = ctypes.c_void_p, []
        start = library["_ZN5torch8autograd6Engine20start_device_threadsEv"]
        start.restype, start.argtypes = None, [ctypes.c_void_p]
        start(engine_of())
        _run_backward()


def _run_backward() -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        torch.empty(1, device="cuda", requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]


def _libraries() -> Path:
    import torch

    return Path(torch.__file__).parent / "lib"


def _executable(code: bytes) -> int:
    """The address of a page that holds `code`."""
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    anchor = ctypes.c_char.from_buffer(page)
    _kept.extend((page, anchor))
    return ctypes.addressof(anchor)


def _install_guard(stub: int) -> None:
    library = ctypes.CDLL(str(_libraries() / "libc10.so"))
    registry = (ctypes.c_void_p * (_CUDA + 1)).in_dll(
        library, "_ZN3c104impl26device_guard_impl_registryE"
    )
    table = (ctypes.c_void_p * _METHODS)(*[stub] * _METHODS)
    guard = ctypes.c_void_p(ctypes.addressof(table))
    _kept.extend((table, guard))
    registry[_CUDA] = ctypes.addressof(guard)


def _install_hooks(stub: int) -> None:
    library = ctypes.CDLL(str(_libraries() / "libtorch_cpu.so"))
    hooks_of = library["_ZN2at6detail12getCUDAHooksEv"]
    hooks_of.restype, hooks_of.argtypes = ctypes.c_void_p, []
    instance = ctypes.cast(hooks_of(), ctypes.POINTER(ctypes.c_void_p))
    # Two words before the first method belong to the table as well (offset to top, type information).
    words = ctypes.cast(
        (instance[0] or 0) - 16, ctypes.POINTER(ctypes.c_void_p * (_METHODS + 2))
    ).contents
    table = (ctypes.c_void_p * (_METHODS + 2))(*words)
    for name in ("isBuilt", "hasPrimaryContext"):
        place = _place_of(name)
        if place is not None:
            table[2 + place] = stub
    _kept.append(table)
    instance[0] = ctypes.addressof(table) + 16


def _place_of(method: str) -> int | None:
    """The place of a method in the table of `AcceleratorHooksInterface`, from the header; None where this torch has
    no such method."""
    header = _libraries().parent / "include" / "ATen" / "detail" / "AcceleratorHooksInterface.h"
    names = re.findall(
        r"^\s*virtual\s+[^;{]*?(~?\w+)\s*\(", header.read_text(encoding="utf-8"), re.MULTILINE
    )
    if not names or not names[0].startswith("~"):
        raise ValueError("torch's AcceleratorHooksInterface.h is not as expected")
    return names.index(method) - 1 + _HOOKS_BEFORE_FIRST if method in names else None
