"""`run.log`: numbers at once, device tensors when their copy has arrived; never a synchronization.

1. A device tensor is copied to pinned memory in its stream's order and in its own dtype: no kernel
   is launched for it.
2. One event a call, recorded behind the copies, shows when they have arrived. It is polled at later
   calls and at the ends of steps, never waited for.
3. Rows are written in the order in which they were logged, under the step of the call. While one
   waits, those behind it wait too; beyond `MAX_WAITING_ROWS` the newest are dropped and counted, so
   that a device that never answers costs no memory.
"""

from __future__ import annotations

import logging
import numbers
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memagent.delivery.buffer import DroppedSamples, SampleBuffer
from memagent.errors import SettingError
from memagent.wire.columns import Value
from memagent.wire.fields import COLUMN_NAME, SCALARS_STREAM

MAX_WAITING_ROWS = 1_000
"""Rows that may wait for a device: seconds of a fast loop, and half a megabyte."""
MAX_NAMES = 2_000
"""Names that a run may log: one that contains the step must not add a column in each step."""
FINAL_WAIT_S = 1.0
"""Time that the end of a run waits for copies under way."""
_MAX_DEPTH = 8
_NUMBERS = (float, int, bool)
_FLOAT = frozenset((float,))
_RESERVED_NAMES = ("step", "time_s")
_Row = tuple[int, float, dict[str, float], "PendingCopy | None"]
"""Step, time, values at hand, and values under way."""

logger = logging.getLogger("memagent")


class PendingCopy:
    """The values of one call that are on their way to the host, and the events behind them."""

    __slots__ = ("_events", "_slots")

    def __init__(self) -> None:
        self._slots: dict[str, Any] = {}
        self._events: list[Any] = []

    def start(self, tensors: Mapping[str, Any]) -> None:
        """Start the copies. Raises RuntimeError if the device can't copy asynchronously."""
        devices = {tensor.device: tensor for tensor in tensors.values()}
        for name, tensor in tensors.items():
            slot = _pinned_slot(tensor.dtype)
            slot.copy_(tensor.detach().reshape(()), non_blocking=True)
            self._slots[name] = slot
        self._events = [_record_event(device) for device in devices]

    def has_arrived(self) -> bool:
        return all(event.query() for event in self._events)

    def values(self) -> dict[str, float]:
        return {name: float(slot) for name, slot in self._slots.items()}


class ScalarLog:
    """Turns what users log into rows of the scalars stream, in order. Any thread may log.

    While rows wait, `request_flush` asks for a call of `flush` at the end of the step.
    """

    def __init__(self, drops: DroppedSamples, request_flush: Callable[[], object] = tuple) -> None:
        self._request_flush = request_flush
        self.buffer = SampleBuffer(SCALARS_STREAM, _RESERVED_NAMES, drops)
        self._drops = drops
        self._waiting: deque[_Row] = deque()
        # Reentrant: a signal may end the run on the thread that is in the middle of a flush.
        self._write_lock = threading.RLock()
        self._names: set[str] = set()
        self._rejected_names: set[str] = set()

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Log the values that can be logged.

        Raises SettingError for names and values that can't, once a name.
        """
        time_s = time.time()
        if not isinstance(values, Mapping):
            raise SettingError(
                f"run.log() got a {type(values).__name__}: pass a dict of names and numbers."
            )
        if self._names.issuperset(values) and _FLOAT.issuperset(map(type, values.values())):
            # The usual case, known names and floats, at a tenth of the price of the general one.
            if self._waiting:
                self._enqueue(_checked_step(step), time_s, dict(values), {})
            elif values:
                self.buffer.append(((_checked_step(step), time_s), dict(values)))
            return
        floats: dict[str, float] = {}
        tensors: dict[str, Any] = {}
        rejected: list[tuple[str, str]] = []
        for name, value in _flatten(values):
            number = _to_number(value)
            if number is None or (name not in self._names and not self._admit(name)):
                rejected.append((name, type(value).__name__))
            elif isinstance(number, float):
                floats[name] = number
            else:
                tensors[name] = number
        self._enqueue(_checked_step(step), time_s, floats, tensors)
        if rejected:
            self._report_rejected(rejected)

    def flush(self, *, wait: bool = False) -> None:
        """Write the rows whose values have arrived.

        With `wait`, at the end of a run, give the others FINAL_WAIT_S, then drop their values.
        """
        if not self._waiting and not wait:
            return
        if not self._write_lock.acquire(blocking=wait, timeout=FINAL_WAIT_S if wait else -1):
            self._request_flush()
            return  # another thread is flushing
        try:
            deadline = time.monotonic() + FINAL_WAIT_S if wait else None
            while self._waiting:
                row = self._waiting.popleft()
                if not self._write(row, deadline):
                    self._waiting.appendleft(row)
                    self._request_flush()
                    return
        finally:
            self._write_lock.release()

    def _enqueue(
        self, step: int, time_s: float, floats: dict[str, float], tensors: Mapping[str, Any]
    ) -> None:
        if not floats and not tensors:
            return
        if len(self._waiting) >= MAX_WAITING_ROWS:
            self._drops["scalars_waiting"] += 1
        else:
            pending = self._start_copy(tensors) if tensors else None
            self._waiting.append((step, time_s, floats, pending))
        self.flush()

    def _start_copy(self, tensors: Mapping[str, Any]) -> PendingCopy | None:
        pending = PendingCopy()
        try:
            pending.start(tensors)
        except RuntimeError:  # out of pinned memory, or the device is lost
            self._drops["scalars_lost"] += 1
            return None
        return pending

    def _write(self, row: _Row, deadline: float | None) -> bool:
        """Write a row; return False if its values are under way and there is no deadline."""
        step, time_s, floats, pending = row
        values: dict[str, Value] = dict(floats)
        if pending is not None:
            try:
                while not pending.has_arrived():
                    if deadline is None:
                        return False
                    if time.monotonic() >= deadline:
                        raise TimeoutError
                    time.sleep(0.001)
                values.update(pending.values())
            except (
                RuntimeError,
                TimeoutError,
            ):  # the device is lost, or too slow for the run's end
                self._drops["scalars_lost"] += 1
        if values:
            self.buffer.append(((step, time_s), values))
        return True

    def _admit(self, name: str) -> bool:
        """Return True if a new name becomes a column."""
        if name in _RESERVED_NAMES or len(self._names) >= MAX_NAMES:
            return False
        if not COLUMN_NAME.fullmatch(name):
            return False
        self._names.add(name)
        return True

    def _report_rejected(self, rejected: list[tuple[str, str]]) -> None:
        new = [(name, kind) for name, kind in rejected if name not in self._rejected_names]
        if not new or len(self._rejected_names) >= MAX_NAMES:
            return
        self._rejected_names.update(name for name, _ in new)
        raise SettingError(
            f"run.log() cannot record {', '.join(f'{name!r} ({kind})' for name, kind in new)}: "
            f"pass numbers or one-element tensors, under at most {MAX_NAMES} names that match "
            f"{COLUMN_NAME.pattern} and are not {' or '.join(_RESERVED_NAMES)}."
        )


def _flatten(
    values: Mapping[Any, Any], prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, Any]]:
    """Yield names and values, those of nested mappings under `outer/inner`."""
    for key, value in values.items():
        name = key if type(key) is str else str(key)
        if prefix:
            name = f"{prefix}/{name}"
        if type(value) not in _NUMBERS and isinstance(value, Mapping) and depth < _MAX_DEPTH:
            yield from _flatten(value, name, depth + 1)
        else:
            yield name, value


def _checked_step(step: Any) -> int:
    """Return a step that the server accepts: an invalid one would cost the whole batch."""
    if type(step) is int or isinstance(step, numbers.Integral):
        number = int(step)
        if 0 <= number < 2**53:
            return number
    raise SettingError(f"run.log() got step={step!r:.80}: pass a whole number, 0 or more.")


def _to_number(value: Any) -> float | Any | None:
    """Return a float, a one-element tensor to fetch from its device, or None for anything else."""
    try:
        if type(value) in _NUMBERS or isinstance(value, numbers.Real):
            return float(value)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return _tensor_to_number(torch, value)
        if getattr(value, "size", None) == 1 and hasattr(value, "item"):  # an array of one element
            return float(value.item())
        if hasattr(type(value), "__float__") and not hasattr(value, "shape"):  # a Decimal
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    return None


def _tensor_to_number(torch: Any, tensor: Any) -> float | Any | None:
    if tensor.numel() != 1 or tensor.is_complex() or tensor.is_meta:
        return None
    local = getattr(tensor, "_local_tensor", None)
    if local is not None:  # a DTensor: a replicated value needs no communication
        if not all(placement.is_replicate() for placement in tensor.placements):
            return None
        tensor = local
    kind = tensor.device.type
    if kind == "cpu":
        return float(tensor.detach().item())
    is_capturing = kind == "cuda" and torch.cuda.is_current_stream_capturing()
    return None if is_capturing or _event_type(torch, kind) is None else tensor


def _pinned_slot(dtype: Any) -> Any:
    torch = sys.modules["torch"]
    try:
        return torch.empty((), dtype=dtype, pin_memory=True)
    except RuntimeError:  # a backend without pinned memory copies to any
        return torch.empty((), dtype=dtype)


def _event_type(torch: Any, kind: str) -> Any:
    """Return the `Event` class of torch.cuda, torch.xpu or torch.mps, or None for other devices."""
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
