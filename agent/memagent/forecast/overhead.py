"""Overhead: device memory in use beyond a step's peak, which its process can't use.

Unusable reserve, the part of torch's cache that no request can use (`UnusableReserve`):

1. A step's activations reuse the free pieces of split blocks. So of the pieces that are free after
   the step only those beyond its excess are unusable, and never more than reserved - peak.
2. What can't be used at the limit is unknown before: in messages of real out-of-memory errors,
   "reserved but unallocated" memory is 2 % of the device at the median and 16 % at the 90th
   percentile.
3. When the device is full, the allocator returns idle segments and tries again (`alloc_retries`).
   What is reserved beyond the peak after that can't be returned: rather this than rule 2.

Other processes, used on the device and not reserved by this one (`OtherProcesses`):

4. NVML is read at most once a second, `reserved` with each step. The difference means something
   only if `reserved` was the same from one reading to the next. Otherwise it lies between two
   bounds, and others keep the value nearest to their last one.
"""

from __future__ import annotations

from math import inf

MEDIAN_UNUSABLE_RATIO, MAX_UNUSABLE_RATIO = 0.02, 0.16
"""Shares of the limit that are unusable at an out-of-memory error (rule 2)."""


class UnusableReserve:
    """Call `update` for each step; sizes are bytes."""

    __slots__ = ("_measured", "_retries", "at_least", "at_most", "expected", "free_pieces")

    def __init__(self) -> None:
        self.at_least = self.expected = self.at_most = self.free_pieces = 0.0
        self._measured: float | None = None
        self._retries = inf

    def update(
        self,
        *,
        floor: float,
        peak: float,
        reserved: float,
        split: float,
        retries: float | None,
        limit_bytes: float,
    ) -> None:
        # comparisons: each call of min and max takes longer than all of them, and this is each step
        slack = reserved - peak if reserved > peak else 0.0
        if retries is not None:
            if retries > self._retries:
                self._measured = slack
            self._retries = retries
        pieces = split - (peak - floor)
        if pieces < 0:
            pieces = 0.0
        self.free_pieces = split if split < slack else slack
        if pieces >= slack:
            self.at_least = self.expected = self.at_most = slack
            return
        median, most = self._measured, self._measured
        if median is None or most is None:
            median, most = MEDIAN_UNUSABLE_RATIO * limit_bytes, MAX_UNUSABLE_RATIO * limit_bytes
        self.at_least = pieces
        self.expected = min(max(pieces, median), slack)
        self.at_most = min(max(pieces, most), slack)


class OtherProcesses:
    """Call `update` for each step; `bytes` is what others use of the device."""

    __slots__ = ("_high", "_low", "_reading", "bytes")

    def __init__(self) -> None:
        self.bytes = 0.0
        self._reading: float | None = None
        self._low = inf
        self._high = 0.0

    def update(self, device_used: float, reserved: float) -> None:
        self._low = min(self._low, reserved)
        self._high = max(self._high, reserved)
        if device_used == self._reading and self._low < self._high:
            return
        is_first = self._reading is None
        self._reading = device_used
        least, most = max(0.0, device_used - self._high), max(0.0, device_used - self._low)
        self.bytes = most if is_first else min(max(self.bytes, least), most)
        self._low = self._high = reserved
