"""`run.log`: numbers at once, device tensors when their copy has arrived. Never a synchronisation.

1. A tensor on a device is copied to pinned memory in its stream's own time, in its own dtype: no kernel is launched for it.
2. One event a call, recorded behind the copies, tells when they are there. It is asked at later calls and at the ends of steps,
   never waited for.
3. Rows are written in the order in which they were logged, under the step at which they were. While one waits, those behind it do too;
   beyond `MOST_WAITING` of them the newest are dropped and counted, so that a device that never answers costs no memory.
"""

from __future__ import annotations

import logging
import numbers
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from memagent.delivery.buffer import DroppedSamples, SampleBuffer
from memagent.errors import SettingError
from memagent.wire.columns import Value
from memagent.wire.fields import COLUMN_NAME, SCALARS_STREAM

MOST_WAITING = 1_000
"""Rows that may wait for a device: seconds of a fast loop, and half a megabyte."""
MOST_NAMES = 2_000
"""Different names that a run may log: a name that holds the step's number must not become a column a step."""
LAST_WAIT_S = 1.0
"""How long the end of a run waits for values that are still on their way."""
_DEPTH = 8
_NUMBERS = (float, int, bool)
_FLOAT = frozenset((float,))
_RESERVED = ("step", "time_s")
_Row = tuple[int, float, dict[str, Any], "Arrival | None"]

logger = logging.getLogger("memagent")


class Arrival:
    """The values of one call that are on their way to the host, and the events behind them."""

    __slots__ = ("_events", "_slots")

    def __init__(self) -> None:
        self._slots: dict[str, Any] = {}
        self._events: list[Any] = []

    def send(self, tensors: Mapping[str, Any]) -> None:
        """Start the copies. Raises RuntimeError where the device cannot copy without being waited for."""
        devices = {tensor.device: tensor for tensor in tensors.values()}
        for name, tensor in tensors.items():
            slot = _slot(tensor.dtype)
            slot.copy_(tensor.detach().reshape(()), non_blocking=True)
            self._slots[name] = slot
        self._events = [_record_event(device) for device in devices]

    def is_there(self) -> bool:
        return all(event.query() for event in self._events)

    def values(self) -> dict[str, float]:
        return {name: float(slot) for name, slot in self._slots.items()}


class ScalarLog:
    """Turns what users log into rows of the scalars stream, in order. Any thread may log."""

    def __init__(self, drops: DroppedSamples) -> None:
        self.buffer = SampleBuffer(SCALARS_STREAM, _RESERVED, drops)
        self._drops = drops
        self._waiting: deque[_Row] = deque()
        self._writing = (
            threading.RLock()
        )  # the end of a run may interrupt a flush, by a signal on the same thread
        self._names: set[str] = set()
        self._refused: set[str] = set()

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Raises SettingError for names and values that cannot be logged, once a name; the call's other values are kept."""
        at = time.time()
        if not isinstance(values, Mapping):
            raise SettingError(
                f"run.log got a {type(values).__name__}: give a dict of names and numbers"
            )
        if self._names.issuperset(values) and _FLOAT.issuperset(map(type, values.values())):
            if self._waiting:
                self._keep(_step(step), at, dict(values), {})
            elif values:  # the usual case, at a tenth of the price
                self.buffer.append((_step(step), at), dict(values))
            return
        taken: dict[str, float] = {}
        tensors: dict[str, Any] = {}
        refused: list[tuple[str, str]] = []
        for name, value in _flat(values):
            number = _number(value)
            if number is None or (name not in self._names and not self._admit(name)):
                refused.append((name, type(value).__name__))
            elif isinstance(number, float):
                taken[name] = number
            else:
                tensors[name] = number
        self._keep(_step(step), at, taken, tensors)
        if refused:
            self._complain(refused)

    def flush(self, *, wait: bool = False) -> None:
        """Write the rows whose values have arrived. With `wait`, at the end of a run, give the others a second, then drop their values."""
        if not self._waiting and not wait:
            return
        if not self._writing.acquire(blocking=wait, timeout=LAST_WAIT_S if wait else -1):
            return  # another thread is at it
        try:
            deadline = time.monotonic() + LAST_WAIT_S if wait else 0.0
            while self._waiting:
                row = self._waiting.popleft()
                if not self._write(row, deadline):
                    self._waiting.appendleft(row)
                    return
        finally:
            self._writing.release()

    def _keep(
        self, step: int, at: float, taken: dict[str, float], tensors: Mapping[str, Any]
    ) -> None:
        if not taken and not tensors:
            return
        if len(self._waiting) >= MOST_WAITING:
            self._drops["scalars_waiting"] += 1
        else:
            self._waiting.append((step, at, taken, self._send(tensors) if tensors else None))
        self.flush()

    def _send(self, tensors: Mapping[str, Any]) -> Arrival | None:
        arrival = Arrival()
        try:
            arrival.send(tensors)
        except RuntimeError:  # out of pinned memory, or the device is lost
            self._drops["scalars_lost"] += 1
            return None
        return arrival

    def _write(self, row: _Row, deadline: float) -> bool:
        """Whether the row is dealt with; not, when its values are on their way and there is time."""
        step, at, taken, arrival = row
        values: dict[str, Value] = dict(taken)
        if arrival is not None:
            try:
                while not arrival.is_there():
                    if time.monotonic() >= deadline:
                        if not deadline:
                            return False
                        raise TimeoutError
                    time.sleep(0.001)
                values.update(arrival.values())
            except (
                RuntimeError,
                TimeoutError,
            ):  # the device is lost, or the run ends before it has answered
                self._drops["scalars_lost"] += 1
        if values:
            self.buffer.append((step, at), values)
        return True

    def _admit(self, name: str) -> bool:
        """Whether a new name becomes a column."""
        if name in _RESERVED or len(self._names) >= MOST_NAMES or not COLUMN_NAME.fullmatch(name):
            return False
        self._names.add(name)
        return True

    def _complain(self, refused: list[tuple[str, str]]) -> None:
        new = [(name, kind) for name, kind in refused if name not in self._refused]
        if not new or len(self._refused) >= MOST_NAMES:
            return
        self._refused.update(name for name, _ in new)
        raise SettingError(
            f"run.log cannot take {', '.join(f'{name!r} ({kind})' for name, kind in new)}: give numbers or one-element tensors, under at "
            f"most {MOST_NAMES} names that match {COLUMN_NAME.pattern} and are not {' or '.join(_RESERVED)}"
        )


def _flat(values: Mapping[Any, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Names and values, those of nested mappings under `outer/inner`."""
    for key, value in values.items():
        name = key if type(key) is str else str(key)
        if prefix:
            name = f"{prefix}/{name}"
        if type(value) not in _NUMBERS and isinstance(value, Mapping) and depth < _DEPTH:
            yield from _flat(value, name, depth + 1)
        else:
            yield name, value


def _step(step: Any) -> int:
    """Raises SettingError for what is no step: nothing that the server would refuse may get into a batch."""
    if type(step) is int or isinstance(step, numbers.Integral):
        number = int(step)
        if 0 <= number < 2**53:
            return number
    raise SettingError(f"run.log got step={step!r:.80}: give a whole number that is not negative")


def _number(value: Any) -> float | Any | None:
    """A float; a one-element tensor that has to be fetched from its device; or None for what is neither."""
    try:
        if type(value) in _NUMBERS:
            return float(value)
        if isinstance(value, numbers.Real):
            return float(value)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return _of_tensor(torch, value)
        if getattr(value, "size", None) == 1 and hasattr(value, "item"):  # an array of one element
            return float(value.item())
        return (
            float(value)
            if hasattr(type(value), "__float__") and not hasattr(value, "shape")
            else None
        )  # Decimal
    except (TypeError, ValueError, OverflowError):
        return None


def _of_tensor(torch: Any, tensor: Any) -> float | Any | None:
    if tensor.numel() != 1 or tensor.is_complex() or tensor.is_meta:
        return None
    local = getattr(tensor, "_local_tensor", None)
    if (
        local is not None
    ):  # a DTensor: where each rank has the whole value, no communication is needed
        if not all(placement.is_replicate() for placement in tensor.placements):
            return None
        tensor = local
    kind = tensor.device.type
    if kind == "cpu":
        return float(tensor.detach().item())
    if _event_type(torch, kind) is None or (
        kind == "cuda" and torch.cuda.is_current_stream_capturing()
    ):
        return None
    return tensor


def _slot(dtype: Any) -> Any:
    torch = sys.modules["torch"]
    try:
        return torch.empty((), dtype=dtype, pin_memory=True)
    except RuntimeError:  # a backend without pinned memory copies into any
        return torch.empty((), dtype=dtype)


def _event_type(torch: Any, kind: str) -> Any:
    """`torch.cuda.Event`, `torch.xpu.Event`, `torch.mps.Event`; None for a device that cannot say when a copy has arrived."""
    return getattr(getattr(torch, kind, None), "Event", None)


def _record_event(device: Any) -> Any:
    torch = sys.modules["torch"]
    event = _event_type(torch, device.type)()
    backend = getattr(torch, device.type)
    if hasattr(backend, "current_stream"):
        event.record(backend.current_stream(device))
    else:
        event.record()
    return event
