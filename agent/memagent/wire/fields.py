"""Every column of a sample: the one list for agent, store, charts, exporter and docs.

A sample is one row: the readings of one device at the end of one optimizer step. `docs/wire.md` has
a heading for each field, which a test checks. A new field needs no migration, since the store keeps
chunks as they came. Names carry unit and statistic. A reading that wasn't taken is None, never -1
or 0.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

ColumnKind = Literal["int", "float"]

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
"""Purposes of memory, in the order of a stacked bar."""

PHASES = ("data", "forward", "backward", "optimizer")
"""Parts of a training step that the agent detects; users add their own with `run.phase(name)`."""


class Field(msgspec.Struct, frozen=True):
    name: str
    kind: ColumnKind
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
        "maximum allocated within the step, by the allocator; on a host: by readings",
    ),
    Field(
        "reserved_bytes",
        "int",
        "obtained from the driver by the caching allocator; on a host: private writable mappings",
    ),
    Field("peak_reserved_bytes", "int", "maximum reserved within the step"),
    Field("active_bytes", "int", "allocated, or freed by Python but still waiting for a stream"),
    Field("requested_bytes", "int", "requested by callers, before the allocator's rounding"),
    Field(
        "inactive_split_bytes",
        "int",
        "free pieces of split blocks, which cannot be returned: fragmentation",
    ),
    Field(
        "alloc_retries_total",
        "int",
        "times the allocator flushed its cache to retry, since the process started",
    ),
    Field("ooms_total", "int", "out-of-memory errors of the allocator since the process started"),
    Field("segments", "int", "pieces of device memory that the caching allocator holds"),
    Field(
        "device_allocs_total", "int", "cudaMalloc calls of the allocator since the process started"
    ),
    Field("device_frees_total", "int", "cudaFree calls of the allocator since the process started"),
    Field(
        "pinned_bytes", "int", "page-locked host memory of torch's host allocator, for all devices"
    ),
    Field(
        "device_used_bytes",
        "int",
        "used on the device by all processes (NVML); on a host: by the process tree",
    ),
    Field("limit_bytes", "int", "maximum that the process can use of this device"),
    Field(
        "host_rss_bytes",
        "int",
        "resident memory of the process tree with data-loader workers; shared pages count once",
    ),
    Field(
        "process_device_bytes",
        "int",
        "held on the device by this process with its CUDA context (NVML); null if not listed",
    ),
    Field(
        "other_processes_bytes", "int", "component: held on the device by other processes (NVML)"
    ),
    Field("utilization_ratio", "float", "share of time that the device was busy (NVML), 0 to 1"),
    Field("power_w", "float", "power drawn by the device, watts"),
    Field("energy_j", "float", "drawn by the device since the run was attached, joules (NVML)"),
    Field("temperature_c", "float", "temperature of the device, degrees Celsius"),
    Field(
        "host_pss_bytes",
        "int",
        "memory of the process tree, shared pages split among processes; read twice a minute",
    ),
    Field("host_locked_bytes", "int", "memory of this process that cannot be swapped"),
    Field(
        "shm_used_bytes",
        "int",
        "used in /dev/shm by all processes; data-loader workers pass batches through it",
    ),
    Field("shm_limit_bytes", "int", "size of /dev/shm"),
    Field(
        "memory_pressure_ratio",
        "float",
        "share of the last ten seconds in which a task waited for memory (PSI), 0 to 1",
    ),
    Field(
        "cgroup_used_bytes",
        "int",
        "charged to the cgroup with the lowest limit, without reclaimable file pages",
    ),
    Field(
        "cgroup_oom_kills_total",
        "int",
        "processes of the cgroup that the kernel's OOM killer ended",
    ),
    Field(
        "input_size", "int", "elements in the tensors passed to the model's forward during the step"
    ),
    Field("parameters_bytes", "int", "component: parameters"),
    Field("gradients_bytes", "int", "component: gradients"),
    Field("optimizer_state_bytes", "int", "component: optimizer state"),
    Field("buffers_bytes", "int", "component: buffers of the modules"),
    Field(
        "activations_bytes",
        "int",
        "component: peak within the step minus the bytes held at its start",
    ),
    Field(
        "context_bytes",
        "int",
        "component: held apart from tensors (CUDA context; on a host: interpreter and libraries)",
    ),
    Field("phase_data_peak_bytes", "int", "maximum allocated while waiting for and preparing data"),
    Field("phase_forward_peak_bytes", "int", "maximum allocated in forward"),
    Field("phase_backward_peak_bytes", "int", "maximum allocated in backward"),
    Field("phase_optimizer_peak_bytes", "int", "maximum allocated in the optimizer's step"),
)

BY_NAME = {field.name: field for field in FIELDS}

SCALARS_STREAM = "scalars"
"""Stream of a rank's `run.log` values: `step`, `time_s` and one float column per name."""

COLUMN_NAME = re.compile(r"[A-Za-z_][\w./@ -]{0,127}")
"""Valid column names; user scalars such as `train/loss` are columns, too."""


def kind_of(name: str) -> ColumnKind:
    """Return a column's kind. An unknown column's suffix decides: the agent may be newer."""
    field = BY_NAME.get(name)
    if field is not None:
        return field.kind
    return "int" if name.endswith(("_bytes", "_total")) else "float"


def scalar_kind_of(name: str) -> ColumnKind:
    """Return the kind of a scalar. Users log floats, even under a name like `cache_bytes`."""
    return "int" if name == "step" else "float"
