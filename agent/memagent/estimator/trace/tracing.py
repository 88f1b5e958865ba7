"""`record_trace`: run a training step of the user's objects on fake tensors, in a child process."""

from __future__ import annotations

import contextlib
import io
import marshal
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from memagent.errors import EstimateError, OptionError, TraceError
from memagent.estimator.trace.events import MemoryEvent, Trace
from memagent.estimator.trace.isolation import ForkedProcess, can_fork
from memagent.estimator.trace.session import CPU, CUDA, CUDA_ON_CPU, TraceJob, run_trace_in_process

if TYPE_CHECKING:
    import torch

TIMEOUT_S = 60.0
LIMIT_GROWTH_BYTES = 4 << 30
"""Far above the trace of a 70B model. The limit stops factories that insist on real values."""
_ENGINE_REFUSES = "autograd's threading"
"""Part of the engine's message in a fork of a process that has run backward on a GPU."""
_EVENT_FIELDS = tuple(field.name for field in fields(MemoryEvent))


class TimeoutSpentError(TraceError):
    """The trace has taken its processor time."""


class ChildDiedError(TraceError):
    """The child ended without a result: killed by a signal, or aborted."""


def record_trace(
    model: Any,
    inputs: Any,
    *,
    targets: Any = None,
    optimizer: Any = "adamw",
    loss: Callable[..., Any] | None = None,
    autocast: str | None = None,
    scaler: bool = False,
    device: str = "cuda",
    steps: int = 2,
    accumulate: int = 1,
    clip_norm: float | None = None,
    keep_output: bool = True,
    carry_output: bool = False,
    widen_output: bool = False,
    set_to_none: bool = True,
    timeout_s: float = TIMEOUT_S,
    limit_growth_bytes: int | None = LIMIT_GROWTH_BYTES,
) -> Trace:
    """Run `steps` training steps on fake tensors and return every allocation and release in order.

    - `model`: a module (on any device), a callable that builds one, or "path.py:factory".
    - `inputs`: the model's arguments as a tensor, a tuple or a dict. Tensors may be real or fake,
      or replaced by `(shape, dtype name)`.
    - `optimizer`: an optimizer of the model, a name in `torch.optim`, a callable that takes the
      parameters, or None.
    - `loss`: called with output and targets, or with output and inputs if there are no targets. The
      default is the model's own loss.
    - `autocast`: None, "bf16" or "fp16".
    - `device`: "cuda" (CUDA's rules, no GPU needed) or "cpu".

    Raises TraceError, with the operator's name in `op`, for a step that can't be traced, takes
    more than `timeout_s` seconds of processor time, or makes the tracing process grow by more than
    `limit_growth_bytes`; OptionError for inputs that the model doesn't take. The calling process
    doesn't change: neither its random state, nor the model, nor a device.
    """
    if device not in ("cuda", "cpu"):
        raise TraceError(f"can't trace for device {device!r}: use cuda or cpu")
    if steps < 1 or accumulate < 1:
        raise TraceError("steps and accumulate must be at least 1")
    job = TraceJob(
        model,
        inputs,
        targets,
        optimizer,
        CUDA if device == "cuda" else CPU,
        {
            "loss": loss,
            "autocast": autocast,
            "scaler": scaler,
            "accumulate": accumulate,
            "keep_output": keep_output,
            "carry_output": carry_output,
            "widen_output": widen_output,
            "set_to_none": set_to_none,
            "clip_norm": clip_norm,
            "steps": steps,
        },
        limit_growth_bytes,
    )
    run = trace_in_fork if can_fork() else trace_in_interpreter
    try:
        return run(job, timeout_s=timeout_s)
    except TraceError as error:
        if _ENGINE_REFUSES in str(error) and run is trace_in_fork:
            return trace_in_interpreter(job, timeout_s=timeout_s)
        # Other rules may help if the process died, or fake cuda could not be set up.
        may_be_rules = isinstance(error, ChildDiedError) or "fake cuda" in str(error)
        if job.device_rules != CUDA or not may_be_rules:
            raise
        try:
            return run(replace(job, device_rules=CUDA_ON_CPU), timeout_s=timeout_s)
        except TraceError:
            raise error from None  # the first failure is the more informative one


def trace_in_fork(job: TraceJob, *, timeout_s: float) -> Trace:
    """Run the job in a forked child. Raises TraceError, including ChildDiedError."""
    child = ForkedProcess(lambda: [_run_and_encode(job)])
    try:
        result = child.receive(timeout_s=timeout_s, limit_growth_bytes=job.limit_growth_bytes)
    finally:
        exit_code = child.end()
    return _decode(result, timeout_s, exit_code)


def trace_in_interpreter(job: TraceJob, *, timeout_s: float) -> Trace:
    """Run the job in a new interpreter, if it can be pickled."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        # the new interpreter must not open a CUDA context
        "CUDA_VISIBLE_DEVICES": "",
    }
    code = "from memagent.estimator.trace.tracing import run_interpreter; run_interpreter()"
    body = _pickle_job(job)
    with subprocess.Popen(  # noqa: S603  # this interpreter
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    ) as child:
        try:
            result = child.communicate(body, timeout=timeout_s)[0]
        except subprocess.TimeoutExpired:
            child.kill()
            result = None
        exit_code = child.wait()
    return _decode(result, timeout_s, exit_code)


def run_interpreter() -> None:
    """Read a job from stdin and write the result to stdout: the new interpreter's main."""
    output = os.dup(1)
    os.dup2(2, 1)  # keeps what user code prints out of the result
    job = pickle.loads(sys.stdin.buffer.read())  # noqa: S301  # from our parent  # nosec B301
    with os.fdopen(output, "wb") as file:
        file.write(_run_and_encode(job))
    # no destructors: they may abort on the patched torch, after the result is complete
    os._exit(0)


def _run_and_encode(job: TraceJob) -> bytes:
    """Run a job; encode ("trace", fields, rows), ("error", text, op) or ("option", name, text)."""
    try:
        trace = run_trace_in_process(job)
        head = {
            field.name: getattr(trace, field.name)
            for field in fields(Trace)
            if field.name != "events"
        }
        # marshal knows plain values only, and is faster than pickle for them
        rows = [tuple(getattr(event, name) for name in _EVENT_FIELDS) for event in trace.events]
        return marshal.dumps(("trace", head, rows))
    except TraceError as error:
        return marshal.dumps(("error", str(error), error.op))
    except OptionError as error:
        return marshal.dumps(("option", error.option, error.problem))
    except EstimateError as error:
        # a library that is missing, for one: the message says it all
        return marshal.dumps(("error", str(error), ""))
    except BaseException as error:  # noqa: BLE001  # user code may raise anything, even SystemExit
        return marshal.dumps(("error", f"{type(error).__name__}: {error}"[:1000], ""))


def _decode(result: bytes | None, timeout_s: float, exit_code: int) -> Trace:
    if result is None:
        raise TimeoutSpentError(
            f"the trace was aborted: it was not done after {timeout_s:g} s of "
            "processor time; --timeout or timeout_s allows more"
        )
    if not result:
        reason = f"exit code {exit_code}"
        if exit_code < 0:
            with contextlib.suppress(ValueError):
                reason = signal.Signals(-exit_code).name
        raise ChildDiedError(f"torch ended the tracing process ({reason})")
    kind, head, rows = marshal.loads(result)  # noqa: S302  # from our child  # nosec B302
    if kind == "error":
        raise TraceError(head, op=rows)
    if kind == "option":
        raise OptionError(head, rows)
    return Trace(events=tuple(MemoryEvent(*row) for row in rows), **head)


class _JobPickler(pickle.Pickler):
    """Pickles classes and functions by name, and tensors by shape only."""

    def reducer_override(self, item: Any) -> Any:
        import torch

        if type(item) not in (torch.Tensor, torch.nn.Parameter):
            return NotImplemented
        storage = item.untyped_storage()
        return _meta_tensor, (
            (storage._cdata, item.dtype),
            storage.nbytes(),
            tuple(item.shape),
            item.stride(),
            item.storage_offset(),
            item.requires_grad,
            isinstance(item, torch.nn.Parameter),
        )


def _pickle_job(job: TraceJob) -> bytes:
    """Pickle a job without values. Raises TraceError for objects without an importable name."""
    file = io.BytesIO()
    try:
        _JobPickler(file).dump(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TraceError(
            f"the model can't be sent to another process ({error}): name it as path.py:factory"
        ) from error
    # pickle stores the module's name as text: one search covers every object
    if b"__main__" in file.getvalue():
        raise TraceError(
            "the model is defined in __main__, which another process can't import: "
            "name it as path.py:factory"
        )
    return file.getvalue()


_storages: dict[tuple[int, torch.dtype], torch.Tensor] = {}
"""Unpickled storages, so that tensors share one if the originals did."""


def _meta_tensor(
    storage: tuple[int, torch.dtype],
    size_bytes: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    requires_grad: bool,
    is_parameter: bool,
) -> torch.Tensor:
    """Unpickle a tensor, on the meta device."""
    import torch

    if storage not in _storages:
        dtype = storage[1]
        _storages[storage] = torch.empty(size_bytes // dtype.itemsize, dtype=dtype, device="meta")
    tensor = _storages[storage].as_strided(shape, stride, offset)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)
