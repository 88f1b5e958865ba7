"""Where parcels wait: in the run's file, or in memory while the disk cannot be written.

1. Order is kept. Parcels in memory are newer than those in the file, and move there when the disk can be written again.
2. The file is written first and cleaned late: after a crash it may hold what the server has, never the other way round. That does
   no harm, because the server takes every batch once.
3. Bounds: SPOOL_BYTES in the file, QUEUE_BYTES in memory. Where there is no room, `has_room` makes the collector hold rows back and
   then drop the newest, counted as `queue_full`: how a run began says more about a leak than one more sample of its end.
"""

from __future__ import annotations

from collections import deque

from memagent.delivery.buffer import DroppedSamples
from memagent.delivery.envelope import Envelope
from memagent.delivery.run_file import RunFile
from memagent.errors import WireError

SPOOL_BYTES = 256 * 2**20
"""Bytes of a rank's file: days of a loop with a step a second, eight hours of one with a hundred."""
QUEUE_BYTES = 16 * 2**20


class Spool:
    """A queue of parcels. With `is_destination` the file is where they go, and what is in it waits for nobody.

    Not safe for threads: the sender has the lock. Nothing is raised; `trouble` says what is wrong with the disk, if anything is.
    """

    def __init__(self, file: RunFile, drops: DroppedSamples, *, is_destination: bool) -> None:
        self._file, self._drops, self._is_destination = file, drops, is_destination
        self._in_file: deque[int] = deque()  # samples of each parcel there
        self._next = file.first
        self._in_memory: deque[Envelope] = deque()
        self._memory_bytes = 0
        self.trouble: str | None = None

    def __len__(self) -> int:
        """Parcels that wait."""
        return len(self._in_file) + len(self._in_memory)

    @property
    def samples_on_disk(self) -> int:
        return sum(self._in_file)

    @property
    def samples_in_memory(self) -> int:
        return sum(item.samples for item in self._in_memory)

    @property
    def waits_on_disk(self) -> bool:
        return bool(self._in_file)

    def has_room(self) -> bool:
        if self._in_memory:
            return self._memory_bytes < QUEUE_BYTES
        return self._is_destination or self._file.end < SPOOL_BYTES

    def put(self, item: Envelope) -> None:
        self._in_memory.append(item)
        self._memory_bytes += len(item.body)
        self._flush()

    def draft(self, body: bytes) -> None:
        """Rows that will come again, in a batch."""
        if self._in_memory:
            return  # the disk cannot be written, and the next `put` tries again
        try:
            self._file.draft(body)
        except OSError as error:
            self._note(error)

    def head(self) -> Envelope | None:
        """The oldest parcel that waits."""
        if not self._in_file:
            return self._in_memory[0] if self._in_memory else None
        found = self._read()
        if found is None:
            return self.head()
        item = found[0]
        return Envelope(item.kind, item.run_id, item.body, self._in_file[0])

    def pop(self) -> None:
        """The oldest parcel has arrived."""
        if not self._in_file:
            self._memory_bytes -= len(self._in_memory.popleft().body)
        elif (found := self._read()) is not None:
            self._next = found[1]
            self._in_file.popleft()
            if not self._in_file:
                self._forget()

    def close(self) -> None:
        """Release the file; it stays if something in it waits, or if it is the destination."""
        self._flush()
        self._file.close(remove=not self._is_destination and not self._in_file)

    def _flush(self) -> None:
        try:
            while self._in_memory:
                item = self._in_memory[0]
                self._file.append(item)
                self._in_memory.popleft()
                self._memory_bytes -= len(item.body)
                if not self._is_destination:
                    self._in_file.append(item.samples)
            self.trouble = None
        except OSError as error:
            self._note(error)

    def _read(self) -> tuple[Envelope, int] | None:
        """The oldest parcel of the file, and what comes next. None if somebody damaged the file: what was in it is lost, and counted."""
        try:
            return self._file.read(self._next)
        except (OSError, WireError) as error:
            self.trouble = f"what waited in {self._file.path} is lost: {error}"
            self._drops["spool_damaged"] += self.samples_on_disk
            self._in_file.clear()
            self._forget()
            return None

    def _forget(self) -> None:
        self._next = self._file.first
        try:
            self._file.forget()
        except OSError as error:
            self._note(error)

    def _note(self, error: OSError) -> None:
        self.trouble = f"{self._file.path} cannot be written: {error.strerror or error}; samples wait in memory"
