"""Bounds of what grows in one diagnosis, against the memory that is free.

A container below its bound fills up, and isn't suspected. If it needs more for that than is free,
the run dies first: it's a suspect like one without a bound, and the fix names the bound.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from msgspec.structs import replace

from memagent.leaks.bounds import Bound, bound_of, bound_of_rows
from memagent.leaks.referrers import HolderPath
from memagent.units import format_bytes
from memagent.wire.messages import Suspect

_FIX = "Lower the bound of {3}, {0:,.0f}: full, it takes {1}, and {2} are free."


@dataclass(frozen=True)
class FreeMemory:
    """Free bytes of the training device and of the host, None if unknown: bounds then hold."""

    device_bytes: int | None = None
    host_bytes: int | None = None

    def on(self, device: str) -> int | None:
        """Return the free bytes of a device by torch's name for it."""
        return self.host_bytes if device == "cpu" else self.device_bytes


class BoundCheck:
    """Compares bounds with free memory, which is read once. read: returns it."""

    def __init__(self, read: Callable[[], FreeMemory] = FreeMemory) -> None:
        self._read = read
        self._fixes: dict[int, str] = {}
        """Fix for a bound that memory doesn't suffice for, by the id of its container."""
        self._beyond: set[tuple[str, int | None]] = set()
        self.filling_bytes_per_step = 0
        """Growth of what fills up to its bound."""
        self._rests: dict[tuple[str | int, bool], float] = {}
        """Bytes until it's full, by its name (a new tensor replaces a bank), and on the host."""

    @cached_property
    def _free(self) -> FreeMemory:
        return self._read()

    def can_grow(
        self, holder: HolderPath, entry_bytes: float, rate: float = 0, device: str = "cpu"
    ) -> bool:
        """Return False for a container that fills up to its bound before memory runs out.

        rate: bytes per step by which it grows.
        """
        return self._is_free_to_grow(holder, bound_of(holder), entry_bytes, rate, device)

    def can_lengthen(self, holder: HolderPath, tensor: Any, rate: float) -> bool:
        """Return False for a tensor whose rows are cut off before memory runs out."""
        # a subclass or mode of the script must not see these calls
        with sys.modules["torch"]._C.DisableTorchFunction():
            size, length = tensor.numel() * tensor.element_size(), max(1, *tensor.shape[:1])
            device = str(tensor.device)
        bound = bound_of_rows(holder, tensor)
        return self._is_free_to_grow(holder, bound, size / length, rate, device)

    def without_filling(self, suspects: Sequence[Suspect]) -> list[Suspect]:
        """Return suspects without allocations if most of these go to what fills up.

        The allocator's record tells where memory is allocated, but not what holds it.
        """
        rates = [item.bytes_per_step or 0 for item in suspects if item.kind == "allocation"]
        if 2 * self.filling_bytes_per_step < sum(rates):
            return list(suspects)
        return [item for item in suspects if item.kind != "allocation"]

    def with_fix(self, suspect: Suspect, holder: HolderPath) -> Suspect:
        """Return a suspect with the fix for the bound of its holder, if there is one."""
        fix = self._fixes.get(id(holder.container))
        if fix is None:
            return suspect
        self._beyond.add((suspect.file, suspect.line))
        return replace(suspect, fix=fix)

    def rest_bytes(self, *, on_host: bool) -> int | None:
        """Return the bytes until all that fills up is full, None if nothing does."""
        rests = [rest for (_, is_host), rest in self._rests.items() if is_host == on_host]
        return round(sum(rests)) if rests else None

    def is_beyond(self, suspect: Suspect) -> bool:
        """Return True if memory doesn't suffice for the bound of what a suspect names."""
        return (suspect.file, suspect.line) in self._beyond

    def _is_free_to_grow(
        self, holder: HolderPath, bound: Bound | None, entry_bytes: float, rate: float, device: str
    ) -> bool:
        self._fixes.pop(id(holder.container), None)
        if bound is None:
            return True
        free, rest = self._free.on(device), bound.missing_bytes(entry_bytes)
        if free is None or rest <= free:
            self.filling_bytes_per_step += round(rate)
            key = holder.name.expression if holder.name else id(holder.container)
            self._rests[key, device == "cpu"] = rest
            return False
        full = format_bytes(round(bound.full_bytes(entry_bytes)))
        sizes = full, format_bytes(free)
        what = f"`{holder.name.expression}`" if holder.name else "the container"
        self._fixes[id(holder.container)] = _FIX.format(bound.limit, *sizes, what)
        return True
