"""Machine code of stubs: functions that write results through pointers and return 0.

Both calling conventions pass the first integers and pointers in registers, and each further one in
eight bytes of the stack.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Result(Enum):
    """A value that a stub writes through a pointer: a zero of 4 or 8 bytes, or an address."""

    INT = "int"
    SIZE = "size"
    HANDLE = "handle"


@dataclass(frozen=True)
class Stub:
    """A function that writes results through its arguments, by index, and returns 0.

    Only integers and pointers count as arguments: floating-point ones have other registers.
    """

    results: tuple[tuple[Result, int], ...] = ()
    returns_text: bool = False
    """Return an empty string instead of 0."""


@dataclass(frozen=True)
class Architecture:
    """A processor: its number in ELF, and its code of a stub.

    `code_of` takes the distance from the code's first byte to a block of zeros.
    """

    elf_number: int
    code_of: Callable[[Stub, int], bytes]


_X86_REGISTERS = (7, 6, 2, 1, 8, 9)
"""Numbers of rdi, rsi, rdx, rcx, r8, r9: the first six arguments of a function."""


def _x86_code(stub: Stub, block: int) -> bytes:
    if stub.returns_text:  # lea rax, [rip + ...]; ret
        return b"\x48\x8d\x05" + struct.pack("<i", block - 7) + b"\xc3"
    code = b""
    for result, argument in stub.results:
        code += _x86_write(result, argument, block - len(code))
    return code + b"\x31\xc0\xc3"  # xor eax, eax; ret


def _x86_write(result: Result, argument: int, block: int) -> bytes:
    """Return code that writes a result unless its pointer is NULL."""
    if argument < len(_X86_REGISTERS):  # mov r10, register
        source = _X86_REGISTERS[argument]
        load = bytes([0x49 | (source >> 3) << 2, 0x89, 0xC2 | (source & 7) << 3])
    else:  # mov r10, [rsp + ...]
        load = b"\x4c\x8b\x94\x24" + struct.pack("<i", 8 + 8 * (argument - len(_X86_REGISTERS)))
    if result is Result.INT:  # mov dword [r10], 0
        store = b"\x41\xc7\x02\0\0\0\0"
    elif result is Result.SIZE:  # mov qword [r10], 0
        store = b"\x49\xc7\x02\0\0\0\0"
    else:  # lea r11, [rip + ...]; mov [r10], r11
        store = b"\x4c\x8d\x1d" + struct.pack("<i", block - len(load) - 5 - 7) + b"\x4d\x89\x1a"
    return load + b"\x4d\x85\xd2\x74" + bytes([len(store)]) + store  # test r10, r10; je


_ARM_REGISTERS = 8
"""x0 to x7 are the first eight arguments. x9 and x10 are free."""


def _arm_code(stub: Stub, block: int) -> bytes:
    if stub.returns_text:
        return _words(_adr(0, block), 0xD65F03C0)  # ret
    code = b""
    for result, argument in stub.results:
        code += _arm_write(result, argument, block - len(code))
    return code + _words(0x52800000, 0xD65F03C0)  # mov w0, 0; ret


def _arm_write(result: Result, argument: int, block: int) -> bytes:
    """Return code that writes a result unless its pointer is NULL."""
    code, pointer = [], argument
    if argument >= _ARM_REGISTERS:  # ldr x9, [sp, ...]
        pointer = 9
        code.append(0xF94003E9 | (argument - _ARM_REGISTERS) << 10)
    stores = {
        Result.INT: [0xB900001F | pointer << 5],  # str wzr, [pointer]
        Result.SIZE: [0xF900001F | pointer << 5],  # str xzr, [pointer]
        Result.HANDLE: [_adr(10, block - 4 * (len(code) + 1)), 0xF900000A | pointer << 5],
    }[result]
    code.append(0xB4000000 | (len(stores) + 1) << 5 | pointer)  # cbz pointer, behind the stores
    return _words(*code, *stores)


def _adr(register: int, distance: int) -> int:
    """Return the instruction that sets a register to an address within a MiB."""
    assert -(1 << 20) <= distance < 1 << 20
    return 0x10000000 | (distance & 3) << 29 | (distance >> 2 & 0x7FFFF) << 5 | register


def _words(*words: int) -> bytes:
    return struct.pack(f"<{len(words)}I", *words)


ARCHITECTURES = {"x86_64": Architecture(62, _x86_code), "aarch64": Architecture(183, _arm_code)}
"""By the names of `platform.machine()`."""
