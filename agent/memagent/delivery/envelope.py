"""A message on its way: encoded once, so that every attempt to deliver it sends the same bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from memagent.wire.codec import encode
from memagent.wire.messages import (
    Batch,
    BatchReply,
    Finish,
    PredictionMessage,
    RunStart,
    SnapshotMessage,
)

Kind = Literal["start", "batch", "prediction", "snapshot", "finish"]
Message = RunStart | Batch | PredictionMessage | SnapshotMessage | Finish

_KINDS: dict[type[msgspec.Struct], Kind] = {
    RunStart: "start",
    Batch: "batch",
    PredictionMessage: "prediction",
    SnapshotMessage: "snapshot",
    Finish: "finish",
}


@dataclass(frozen=True)
class Envelope:
    """`samples` is how many are lost if it never arrives."""

    kind: Kind
    run_id: str
    body: bytes
    samples: int = 0


def parcel(run_id: str, message: Message, samples: int = 0) -> Envelope:
    return Envelope(_KINDS[type(message)], run_id, encode(message), samples)


class Transport:
    """Takes parcels somewhere. `deliver` raises DeliveryError to be called again later, RejectedError to never be."""

    def deliver(self, item: Envelope, *, timeout_s: float) -> BatchReply | None:
        """The reply to a batch, or None for what has no reply."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
