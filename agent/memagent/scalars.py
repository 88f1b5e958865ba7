"""`run.log`: numbers at once, device tensors when their copy has arrived. Never a synchronisation.

A tensor on a device is copied to pinned memory on its own stream's time; an event tells when the copy is there, and the row is written
then, a step or so later, under the step at which it was logged.
"""

from __future__ import annotations

import numbers
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from memagent.delivery.buffer import Drops, SampleBuffer
from memagent.errors import SettingError
from memagent.wire.columns import Value
from memagent.wire.fields import COLUMN_NAME, SCALARS_STREAM

_RESERVED = ("step", "time_s")


class Arriving:
    """A device tensor's value on its way to the host."""

    __slots__ = ("_copy", "_event")

    def __init__(self, tensor: Any) -> None:
        torch = sys.modules["torch"]
        self._copy = torch.empty((), dtype=torch.float64, pin_memory=True)
        self._copy.copy_(tensor.detach().reshape(()), non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def is_there(self) -> bool:
        return bool(self._event.query())

    def value(self) -> float:
        return float(self._copy)


class ScalarLog:
    """Turns what users log into rows of the scalars stream, in order."""

    def __init__(self, drops: Drops) -> None:
        self.buffer = SampleBuffer(SCALARS_STREAM, _RESERVED, drops)
        self._waiting: deque[tuple[int, float, dict[str, float | Arriving]]] = deque()

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Raises SettingError for names and values that cannot be logged; the rest of the call's values are kept."""
        taken: dict[str, float | Arriving] = {}
        refused: list[str] = []
        for name, value in values.items():
            number = _number(value)
            if number is None or name in _RESERVED or not COLUMN_NAME.fullmatch(str(name)):
                refused.append(f"{name!r} ({type(value).__name__})")
            else:
                taken[name] = number
        if taken:
            self._waiting.append((step, time.time(), taken))
            self.flush()
        if refused:
            raise SettingError(
                f"run.log cannot take {', '.join(refused)}: give numbers or one-element tensors, under names that match "
                f"{COLUMN_NAME.pattern} and are not {' or '.join(_RESERVED)}"
            )

    def flush(self, *, wait: bool = False) -> None:
        """Write the rows whose values have arrived; with `wait`, all of them (at the end of a run only)."""
        while self._waiting:
            step, at, values = self._waiting[0]
            if not wait and any(isinstance(value, Arriving) and not value.is_there() for value in values.values()):
                return
            self._waiting.popleft()
            row: dict[str, Value] = {
                name: value.value() if isinstance(value, Arriving) else value for name, value in values.items()
            }
            self.buffer.append((step, at), row)


def _number(value: Any) -> float | Arriving | None:
    """A float, a value on its way, or None for what is neither."""
    if isinstance(value, numbers.Real):
        return float(value)
    device = getattr(value, "device", None)
    if getattr(device, "type", None) == "cuda" and value.numel() == 1:
        return Arriving(value)
    size = getattr(value, "numel", None) or getattr(value, "size", None)
    count = size() if callable(size) else size
    return float(value.item()) if count == 1 and hasattr(value, "item") else None
