"""The environment of a rehearsed process. Pure: environment in, environment out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from memagent.environment import REHEARSAL_PREFIX
from memagent.errors import OptionError, RehearsalError
from memagent.estimator.bounds import MEMORY_LIMIT
from memagent.estimator.cards import CARDS, PAGE_BYTES, Card, card_named, find_card
from memagent.estimator.devices import CONTEXT_BYTES, context_of, nccl_buffers
from memagent.rehearsal.build import Build
from memagent.units import format_bytes, parse_bytes

MAX_DEVICES = 16
TRACKERS_OFF = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "DISABLED",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
"""Trackers and hubs would upload zeros. HF_HUB_OFFLINE stays as it is if the user has set it."""
RESERVED_SHARED_BYTES = 1024
DEFAULT_COPY_LIMIT_BYTES = 1 << 20
VERSIONS = {12: 12080, 13: 13000}
"""Answers of cudaDriverGetVersion, by the CUDA version of torch."""


@dataclass(frozen=True)
class Machine:
    """The machine to rehearse on."""

    card: Card
    count: int = 1
    ranks: int = 1
    """Processes that train together; the first is rehearsed."""
    context_bytes: int = CONTEXT_BYTES
    held_bytes: int = 0
    """Memory of other processes on each device."""
    copy_limit_bytes: int = DEFAULT_COPY_LIMIT_BYTES
    """Longer copies to a device aren't made."""
    addresses: Literal["growing", "falling"] = "growing"
    ledger: Path | None = None
    """A file through which processes share the devices."""

    @property
    def communicator_bytes(self) -> tuple[int, int, int]:
        """Return the least, the usual and the most that a communicator of NCCL holds."""
        return nccl_buffers(self.ranks, self.card.capability)

    @property
    def context_interval(self) -> tuple[int, int]:
        """Return the smallest and the largest context; one that isn't the usual is known."""
        usual = context_of(None, self.card.capability, self.card.multiprocessors)
        if self.context_bytes in (usual.size_bytes, CONTEXT_BYTES) and usual.interval:
            return usual.interval
        return self.context_bytes, self.context_bytes


def cuda_card(text: str) -> Card:
    """Return the card. `NAME:24GiB` has that memory; an unknown NAME is like an A100 otherwise.

    Raises SettingError.
    """
    name, _, size = text.partition(":")
    card = find_card(name) if size else card_named(name, "NAME:")
    if card is not None and not card.multiprocessors:
        raise OptionError(
            "gpu", f"{card.name} has no CUDA: a rehearsal needs one of NVIDIA's cards."
        )
    if card is not None and not size:
        return card
    total = parse_bytes(size, "gpu") // PAGE_BYTES * PAGE_BYTES
    if total > MEMORY_LIMIT:
        raise OptionError("gpu", f"{text!r}: give at most {format_bytes(MEMORY_LIMIT)}.")
    if not total:
        raise OptionError("gpu", f"{text!r} has no memory: its size needs a unit, as in 24GiB.")
    return replace(card or replace(CARDS["a100"], name=name), total_bytes=total)


def environment_of(
    environment: Mapping[str, str], build: Build, machine: Machine
) -> dict[str, str]:
    """Return `environment` with the device loaded and configured. Raises RehearsalError."""
    if not 1 <= machine.count <= MAX_DEVICES:
        raise RehearsalError(f"{machine.count} devices: a rehearsal has 1 to {MAX_DEVICES}.")
    inherited = {
        key: value for key, value in environment.items() if not key.startswith(REHEARSAL_PREFIX)
    }
    folder = str(build.folder)
    return {
        **inherited,
        **{
            REHEARSAL_PREFIX + key: str(value) for key, value in settings_of(build, machine).items()
        },
        "LD_PRELOAD": _joined([str(build.device), str(build.stubs)], inherited.get("LD_PRELOAD")),
        "LD_LIBRARY_PATH": _joined([folder], inherited.get("LD_LIBRARY_PATH")),
        "TRITON_LIBCUDA_PATH": folder,
    }


def settings_of(build: Build, machine: Machine) -> dict[str, str | int]:
    """Return the device's settings, without their prefix."""
    card = machine.card
    settings: dict[str, str | int] = {
        "NAME": card.name,
        "MEMORY": card.total_bytes,
        "CAPABILITY": f"{card.capability[0]}.{card.capability[1]}",
        "MULTIPROCESSORS": card.multiprocessors,
        "SHARED": card.shared_bytes,
        "SHARED_BLOCK": card.shared_bytes - RESERVED_SHARED_BYTES,
        "L2": card.l2_bytes,
        "THREADS": card.threads,
        "CLOCK": card.clock_mhz,
        "BUS": card.bus_bits,
        "COUNT": machine.count,
        "CONTEXT": machine.context_bytes,
        "HELD": machine.held_bytes,
        "COMMUNICATOR": machine.communicator_bytes[1],
        "COPY_LIMIT": machine.copy_limit_bytes,
        "ADDRESSES": machine.addresses,
        "CUDA": VERSIONS.get(build.cuda_major, build.cuda_major * 1000),
    }
    if machine.ledger is not None:
        settings["LEDGER"] = str(machine.ledger)
    return settings


def notice_of(build: Build) -> str | None:
    """Return a sentence about functions that torch calls and the device doesn't know, or None."""
    if not build.unknown:
        return None
    names = ", ".join(build.unknown[:5])
    more = f" and {len(build.unknown) - 5} more" if len(build.unknown) > 5 else ""
    return (
        f"This torch calls {names}{more}, which this version of memagent does not know: they "
        "succeed and do nothing."
    )


def _joined(first: list[str], rest: str | None) -> str:
    return ":".join([*first, *([rest] if rest else [])])
