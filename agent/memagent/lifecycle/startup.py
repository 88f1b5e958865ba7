"""What a run starts with, by its settings: its description, the transport, and the console."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memagent.delivery.envelope import Transport
from memagent.lifecycle.options import AttachOptions
from memagent.record import describe_process, host_name, user_name
from memagent.record.fingerprint import fingerprint_of_process
from memagent.record.identity import Identity
from memagent.sampling.sampler import Sampler
from memagent.settings import Settings
from memagent.wire.messages import Device, RunStart

if TYPE_CHECKING:
    from memagent.console.log import ConsoleLog


def run_start(
    settings: Settings,
    options: AttachOptions,
    identity: Identity,
    config: Mapping[str, Any],
    devices: Sequence[Device],
) -> RunStart:
    """Return the description of the run, which is its first message."""
    commands = {"takes_commands": True} if options.on_command is not None else {}
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
        environment=describe_process(changes=options.changes) | commands,
        fingerprint=fingerprint_of_process() if identity.rank == 0 else None,
        devices=list(devices),
    )


def open_transport(settings: Settings) -> Transport | None:
    """Return the transport to the server, None if there is none."""
    if settings.server is None:
        return None
    from memagent.delivery.api_client import HttpTransport  # a run without a server needs none

    return HttpTransport(settings.server, settings.token)


def open_console(
    settings: Settings, options: AttachOptions, sampler: Sampler, rank: int
) -> ConsoleLog | None:
    """Return the console of a run that records it: if it's asked to, or `memagent run` captures."""
    capture = sys.modules.get("memagent.console.capture")
    # `memagent run` captures before the script's first line
    is_captured = capture is not None and capture.active_capture() is not None
    is_wanted = options.console or settings.console or is_captured
    if settings.console is False or not is_wanted:
        return None
    from memagent.console.log import ConsoleLog

    return ConsoleLog.open(sampler, is_live=rank == 0)
