"""Messages between agent and server as msgspec types, which validate input and name invalid fields.

Unknown fields are ignored, so a newer agent can talk to an older server. `docs/wire.md` documents
every field, which a test checks. Times are seconds since the Unix epoch on the sender's clock,
sizes are bytes.
"""

from __future__ import annotations

from math import inf
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from memagent.forecast.predecessor import Predecessor
from memagent.forecast.types import Level

Identifier = Annotated[
    str,
    Meta(
        # For Python, `$` also matches before a line break at the end.
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$(?!\n)",
        description="1 to 64 of A-Z a-z 0-9 . _ -, not starting with a sign",
    ),
]
Label = Annotated[str, Meta(min_length=1, max_length=200)]
Text = Annotated[str, Meta(max_length=20_000)]
SourceText = Annotated[str, Meta(max_length=1_000)]
Count = Annotated[int, Meta(ge=0, lt=2**53)]
"""Below the limit of integers that JSON readers, browsers and Prometheus represent exactly."""
Rank = Annotated[int, Meta(ge=0, lt=2**31)]
Attempt = Annotated[
    int,
    Meta(
        ge=0,
        lt=2**53,
        description="distinguishes launches of one run; the agent sends its start time in ms",
    ),
]
Time = Annotated[float, Meta(ge=0, lt=1e12)]
Bytes = Annotated[int, Meta(ge=0, lt=2**62, description="bytes")]
BytesPerStep = Annotated[float, Meta(ge=-(2.0**62), le=2.0**62)]

VIEWER_BYTES = 4 * 2**20
"""Maximum size of a snapshot's page for torch's viewer, compressed."""

BATCH_EVERY_S = 1.0
MAX_BATCH_EVERY_S = 30.0
"""An agent sends rows after 1 s, or later if a busy server requests it."""

KILLING_LIMITS = ("cgroup", "physical memory")
"""Host limits at which the kernel kills the process."""
FinalStatus = Literal["completed", "stopped", "failed", "oom"]
DiagnosisMethod = Literal["census", "history", "host"]
"""Counting tensors; call stacks of the CUDA allocator; call stacks of Python's own allocations."""
DeviceKind = Literal["cuda", "mps", "xpu", "host"]


SCRIPT_ALERT = "alert"
"""Kind of the event that `run.alert` emits."""
AlertLevel = Literal["note", "warning", "critical"]
COMMAND = "command"
"""Kind of the event that records a person's request."""
COMMAND_REPLY = "command_reply"
"""Kind of the event by which an agent answers one."""
SCRIPT_COMMANDS = ("stop", "checkpoint")
"""Kinds of commands that go to the script's `on_command`."""
COMMAND_STATES = ("delivered", "done", "failed")
ConsoleStream = Literal["stdout", "stderr"]
MAX_CONSOLE_LINE = 2_000
MAX_CONSOLE_LINES = 2_048
"""Lines of a batch; those of a whole console are fewer."""
MAX_ALERT_TITLE = 200
MAX_ALERT_TEXT = 4_000

FRACTION_LIMIT = "per-process fraction"
"""`limit_source` of a limit of the process's own allocator, beside which others use the device."""


class Device(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A rank's training device, or the host. `id`: the GPU's UUID, or `host`; the stream's name."""

    id: Label
    kind: DeviceKind
    name: Label
    index: Rank = 0
    total_bytes: Bytes | None = None
    limit_bytes: Bytes | None = None
    limit_source: Annotated[str, Meta(max_length=200)] | None = None

    @property
    def shared_bytes(self) -> float | None:
        """Return the memory that other processes can use, too; None if that is the limit."""
        is_own = self.limit_source == FRACTION_LIMIT
        return self.total_bytes or inf if is_own else None


class RunStart(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`POST /api/v1/runs`: registers one rank of one launch.

    Idempotent. Rank 0 decides name, config and tags.
    """

    run_id: Identifier
    project: Label = "default"
    name: Label | None = None
    user: Label | None = None
    host: Label | None = None
    rank: Rank = 0
    world_size: Annotated[int, Meta(ge=1, lt=2**31)] = 1
    attempt: Attempt = 0
    started_at: Time | None = None
    total_steps: Count | None = None
    config: dict[str, Any] = {}
    tags: Annotated[list[Label], Meta(max_length=100)] = []
    environment: dict[str, Any] = {}
    fingerprint: Identifier | None = None
    devices: Annotated[list[Device], Meta(max_length=64)] = []


class StartReply(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The server's answer to a start."""

    run_id: Identifier
    next_seq: int = 0
    predecessor: Predecessor | None = None


class Chunk(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Consecutive samples of one stream: a device's id, or `scalars`.

    Exactly one of `packed` and `columns` is set.
    """

    stream: Label
    packed: bytes | None = None
    columns: dict[str, list[int | float | None]] | None = None


class Event(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A single event such as `oom` or `phase`. `data` is any small JSON object."""

    kind: Identifier
    step: Count = 0
    time_s: Time = 0.0
    data: dict[str, Any] = {}


class ConsoleLine(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A line that a rank has printed; it replaces an earlier one with its number.

    Numbers increase from 0. A progress bar is one line, and one that is left out is a gap.
    """

    number: Count
    text: Annotated[str, Meta(max_length=MAX_CONSOLE_LINE)] = ""
    stream: ConsoleStream = "stdout"
    step: Count = 0
    time_s: Time = 0.0


class Batch(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`POST /api/v1/runs/{id}/batches`: samples and events of one rank since its last batch.

    Idempotent by (rank, attempt, seq). `dropped_samples` is cumulative, by reason.
    """

    rank: Rank = 0
    attempt: Attempt = 0
    seq: Count
    chunks: Annotated[list[Chunk], Meta(max_length=256)] = []
    events: Annotated[list[Event], Meta(max_length=1_000)] = []
    console: Annotated[list[ConsoleLine], Meta(max_length=MAX_CONSOLE_LINES)] = []
    dropped_samples: dict[str, Count] = {}


class Risk(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A forecast on the wire. Steps are the run's own; seconds count from the forecast.

    suspects: what a leak diagnosis has found, the most likely first; only the agent fills it in.
    """

    level: Level
    rank: Rank = 0
    device: Label = "host"
    step: Count = 0
    oom_probability: Annotated[float, Meta(ge=0, le=1)] = 0.0
    cause: str | None = None
    eta_step: float | None = None
    eta_low: float | None = None
    eta_high: float | None = None
    eta_s: float | None = None
    used_bytes: Bytes | None = None
    limit_bytes: Bytes | None = None
    growth_bytes_per_step: float | None = None
    growing_since_step: Count | None = None
    grown_bytes: Bytes | None = None
    predecessor: Text | None = None
    suspects: tuple[Suspect, ...] = ()

    def __hash__(self) -> int:
        return hash((self.rank, self.device, self.step, self.level))


class Command(msgspec.Struct, kw_only=True, frozen=True):
    """A request of the server in the reply to a batch. Agents ignore unknown kinds.

    Scripts get `stop` and `checkpoint` by `on_command`; `data` has the request's id and `by`.
    """

    kind: Identifier
    data: dict[str, Any] = {}


class BatchReply(msgspec.Struct, kw_only=True, frozen=True):
    """Reply to a batch. `next_seq`: first batch of this rank and attempt that the server lacks.

    `batch_every_s`: how long the agent may collect rows that are no risk.
    """

    accepted: int
    next_seq: int
    risk: Risk | None = None
    commands: list[Command] = []
    batch_every_s: float = BATCH_EVERY_S


class AdviceItem(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A change that would save memory in this run: its saving, its usual cost, and the code."""

    change: Label
    saving_bytes: Annotated[int, Meta(gt=-(2**62), lt=2**62)]
    cost: Text = ""
    code: Text = ""


class PredictionMessage(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """`POST /api/v1/runs/{id}/predictions`: an estimate for one rank and device."""

    method: Literal["formula", "trace", "rehearsal"]
    rank: Rank = 0
    device: Label = "host"
    peak_allocated_bytes: Bytes
    peak_reserved_bytes: Bytes | None = None
    peak_device_bytes: Bytes | None = None
    intervals: dict[str, tuple[Bytes, Bytes]] = {}
    limit_bytes: Bytes | None = None
    components: dict[str, Bytes] = {}
    phases: dict[str, Bytes] = {}
    terms: dict[str, Bytes] = {}
    assumptions: dict[str, Any] = {}
    advice: Annotated[list[AdviceItem], Meta(max_length=50)] = []


class RehearsalMessage(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """`POST /api/v1/rehearsals`: what a script needed on a card that wasn't there.

    It becomes a prediction of runs with the same fingerprint.
    """

    fingerprint: Identifier
    project: Label = "default"
    script: Label
    gpu: Label
    world_size: Annotated[int, Meta(ge=1, lt=2**31)] = 1
    user: Label | None = None
    host: Label | None = None
    fits: bool
    prediction: PredictionMessage


class Suspect(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A line of the script that makes memory grow, and what grows there.

    holder: a readable expression and its type, such as "Trainer.history: list of 412". line: where
    the holder grows; the function's first line, or 0, if that's unknown. bytes_per_step: an
    estimate, None if unknown. confidence: 0 to 1. fix: what to change at that line. source: lines
    around it, secrets masked; source_first_line: the number of the first.
    """

    kind: Identifier
    holder: Text
    file: Text = ""
    line: Count = 0
    function: Label | None = None
    bytes_per_step: BytesPerStep | None = None
    confidence: Annotated[float, Meta(ge=0, le=1)] = 0.0
    fix: Text = ""
    source: Annotated[list[SourceText], Meta(max_length=11)] = []
    source_first_line: Count = 0

    @property
    def location(self) -> str:
        """Return `train.py:42`."""
        return f"{self.file}:{self.line}"

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values, for reports and events."""
        return msgspec.structs.asdict(self)


class Stack(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Live bytes of one call stack. Frames are `function (file:line)`, outermost first."""

    frames: Annotated[list[Text], Meta(max_length=256)]
    size_bytes: Bytes
    blocks: Count = 1


class SnapshotMessage(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """`POST /api/v1/runs/{id}/snapshots`: what holds the memory of one rank and device.

    Includes the suspects of a leak diagnosis. Idempotent by (rank, attempt, seq).
    """

    rank: Rank = 0
    attempt: Attempt = 0
    seq: Count = 0
    device: Label = "host"
    step: Count = 0
    time_s: Time = 0.0
    method: DiagnosisMethod
    why: Text = ""
    suspects: Annotated[list[Suspect], Meta(max_length=50)] = []
    stacks: Annotated[list[Stack], Meta(max_length=20_000)] = []
    tensors: Annotated[list[dict[str, Any]], Meta(max_length=1_000)] = []
    notes: Annotated[list[Text], Meta(max_length=50)] = []
    viewer: Annotated[bytes, Meta(max_length=VIEWER_BYTES)] = b""


class Finish(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`POST /api/v1/runs/{id}/finish`: how one rank ended.

    `error` is the exception's type and message, without a traceback.
    """

    status: FinalStatus
    rank: Rank = 0
    attempt: Attempt = 0
    step: Count = 0
    finished_at: Time | None = None
    error: Text | None = None
