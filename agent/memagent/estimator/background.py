"""The run's prediction: the least that it needs at once, the trace's estimate when it is finished.

1. The first inputs of the model start it, on the training thread. If possible, the process forks
   right there. The child has the model, the optimizer and the inputs as they are, and the autograd
   engine has not run yet, which a fork requires (`trace.isolation`). The child imports what only it
   needs: in this process imports would delay the first steps.
2. A background thread delivers the lower bound, waits for the child, and delivers the trace's
   estimate. If memory is tight it waits again, for advice. The child traces in its own children.
   Everything is bounded in time, has the lowest priority, and ends with the run.
3. Several models or optimizers at once, and sharded models (their hooks hold the shards), are not
   traced. Neither are processes too large to fork without a pause, nor on hosts that are nearly
   full. The lower bound then has the reason.
4. Under transformers' Trainer the step is traced as its loop runs it (`calling_loop`).
5. A job of many ranks is traced on the first one: a fork next to its communicators is what every
   DataLoader worker is, and the child never uses the network.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import pickle
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from memagent.components import parameters_of
from memagent.diagnostics import ErrorGuard
from memagent.errors import EstimateError, TraceError
from memagent.estimator.trace.isolation import ForkedProcess, can_fork
from memagent.hooks.phase import tensor_shapes
from memagent.probe import Probe, torch_device_name
from memagent.probe.detached import forks_wait

if TYPE_CHECKING:
    from memagent.estimator.calling_loop import CallingLoop
    from memagent.estimator.devices import ContextSize
    from memagent.estimator.estimate import Estimate
    from memagent.estimator.input_specs import TensorSpec
    from memagent.estimator.request import TraceRequest

TRACE_TIMEOUT_S = 120.0
ADVICE_TIMEOUT_S = 120.0
"""Time for advice after the estimate, which is delivered without advice otherwise."""
MAX_ADVICE_TRACES = 5
"""Each takes as long as the first trace."""
TIGHT_RATIO = 0.7
"""Ratio of the limit from which on advice is traced: one trace for each change."""
_MAX_FORKED_BYTES = 16 * 2**30
"""Resident memory up to which a fork, which copies the page tables, takes a few tens of ms."""
_MIN_HOST_HEADROOM_BYTES = 2 * 2**30
_JOIN_TIMEOUT_S = 2.0
_AUTOCAST: dict[str, Literal["bf16", "fp16"]] = {"torch.bfloat16": "bf16", "torch.float16": "fp16"}
_SHARDED_CLASSES = ("DTensor", "FlatParameter")
"""Classes of parameters of which a rank holds a part: FSDP2 and tensor parallel, FSDP1."""


class BackgroundEstimator:
    """Estimates the training step of a run without delaying it.

    `deliver` gets each estimate on the background thread. `probe` is the probe of the training
    device, `host` that of the host.
    """

    def __init__(
        self,
        probe: Probe,
        host: Probe,
        guard: ErrorGuard,
        deliver: Callable[[Estimate], None],
        *,
        traces: bool,
    ) -> None:
        self._probe = probe
        self._host = host
        self._guard = guard
        self._deliver = deliver
        self._traces = traces
        self._has_started = False
        self._is_closed = False
        self._is_over = False
        self._tracing: ForkedProcess | None = None
        self._thread: threading.Thread | None = None
        self.newest: Estimate | None = None

    def start(
        self,
        models: list[Any],
        optimizers: list[Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> None:
        """Start with the first call; later calls do nothing.

        The model is about to be called with these inputs, or steps ran without any.
        """
        if self._has_started or self._is_closed:
            return
        self._has_started = True
        refusal = self._refusal(models, optimizers, bool(arguments or keywords))
        if refusal is None:
            try:
                request = self._request_builder(models[0], optimizers[0], arguments, keywords)
                self._tracing = ForkedProcess(lambda: _run_child(request))
            except OSError as error:
                refusal = f"the system refused a fork ({error.strerror})"
        shapes = tensor_shapes(arguments, keywords) or None
        self._thread = threading.Thread(
            target=self._run,
            # weak: what the script drops must not live on, nor its references be counted
            args=(_references(models), _references(optimizers), shapes, refusal),
            name="memagent-predict",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Stop the trace. A run shorter than that takes has the lower bound still."""
        self._is_closed = True
        if self._tracing is not None:
            self._tracing.cancel()
        if self._thread is not None:
            self._thread.join(_JOIN_TIMEOUT_S)
        self._is_over = True

    def abandon(self) -> None:
        """Forget the thread and the tracing child, in a forked child: both are the parent's."""
        self._is_closed = self._is_over = True
        if self._tracing is not None:
            self._tracing.end()  # closes this process's copies of the pipes
        self._tracing = None
        self._thread = None

    def _run(
        self,
        models: list[weakref.ref[Any]],
        optimizers: list[weakref.ref[Any]],
        shapes: tuple[TensorSpec, ...] | None,
        refusal: str | None,
    ) -> None:
        with forks_wait():
            from memagent.estimator.formula.lower_bound import least_needs

        # A script that counts references must not meet those of the prediction: the end of this
        # thread's turn, of which a small model's needs a part, lets it run.
        time.sleep(0)
        with self._guard.section("prediction"):
            if len(_alive(models)) < len(models):
                return
            bound = least_needs(
                _alive(models),
                _alive(optimizers),
                device=torch_device_name(self._probe.device),
                inputs=shapes,
                limit_bytes=self._probe.limit_bytes,
                device_kind=self._probe.device.kind,
                context=self._context(self._capability()),
            )
            self._publish(_with_reason(bound, refusal))
            if (tracing := self._tracing) is not None:
                for estimate in self._results(tracing, bound):
                    if not self._is_closed:
                        self._publish(estimate)

    def _results(self, tracing: ForkedProcess, bound: Estimate) -> Iterator[Estimate]:
        """Yield what the child sends: the traced estimate, then the same with advice, if any."""
        result, advised = tracing.receive(timeout_s=TRACE_TIMEOUT_S), None
        if result:
            yield _load_result(result, bound)
            advised = tracing.receive(timeout_s=ADVICE_TIMEOUT_S)
        exit_code = tracing.end()
        self._tracing = None
        if advised:
            yield _load_result(advised, bound)
        elif result is None:
            yield _with_reason(bound, f"no result after {TRACE_TIMEOUT_S:g} s")
        elif not result:
            yield _with_reason(bound, f"its process died ({exit_code})")

    def _publish(self, estimate: Estimate) -> None:
        if not self._is_over:
            self.newest = estimate
            self._deliver(estimate)

    def _refusal(
        self, models: Sequence[Any], optimizers: Sequence[Any], has_inputs: bool
    ) -> str | None:
        """Return why the step is not traced, or None."""
        if not self._traces or not has_inputs:
            return "the inputs are not known" if self._traces else "not enabled on this rank"
        if len(models) != 1 or len(optimizers) != 1:
            return "several models or optimizers"
        if not can_fork() or self._probe.device.kind not in ("cuda", "host"):
            return "not supported on this system"
        if any(type(p).__name__ in _SHARDED_CLASSES for p in parameters_of(models, ())):
            return "its parameters are sharded: pass memagent.estimate a callable that builds it"
        used, limit = self._host.used_bytes(), self._host.limit_bytes
        # other limits are per process
        is_shared = self._host.device.limit_source in ("cgroup", "physical memory")
        is_full = is_shared and limit is not None and limit - used < _MIN_HOST_HEADROOM_BYTES
        if used > _MAX_FORKED_BYTES or is_full:
            return "the process is too large, or the host too full, to trace during training"
        return None

    def _request_builder(
        self, model: Any, optimizer: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Callable[[], TraceRequest]:
        """Return the function that makes the request, in the child."""
        device = "cuda" if self._probe.device.kind == "cuda" else "cpu"
        inputs: Any = keywords or arguments
        if keywords and arguments:
            signature = inspect.signature(model.forward)
            inputs = dict(signature.bind_partial(*arguments, **keywords).arguments)
        autocast, calling = _current_autocast(device), _calling_loop()
        capability = self._capability()  # CUDA refuses this call in a child

        def build() -> TraceRequest:
            from memagent.estimator.request import TraceRequest

            context = self._context(capability)
            return TraceRequest(
                model=lambda: _without_compile(model),
                inputs=inputs,
                optimizer=optimizer,
                autocast=autocast,
                accumulation=calling.accumulation,
                loop=calling.loop,
                device=device,
                allocator=os.environ.get("PYTORCH_ALLOC_CONF")
                or os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
                limit_bytes=self._probe.limit_bytes,
                workspace_bytes=_workspace_bytes(capability),
                context_bytes=context.size_bytes,
                context_interval=context.interval,
            )

        return build

    def _context(self, capability: tuple[int, int] | None) -> ContextSize:
        """Return the context as NVML shows it, or the usual size with its range."""
        from memagent.estimator.devices import ContextSize, context_at_attach

        measured = self._probe.context_bytes
        if self._probe.device.kind == "cuda":
            return context_at_attach(measured or None, capability)
        return ContextSize(measured or 0)

    def _capability(self) -> tuple[int, int] | None:
        """Return the compute capability of a CUDA device, None for the host."""
        if self._probe.device.kind != "cuda":
            return None
        major, minor = sys.modules["torch"].cuda.get_device_capability(self._probe.device.index)
        return major, minor


def _calling_loop() -> CallingLoop:
    from memagent.estimator.calling_loop import calling_loop

    return calling_loop()


def _workspace_bytes(capability: tuple[int, int] | None) -> int:
    from memagent.estimator.devices import CUBLAS_HANDLES, cublas_workspace_bytes

    if capability is None:
        return 0
    setting = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    return CUBLAS_HANDLES * cublas_workspace_bytes(capability, setting)


def _run_child(build_request: Callable[[], TraceRequest]) -> Iterator[bytes]:
    """Trace in the child: yield a pickled Estimate, or a text with the reason why there is none.

    If memory is tight, yield the Estimate with advice too.
    """
    from memagent.estimator import engine
    from memagent.estimator.advice.by_trace import advise

    try:
        request = build_request()
        _clear_autocast()
        trace = engine.record(request)
        estimate = engine.estimate_trace(request, trace)
    except (TraceError, EstimateError) as error:
        operator = getattr(error, "op", "")
        yield pickle.dumps(f"{error}" + (f" (at {operator})" if operator else ""))
        return
    yield pickle.dumps(estimate)
    limit = estimate.limit_bytes
    if limit is not None and estimate.needed_bytes > TIGHT_RATIO * limit:
        advice = advise(request, estimate, trace, max_new_traces=MAX_ADVICE_TRACES)
        yield pickle.dumps(replace(estimate, advice=advice))


def _references(objects: Iterable[Any]) -> list[weakref.ref[Any]]:
    return [weakref.ref(item) for item in objects]


def _alive(references: Iterable[weakref.ref[Any]]) -> list[Any]:
    return [item for reference in references if (item := reference()) is not None]


def _load_result(result: bytes, bound: Estimate) -> Estimate:
    """Return the child's estimate, or the bound with the child's reason."""
    # the child is a fork of this process, so its pickle is trusted
    loaded: Estimate | str = pickle.loads(result)  # noqa: S301  # nosec B301
    if isinstance(loaded, str):
        return _with_reason(bound, loaded)
    inputs = {key: bound.assumptions[key] for key in ("inputs",) if key in bound.assumptions}
    return replace(loaded, assumptions={**loaded.assumptions, **inputs})


def _with_reason(bound: Estimate, reason: str | None) -> Estimate:
    if reason is None:
        return bound
    return replace(bound, assumptions={**bound.assumptions, "trace": f"not traced: {reason}"})


def _current_autocast(device: str) -> Literal["bf16", "fp16"] | None:
    """Return the autocast that the script calls its model under, on this thread."""
    torch = sys.modules["torch"]
    try:
        is_enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    except TypeError:  # before torch 2.4 these functions knew only the GPU
        is_enabled, dtype = torch.is_autocast_enabled(), torch.get_autocast_gpu_dtype()
        is_enabled = is_enabled and device == "cuda"
    return _AUTOCAST.get(str(dtype)) if is_enabled else None


def _clear_autocast() -> None:
    """Leave the parent's autocast in the child: the request has its own.

    Otherwise it would also apply to backward and to the optimizer's step, where its cached copies
    of the weights would never be freed.
    """
    torch = sys.modules["torch"]
    for device in ("cuda", "cpu"):
        with contextlib.suppress(TypeError):  # before torch 2.4
            torch.set_autocast_enabled(device, False)
    # Only the end of the outermost autocast clears the cache, so the nesting must be 0 here.
    torch.autocast_increment_nesting()
    while torch.autocast_decrement_nesting() > 0:
        pass
    torch.clear_autocast_cache()


def _without_compile(model: Any) -> Any:
    """Return the model without torch.compile, in the child."""
    model = getattr(model, "_orig_mod", model)
    if getattr(model, "_compiled_call_impl", None) is not None:
        model._compiled_call_impl = None
    return model
