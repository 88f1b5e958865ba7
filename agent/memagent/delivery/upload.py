"""Upload of a run file whose process has ended: all of it arrives, once, whatever interrupts it.

1. The file is locked. If that fails, its process still runs or another upload is active, and the
   file is left alone.
2. The start is delivered, then every envelope in order: the same bytes that the process sent, or
   would have sent. The server accepts each batch once. Its reply names the first batch that it
   lacks, so what it has is skipped.
3. Nothing is added: a run that never reported how it ended gets no end here.
4. When everything has arrived, the file is removed. It's renamed instead if the caller keeps files,
   or if it has unreadable bytes. Until then it isn't changed, so an interrupted upload starts
   again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from memagent.delivery.envelope import Envelope, MessageKind, Reply, Transport
from memagent.delivery.run_file import SUFFIX, read_frames, try_lock, unread_bytes
from memagent.delivery.sender import retry_delay_s
from memagent.errors import DeliveryError, RejectedError, StartRequiredError, WireError
from memagent.wire.codec import decode
from memagent.wire.columns import read_header
from memagent.wire.messages import Batch, BatchReply, Finish, RunStart

SYNCED = ".synced"
TIMEOUT_S = 30.0
MAX_ATTEMPTS = 4
FIRST_DELAY_S = 0.5
MAX_DELAY_S = 30.0

UploadOutcome = Literal["uploaded", "waiting", "in_use", "refused", "unreadable"]
"""`waiting`: not all uploaded, a retry may help. `refused`: the server rejects some of it. Only
`uploaded` files are removed or renamed."""


@dataclass
class Upload:
    """Result for one file. `status`: how the run ended, None if it never reported it."""

    path: Path
    run_id: str | None = None
    rank: int | None = None
    attempt: int | None = None
    outcome: UploadOutcome = "waiting"
    status: str | None = None
    parcels: int = 0
    """Envelopes of the file, as `memagent sync --json` calls them."""
    samples: int = 0
    refused: int = 0
    notes: list[str] = field(default_factory=list)


def find_files(paths: Iterable[Path]) -> list[Upload]:
    """Return run files in folders, and those given by name, older launches first.

    The server takes the newest launch for the current one.
    """
    files = [
        file
        for path in paths
        for file in (sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path])
    ]
    uploads = [_read_start(path) for path in dict.fromkeys(files)]
    return sorted(uploads, key=lambda item: (item.run_id or "", item.attempt or 0, item.rank or 0))


def upload(
    file: Upload,
    transport: Transport | None,
    *,
    keep: bool = False,
    advance: Callable[[int], None] = lambda _: None,
) -> Upload:
    """Deliver a file of `find_files`; without a transport, only count what it holds.

    Errors are put into `outcome` and `notes`. `advance` gets the bytes of each completed envelope.
    """
    if file.outcome == "unreadable":
        return file
    try:
        with _locked(file.path) as refusal:
            if refusal is not None:
                file.outcome = "in_use"
                file.notes.append(refusal)
            else:
                _upload_frames(file, transport, advance, keep=keep)
    except FileNotFoundError:
        file.outcome = "uploaded"
        file.notes.append("another sync has uploaded it")
    except (OSError, WireError) as error:
        file.outcome = "unreadable"
        file.notes.append(str(error))
    return file


def _read_start(path: Path) -> Upload:
    try:
        kind, body = next(read_frames(path), (None, b""))
        if kind != "start":
            raise WireError(f"{path} holds no run: its first frame is torn or damaged")
        start = decode(body, RunStart)
    except (OSError, WireError) as error:
        return Upload(path, outcome="unreadable", notes=[str(error)])
    return Upload(path, start.run_id, start.rank, start.attempt)


@contextmanager
def _locked(path: Path) -> Iterator[str | None]:
    """Hold the file's lock. Yield the reason if it's not available.

    Raises FileNotFoundError if the file is gone by then.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            is_locked = try_lock(fd)
        except OSError as error:
            raise OSError(
                f"{path} cannot be locked ({error.strerror}): copy it to another filesystem"
            ) from error
        if not is_locked:
            yield "the run is still active, or another sync is uploading it"
            return
        # Another upload may have removed the file between open and lock.
        if path.stat().st_ino != os.fstat(fd).st_ino:
            raise FileNotFoundError(path)
        yield None
    finally:
        os.close(fd)


def _upload_frames(
    file: Upload, transport: Transport | None, advance: Callable[[int], None], *, keep: bool
) -> None:
    uploader = _FileUploader(file, transport)
    try:
        for kind, body in read_frames(file.path):
            uploader.upload(kind, body)
            advance(len(body))
    except RejectedError:  # of the start: without it, the server accepts nothing else
        file.outcome = "refused"
        return
    except DeliveryError as error:
        file.notes.append(str(error))
        return
    if unread := unread_bytes(file.path):
        file.notes.append(f"{unread} bytes at its end are torn or damaged")
    if transport is None:
        return
    file.notes += uploader.gaps()
    file.outcome = "refused" if file.refused else "uploaded"
    if file.outcome == "uploaded":
        _remove(file, keep=keep or unread > 0)


def _remove(file: Upload, *, keep: bool) -> None:
    """Remove an uploaded file, or rename it."""
    try:
        if not keep:
            file.path.unlink()
        elif file.path.suffix != SYNCED:
            file.path = file.path.rename(file.path.with_name(file.path.name + SYNCED))
    except OSError as error:
        file.notes.append(f"{file.path} was uploaded, but cannot be removed: {error.strerror}")


class _FileUploader:
    """Delivers the envelopes of one file; without a transport, it only counts them."""

    def __init__(self, file: Upload, transport: Transport | None) -> None:
        self._file = file
        self._transport = transport
        self._start: Envelope | None = None
        self._next_seq = 0
        self._last_seq = -1

    def upload(self, kind: MessageKind, body: bytes) -> None:
        """Deliver one envelope. Raises DeliveryError if the server is away."""
        file = self._file
        item = Envelope(kind, file.run_id or "", body)
        file.parcels += 1
        if kind == "start":
            self._start = item
        elif kind == "finish":
            file.status = decode(body, Finish).status
        elif kind == "batch":
            batch = decode(body, Batch)
            file.samples += _count_samples(batch)
            self._last_seq = batch.seq
            if batch.seq < self._next_seq:
                return
        if self._transport is not None:
            self._deliver(self._transport, item)

    def gaps(self) -> list[str]:
        """Return a note if the server lacks a batch that the file doesn't hold."""
        if self._next_seq > self._last_seq:
            return []
        return [
            f"the server lacks batch {self._next_seq}: "
            "it was lost before it reached the disk, or refused"
        ]

    def _deliver(self, transport: Transport, item: Envelope) -> None:
        for number in range(1, MAX_ATTEMPTS + 1):
            try:
                reply = self._attempt(transport, item)
            except RejectedError as error:
                self._file.refused += 1
                self._file.notes.append(str(error))
                if item.kind == "start":
                    raise
                return
            except DeliveryError as error:
                if number == MAX_ATTEMPTS:
                    raise
                delay_s = retry_delay_s(
                    number,
                    first_s=FIRST_DELAY_S,
                    max_s=MAX_DELAY_S,
                    retry_after_s=error.retry_after_s,
                )
                time.sleep(delay_s)
                continue
            if isinstance(reply, BatchReply):
                self._next_seq = reply.next_seq
            return

    def _attempt(self, transport: Transport, item: Envelope) -> Reply | None:
        try:
            return transport.deliver(item, timeout_s=TIMEOUT_S)
        except StartRequiredError:
            if self._start is None:
                raise
            transport.deliver(self._start, timeout_s=TIMEOUT_S)
            return transport.deliver(item, timeout_s=TIMEOUT_S)


def _count_samples(batch: Batch) -> int:
    rows = 0
    for chunk in batch.chunks:
        if chunk.packed is not None:
            rows += read_header(chunk.packed).rows
        else:
            rows += len(next(iter((chunk.columns or {}).values()), []))
    return rows
