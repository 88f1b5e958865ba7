"""Envelope: a message encoded once, so that every attempt to deliver it sends the same bytes."""

from __future__ import annotations

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
    StartReply,
)

MessageKind = Literal["start", "batch", "prediction", "snapshot", "finish"]
AgentMessage = RunStart | Batch | PredictionMessage | SnapshotMessage | Finish

Reply = StartReply | BatchReply

_KINDS: dict[type[msgspec.Struct], MessageKind] = {
    RunStart: "start",
    Batch: "batch",
    PredictionMessage: "prediction",
    SnapshotMessage: "snapshot",
    Finish: "finish",
}


class Envelope(msgspec.Struct, frozen=True):
    """An encoded message. `samples` are lost if it never arrives."""

    kind: MessageKind
    run_id: str
    body: bytes
    samples: int = 0


def seal(run_id: str, message: AgentMessage, samples: int = 0) -> Envelope:
    """Return the envelope of a message."""
    return Envelope(_KINDS[type(message)], run_id, encode(message), samples)


class Transport:
    """Delivers envelopes. See `HttpTransport`."""

    def deliver(self, item: Envelope, *, timeout_s: float) -> Reply | None:
        """Deliver, and return the reply to a start or a batch, or None for other messages.

        Raises DeliveryError if a retry may help, RejectedError if not.
        """
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
