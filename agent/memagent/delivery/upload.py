"""Uploading a run file whose process is gone: all of it arrives, once, whatever interrupts it.

1. The file is locked. If it cannot be, its process still lives (or another upload is at it), and it is left alone.
2. Start, then every parcel in order, the very bytes that the process sent or would have sent: the server takes each batch once.
   A reply names the first batch that the server lacks, so what it has is skipped.
3. Nothing is added: a run that never said how it ended is not given an end here.
4. Only when all has arrived is the file removed, or renamed where it is to be kept or holds bytes that could not be read.
   Until then it is not touched, so an upload that was interrupted begins anew.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from memagent.delivery.envelope import Envelope, Kind, Transport
from memagent.delivery.run_file import SUFFIX, read_frames, try_lock, unread_bytes
from memagent.delivery.transport import UnknownRunError
from memagent.errors import DeliveryError, RejectedError, WireError
from memagent.wire.codec import decode
from memagent.wire.columns import read_header
from memagent.wire.messages import Batch, BatchReply, Finish, RunStart

SYNCED = ".synced"
TIMEOUT_S = 30.0
TRIES = 4
FIRST_DELAY_S, LONGEST_DELAY_S = 0.5, 30.0

Outcome = Literal["uploaded", "waiting", "in_use", "refused", "unreadable"]
"""`waiting`: not (all) uploaded, try again; `refused`: the server will never take some of it. All but `uploaded` leave the file there."""


@dataclass
class Upload:
    """What became of one file. `status` is how the run said that it ended, None if it never did."""

    path: Path
    run_id: str | None = None
    rank: int | None = None
    attempt: int | None = None
    outcome: Outcome = "waiting"
    status: str | None = None
    parcels: int = 0
    samples: int = 0
    refused: int = 0
    notes: list[str] = field(default_factory=list)


def find_files(paths: Iterable[Path]) -> list[Upload]:
    """Run files in folders, and those named themselves; older launches first, as the server takes a newer one for the current."""
    found = [
        file
        for path in paths
        for file in (sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path])
    ]
    uploads = [_look_at(path) for path in dict.fromkeys(found)]
    return sorted(
        uploads, key=lambda upload: (upload.run_id or "", upload.attempt or 0, upload.rank or 0)
    )


def upload(
    found: Upload,
    transport: Transport | None,
    *,
    keep: bool = False,
    advance: Callable[[int], None] = lambda _: None,
) -> Upload:
    """Deliver a file of `find_files`, or with no transport only count what is in it. Errors end up in `outcome` and `notes`. `advance`
    hears the bytes of each parcel that is done."""
    if found.outcome == "unreadable":
        return found
    try:
        with _locked(found.path) as refusal:
            if refusal is not None:
                found.outcome = "in_use"
                found.notes.append(refusal)
            else:
                _deliver_all(found, transport, advance, keep=keep)
    except FileNotFoundError:
        found.outcome = "uploaded"
        found.notes.append("another sync was faster")
    except (OSError, WireError) as error:
        found.outcome = "unreadable"
        found.notes.append(str(error))
    return found


def _look_at(path: Path) -> Upload:
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
    """Hold the file's lock; gives the reason where it cannot be had. Raises FileNotFoundError if it is gone by then."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            is_ours = try_lock(fd)
        except OSError as error:
            raise OSError(
                f"{path} cannot be locked ({error.strerror}): copy it to another filesystem"
            ) from error
        if not is_ours:
            yield "its process still runs, or another sync is at it"
            return
        if path.stat().st_ino != os.fstat(fd).st_ino:
            raise FileNotFoundError(path)
        yield None
    finally:
        os.close(fd)


def _deliver_all(
    found: Upload, transport: Transport | None, advance: Callable[[int], None], *, keep: bool
) -> None:
    courier = _FileUploader(found, transport)
    try:
        for kind, body in read_frames(found.path):
            courier.take(kind, body)
            advance(len(body))
    except RejectedError:  # of the start: without it the server takes nothing else
        found.outcome = "refused"
        return
    except DeliveryError as error:
        found.notes.append(str(error))
        return
    if unread := unread_bytes(found.path):
        found.notes.append(f"{unread} bytes at its end are torn or damaged")
    if transport is None:
        return
    found.notes += courier.gaps()
    found.outcome = "refused" if found.refused else "uploaded"
    if found.outcome == "uploaded":
        _put_away(found, keep=keep or unread > 0)


def _put_away(found: Upload, *, keep: bool) -> None:
    try:
        if not keep:
            found.path.unlink()
        elif found.path.suffix != SYNCED:
            found.path = found.path.rename(found.path.with_name(found.path.name + SYNCED))
    except OSError as error:
        found.notes.append(f"{found.path} stays, although all of it was uploaded: {error.strerror}")


class _FileUploader:
    """Takes the parcels of one file to the server, or with no transport only counts them."""

    def __init__(
        self,
        found: Upload,
        transport: Transport | None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._found, self._transport, self._sleep = found, transport, sleep
        self._start: Envelope | None = None
        self._next_seq, self._last_seq = 0, -1

    def take(self, kind: Kind, body: bytes) -> None:
        """Deliver one parcel. Raises DeliveryError when the server is away."""
        found = self._found
        item = Envelope(kind, found.run_id or "", body)
        found.parcels += 1
        if kind == "start":
            self._start = item
        elif kind == "finish":
            found.status = decode(body, Finish).status
        elif kind == "batch":
            batch = decode(body, Batch)
            found.samples += _samples(batch)
            self._last_seq = batch.seq
            if batch.seq < self._next_seq:
                return
        self._deliver(item)

    def gaps(self) -> list[str]:
        if self._next_seq > self._last_seq:
            return []
        return [
            f"the server lacks batch {self._next_seq}: it was lost before it reached the disk, or refused"
        ]

    def _deliver(self, item: Envelope) -> None:
        if self._transport is None:
            return
        for number in range(1, TRIES + 1):
            try:
                reply = self._attempt(self._transport, item)
            except RejectedError as error:
                self._found.refused += 1
                self._found.notes.append(str(error))
                if item.kind == "start":
                    raise
                return
            except DeliveryError as error:
                if number == TRIES:
                    raise
                delay_s = (
                    FIRST_DELAY_S * 2 ** (number - 1)
                    if error.retry_after_s is None
                    else error.retry_after_s
                )
                self._sleep(min(delay_s, LONGEST_DELAY_S))
                continue
            if reply is not None:
                self._next_seq = reply.next_seq
            return

    def _attempt(self, transport: Transport, item: Envelope) -> BatchReply | None:
        try:
            return transport.deliver(item, timeout_s=TIMEOUT_S)
        except UnknownRunError:
            if self._start is None:
                raise
            transport.deliver(self._start, timeout_s=TIMEOUT_S)
            return transport.deliver(item, timeout_s=TIMEOUT_S)


def _samples(batch: Batch) -> int:
    rows = 0
    for chunk in batch.chunks:
        if chunk.packed is not None:
            rows += read_header(chunk.packed).rows
        else:
            rows += len(next(iter((chunk.columns or {}).values()), []))
    return rows
