"""Every column of a sample: the one list that agent, store, charts, exporter and docs agree on.

A sample is one row: the readings of one device at the end of one optimizer step. `docs/wire.md` has a heading for each
field (a test keeps it so). Adding a field needs no migration: the store keeps chunks as they came. Names carry unit and
statistic; a reading that was not taken is None, never -1 or 0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["int", "float"]

COMPONENTS = (
    "parameters",
    "gradients",
    "optimizer_state",
    "buffers",
    "activations",
    "workspace",
    "fragmentation",
    "context",
    "other_processes",
)
"""What bytes are for, in the order in which people read a stacked bar."""

PHASES = ("data", "forward", "backward", "optimizer")
"""The parts of a training step that the agent tells apart by itself; users add their own with `run.phase(name)`."""


@dataclass(frozen=True)
class Field:
    name: str
    kind: Kind
    meaning: str


FIELDS: tuple[Field, ...] = (
    Field(
        "step",
        "int",
        "optimizer steps finished when the sample was taken; 0 is the sample taken at attach",
    ),
    Field("time_s", "float", "wall clock of the training host, seconds since the Unix epoch"),
    Field("step_s", "float", "wall time since the previous sample's step ended, seconds"),
    Field(
        "allocated_bytes",
        "int",
        "held by live tensors at the end of the step; on a host: used by the process tree",
    ),
    Field(
        "peak_allocated_bytes",
        "int",
        "most allocated within the step: counted by the allocator; on a host: at any reading",
    ),
    Field(
        "reserved_bytes",
        "int",
        "obtained by the caching allocator from the driver; on a host: private writable memory mapped",
    ),
    Field("peak_reserved_bytes", "int", "most reserved within the step"),
    Field("active_bytes", "int", "allocated, or freed by Python but still waiting for a stream"),
    Field("requested_bytes", "int", "what callers asked for, before the allocator's rounding"),
    Field(
        "inactive_split_bytes",
        "int",
        "free pieces of split blocks, which cannot be given back: fragmentation",
    ),
    Field(
        "alloc_retries_total",
        "int",
        "times the allocator had to flush its cache and try again, since the process began",
    ),
    Field(
        "ooms_total", "int", "out-of-memory errors the allocator raised, since the process began"
    ),
    Field(
        "segments",
        "int",
        "pieces of device memory that the caching allocator has obtained and not given back",
    ),
    Field(
        "device_allocs_total",
        "int",
        "times the allocator asked the driver for memory (cudaMalloc), since the process began",
    ),
    Field(
        "device_frees_total",
        "int",
        "times the allocator gave memory back to the driver (cudaFree), since the process began",
    ),
    Field(
        "pinned_bytes",
        "int",
        "page-locked host memory that torch's host allocator holds, for all devices",
    ),
    Field(
        "device_used_bytes",
        "int",
        "used on the device by everybody (NVML); on a host: by the process tree",
    ),
    Field("limit_bytes", "int", "most that the process can use of this device"),
    Field(
        "host_rss_bytes",
        "int",
        "resident memory of the process tree, data-loader workers included; pages that a fork shares count once",
    ),
    Field(
        "process_device_bytes",
        "int",
        "held on the device by this process, CUDA context included (NVML); null where NVML does not list the process",
    ),
    Field(
        "other_processes_bytes", "int", "component: held on the device by other processes (NVML)"
    ),
    Field(
        "utilization_ratio",
        "float",
        "share of the time in which the device was busy (NVML), 0 to 1",
    ),
    Field("power_w", "float", "power drawn by the device, watts"),
    Field("temperature_c", "float", "temperature of the device, degrees Celsius"),
    Field(
        "host_pss_bytes",
        "int",
        "proportional share of the process tree: shared pages divided among those who share them; read every half minute",
    ),
    Field("host_locked_bytes", "int", "memory of this process that cannot be swapped out"),
    Field(
        "shm_used_bytes",
        "int",
        "used in /dev/shm by everybody who sees the same one; data-loader workers hand over batches there",
    ),
    Field("shm_limit_bytes", "int", "size of /dev/shm"),
    Field(
        "memory_pressure_ratio",
        "float",
        "share of the last ten seconds in which some task waited for memory (PSI), 0 to 1",
    ),
    Field(
        "cgroup_used_bytes",
        "int",
        "charged to the cgroup whose limit is lowest, without file pages that the kernel gives up at once",
    ),
    Field(
        "cgroup_oom_kills_total",
        "int",
        "processes of the cgroup that the kernel killed for want of memory",
    ),
    Field(
        "input_size", "int", "elements in the tensors handed to the model's forward during the step"
    ),
    Field("parameters_bytes", "int", "component: parameters"),
    Field("gradients_bytes", "int", "component: gradients"),
    Field("optimizer_state_bytes", "int", "component: optimizer state"),
    Field("buffers_bytes", "int", "component: buffers of the modules"),
    Field(
        "activations_bytes",
        "int",
        "component: peak within the step minus what was held at its beginning",
    ),
    Field(
        "context_bytes",
        "int",
        "component: what the process holds apart from tensors (CUDA context; on a host: interpreter and libraries)",
    ),
    Field("phase_data_peak_bytes", "int", "most allocated while waiting for and preparing data"),
    Field("phase_forward_peak_bytes", "int", "most allocated in forward"),
    Field("phase_backward_peak_bytes", "int", "most allocated in backward"),
    Field("phase_optimizer_peak_bytes", "int", "most allocated in the optimizer's step"),
)

BY_NAME = {field.name: field for field in FIELDS}

SCALARS_STREAM = "scalars"
"""Name of the stream that carries a rank's `run.log` values: columns `step`, `time_s` and one float column a name."""

COLUMN_NAME = re.compile(r"[A-Za-z_][\w./@ -]{0,127}")
"""Names a column may have; user scalars such as `train/loss` are columns too."""


def kind_of(name: str) -> Kind:
    """Kind of a column, known or not: an unknown one is judged by its suffix, so that newer agents meet older servers."""
    known = BY_NAME.get(name)
    if known is not None:
        return known.kind
    return "int" if name.endswith(("_bytes", "_total")) else "float"


def scalar_kind_of(name: str) -> Kind:
    """Kind of a column in the scalars stream: whatever a user logs is a float, even under a name like `cache_bytes`."""
    return "int" if name == "step" else "float"
