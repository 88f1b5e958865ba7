"""Spool: queue of envelopes in the run's file, or in memory while the disk isn't writable.

1. Order is kept. Envelopes in memory are newer than those in the file, and move there once the disk
   is writable again.
2. The file is written first and cleaned late. After a crash it may hold what the server already
   has, never the other way round. That's harmless, because the server accepts every batch once.
3. Limits: MAX_FILE_BYTES in the file, MAX_MEMORY_BYTES in memory. Without room, `has_room` makes
   the collector hold rows back, and then drop the newest, counted as `queue_full`. The beginning of
   a run says more about a leak than one more sample of its end.
"""

from __future__ import annotations

from collections import deque

from memagent.delivery.buffer import DroppedSamples
from memagent.delivery.envelope import Envelope
from memagent.delivery.run_file import RunFile
from memagent.errors import WireError

MAX_FILE_BYTES = 256 * 2**20
"""Days of a loop with a step per second, eight hours of one with a hundred."""
MAX_MEMORY_BYTES = 16 * 2**20


class Spool:
    """A queue of envelopes. With `is_destination`, they stay in the file.

    Not thread-safe: the sender has a lock. Methods don't raise; `trouble` says what is wrong with
    the disk, if anything is.
    """

    def __init__(self, file: RunFile, drops: DroppedSamples, *, is_destination: bool) -> None:
        self._file = file
        self._drops = drops
        self._is_destination = is_destination
        self._in_file: deque[int] = deque()
        """Samples of each envelope in the file."""
        self._head = file.first
        """Offset of the oldest envelope in the file."""
        self._in_memory: deque[Envelope] = deque()
        self._memory_bytes = 0
        self.trouble: str | None = None

    def __len__(self) -> int:
        """Return the number of envelopes in the queue."""
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
            return self._memory_bytes < MAX_MEMORY_BYTES
        return self._is_destination or self._file.end < MAX_FILE_BYTES

    def put(self, item: Envelope) -> None:
        # by way of memory, so that it cannot overtake envelopes that wait there
        self._in_memory.append(item)
        self._memory_bytes += len(item.body)
        self._flush()

    def draft(self, body: bytes) -> None:
        """Write rows that will come again, in a batch."""
        if self._in_memory:
            return  # the disk isn't writable; the next `put` tries again
        try:
            self._file.draft(body)
        except OSError as error:
            self._note(error)

    def head(self) -> Envelope | None:
        """Return the oldest envelope."""
        if self._in_file:
            frame = self._read()
            if frame is not None:
                item = frame[0]
                # a frame doesn't say how many samples it has
                return Envelope(item.kind, item.run_id, item.body, self._in_file[0])
        return self._in_memory[0] if self._in_memory else None

    def pop(self) -> None:
        """Remove the oldest envelope, which has arrived."""
        if not self._in_file:
            self._memory_bytes -= len(self._in_memory.popleft().body)
        elif (frame := self._read()) is not None:
            self._head = frame[1]
            self._in_file.popleft()
            if not self._in_file:
                self._clear_file()

    def close(self) -> None:
        """Release the file. It stays if it holds undelivered envelopes or is the destination."""
        self._flush()
        self._file.close(remove=not self._is_destination and not self._in_file)

    def _flush(self) -> None:
        try:
            while self._in_memory:
                item = self._in_memory[0]
                self._file.append(item)
                # only after the write has succeeded
                self._in_memory.popleft()
                self._memory_bytes -= len(item.body)
                if not self._is_destination:
                    self._in_file.append(item.samples)
            self.trouble = None
        except OSError as error:
            self._note(error)

    def _read(self) -> tuple[Envelope, int] | None:
        """Return the file's oldest envelope and the offset of the next one.

        None if another program has damaged the file: its envelopes are lost, and counted.
        """
        try:
            return self._file.read(self._head)
        except (OSError, WireError) as error:
            self.trouble = f"the samples in {self._file.path} are lost: {error}"
            self._drops["spool_damaged"] += self.samples_on_disk
            self._in_file.clear()
            self._clear_file()
            return None

    def _clear_file(self) -> None:
        self._head = self._file.first
        try:
            self._file.clear()
        except OSError as error:
            self._note(error)

    def _note(self, error: OSError) -> None:
        reason = error.strerror or error
        self.trouble = f"cannot write {self._file.path}: {reason}; samples are kept in memory"
