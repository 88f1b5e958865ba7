"""How a run begins: what the server is told of it first, and where what it sends is kept until then."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memagent.delivery.run_file import SUFFIX
from memagent.delivery.transport import HttpTransport
from memagent.lifecycle.options import AttachOptions
from memagent.record import describe_process, host_name, user_name
from memagent.record.identity import Identity
from memagent.settings import Settings
from memagent.wire.messages import Device, RunStart


def transport_of(settings: Settings) -> HttpTransport | None:
    """The way to the server; None without one."""
    return HttpTransport(settings.server, settings.token) if settings.server else None


def file_path(settings: Settings, identity: Identity) -> Path:
    """Of the file that keeps what this rank sends until the server has it."""
    return settings.directory / f"{identity.run_id}-rank{identity.rank}-{identity.attempt}{SUFFIX}"


def first_message(
    settings: Settings,
    identity: Identity,
    options: AttachOptions,
    config: Mapping[str, Any],
    devices: Sequence[Device],
) -> RunStart:
    """Who runs what, where, and with which devices; `config` is `options.config` in plain values."""
    return RunStart(
        run_id=identity.run_id,
        project=settings.project,
        name=settings.name,
        user=user_name(),
        host=host_name(),
        rank=identity.rank,
        world_size=identity.world_size,
        attempt=identity.attempt,
        started_at=time.time(),
        total_steps=options.total_steps,
        config=dict(config),
        tags=list(options.tags),
        environment=describe_process(),
        devices=list(devices),
    )
