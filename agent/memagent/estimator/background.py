"""What the run is predicted to need: the formula's answer at once, the trace's when it is done.

1. The first inputs of the model begin it, on the training thread. Where it can, the process forks there and then: the child has the model,
   the optimizer and the inputs as they are, and the autograd engine has not run yet, which a fork needs (`trace.isolation`).
2. A thread of ours tells the formula's answer, waits for the child, and tells the trace's; where memory is short it waits again, for what
   would save some. The child traces in children of its own. All of it is bounded in time, has the lowest priority, and ends with the run.
3. Not traced are several models or optimizers at once, sharded models (their hooks hold the shards), processes too large to fork without
   a pause, and hosts that are nearly full. The formula's answer then stands and says why. A job of many ranks is traced on the first: a
   fork beside its communicators is what every DataLoader's worker is, and the child never speaks on the network.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from memagent.diagnostics.error_guard import ErrorGuard
from memagent.errors import EstimateError, TraceError
from memagent.estimator.advice.by_trace import advise
from memagent.estimator.devices import HANDLES, Context, context_of, cublas_workspace_bytes
from memagent.estimator.estimate import Estimate
from memagent.estimator.formula.from_model import predict
from memagent.estimator.request import EstimateRequest
from memagent.estimator.trace.isolation import ForkedProcess, can_fork
from memagent.hooks.phase import tensor_shapes
from memagent.probe import Probe

TIMEOUT_S = 120.0
ADVICE_TIMEOUT_S = 120.0
"""After the estimate, which stands without advice where that takes longer."""
MOST_TRACES = 5
"""Of changes that would save memory; each takes as long as the first."""
TIGHT = 0.7
"""Of the limit, from which on it is worth trying what would save memory: a trace for each change."""
_FORKABLE_BYTES = 16 * 2**30
"""Resident memory up to which a fork, which copies the page tables, takes some tens of milliseconds at most."""
_HOST_HEADROOM_BYTES = 2 * 2**30
_AUTOCAST: dict[str, Literal["bf16", "fp16"]] = {"torch.bfloat16": "bf16", "torch.float16": "fp16"}
_SHARDS = ("DTensor", "FlatParameter")
"""Classes of parameters of which a rank holds a part: FSDP2 and tensor parallel, FSDP1."""


class BackgroundEstimator:
    """`deliver` gets each estimate, on a thread of ours. `probe` is the device trained on, `host` the host's."""

    def __init__(
        self,
        probe: Probe,
        host: Probe,
        guard: ErrorGuard,
        deliver: Callable[[Estimate], None],
        *,
        traces: bool,
    ) -> None:
        self._probe, self._host, self._guard, self._deliver, self._traces = (
            probe,
            host,
            guard,
            deliver,
            traces,
        )
        self._has_begun = self._is_over = False
        self._tracing: ForkedProcess | None = None
        self._thread: threading.Thread | None = None
        self.newest: Estimate | None = None

    def begin(
        self,
        models: list[Any],
        optimizers: list[Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> None:
        """The first call counts: the model is about to be called with these inputs, or steps went by and none were seen. The lists
        become ours."""
        if self._has_begun or self._is_over:
            return
        self._has_begun = True
        refusal = self._refusal(models, optimizers, bool(arguments or keywords))
        if refusal is None:
            try:
                question = self._question(models[0], optimizers[0], arguments, keywords)
                self._tracing = ForkedProcess(lambda: _answers(question))
            except OSError as error:
                refusal = f"the system refused a fork ({error.strerror})"
        shapes = tensor_shapes(arguments, keywords) or None
        self._thread = threading.Thread(
            target=self._run,
            args=(models, optimizers, shapes, refusal),
            name="memagent-predict",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Stop what is under way."""
        self._is_over = True
        if self._tracing is not None:
            self._tracing.cancel()
        if self._thread is not None:
            self._thread.join(2.0)

    def abandon(self) -> None:
        """In a forked child: the thread is not here, and the tracing child is the parent's."""
        self._is_over, self._tracing, self._thread = True, None, None

    def _run(
        self, models: list[Any], optimizers: list[Any], shapes: Any, refusal: str | None
    ) -> None:
        with self._guard.section("prediction"):
            device = self._probe.device
            formula = predict(
                models,
                optimizers,
                inputs=shapes,
                limit_bytes=self._probe.limit_bytes,
                device_kind=device.kind,
                context_bytes=self._context().size_bytes,
            )
            models.clear()  # what the script lets go of must not wait for the trace
            optimizers.clear()
            self._tell(_with_note(formula, refusal))
            if (tracing := self._tracing) is not None:
                self._follow(tracing, formula)

    def _follow(self, tracing: ForkedProcess, formula: Estimate) -> None:
        """Tell what the child sends: the traced estimate, then, where it tries what would save memory, the same with its advice."""
        answer, advised = tracing.receive(timeout_s=TIMEOUT_S), None
        if answer:
            self._tell(_found(answer, formula))
            advised = tracing.receive(timeout_s=ADVICE_TIMEOUT_S)
        exit_code = tracing.end()
        self._tracing = None
        if advised:
            self._tell(_found(advised, formula))
        elif not answer:
            reason = (
                f"it was not done after {TIMEOUT_S:g} s"
                if answer is None
                else f"it died ({exit_code})"
            )
            self._tell(_with_note(formula, reason))

    def _tell(self, estimate: Estimate) -> None:
        if not self._is_over:
            self.newest = estimate
            self._deliver(estimate)

    def _refusal(
        self, models: Sequence[Any], optimizers: Sequence[Any], has_inputs: bool
    ) -> str | None:
        """Why the step is not traced, or None."""
        if not self._traces or not has_inputs:
            return "no input was seen" if self._traces else "not asked for on this rank"
        if len(models) != 1 or len(optimizers) != 1:
            return "several models or optimizers"
        if not can_fork() or self._probe.device.kind not in ("cuda", "host"):
            return "not possible on this system"
        if any(type(parameter).__name__ in _SHARDS for parameter in models[0].parameters()):
            return "its parameters are sharded: give memagent.estimate a callable that builds the model"
        used, limit = self._host.used_bytes(), self._host.limit_bytes
        is_shared = self._host.device.limit_source in (
            "cgroup",
            "physical memory",
        )  # other limits are each process's own
        if used > _FORKABLE_BYTES or (
            is_shared and limit is not None and limit - used < _HOST_HEADROOM_BYTES
        ):
            return "the process is too large, or the host too full, to trace it beside the training"
        return None

    def _question(
        self, model: Any, optimizer: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> EstimateRequest:
        device = "cuda" if self._probe.device.kind == "cuda" else "cpu"
        return EstimateRequest(
            model=lambda: _eager(model),
            inputs=_bound(model, arguments, keywords)
            if keywords and arguments
            else keywords or arguments,
            optimizer=optimizer,
            autocast=_autocast_now(device),
            device=device,
            allocator=_allocator_settings(),
            limit_bytes=self._probe.limit_bytes,
            workspace_bytes=self._workspace_bytes(),
            context_bytes=self._context().size_bytes,
            context_interval=self._context().interval,
        )

    def _context(self) -> Context:
        """As NVML shows it; where that is not to be had, what contexts usually take, with the range that they have."""
        measured = self._probe.context_bytes
        return (
            context_of(measured or None)
            if self._probe.device.kind == "cuda"
            else Context(measured or 0)
        )

    def _workspace_bytes(self) -> int:
        if self._probe.device.kind != "cuda":
            return 0
        capability = sys.modules["torch"].cuda.get_device_capability(self._probe.device.index)
        return HANDLES * cublas_workspace_bytes(
            capability, os.environ.get("CUBLAS_WORKSPACE_CONFIG")
        )


def _answers(question: EstimateRequest) -> Iterator[bytes]:
    """In the child: a pickled Estimate, or a text that says why there is none; then one with advice, where memory is short."""
    try:
        _without_autocast()
        trace = question.trace()
        found = question.estimate(trace)
    except (TraceError, EstimateError) as error:
        operator = getattr(error, "op", "")
        yield pickle.dumps(f"{error}" + (f" (at {operator})" if operator else ""))
        return
    yield pickle.dumps(found)
    if found.limit_bytes is not None and found.needed_bytes > TIGHT * found.limit_bytes:
        yield pickle.dumps(advise(question, trace, found, traces=MOST_TRACES))


def _found(answer: bytes, formula: Estimate) -> Estimate:
    """The child's answer; the formula's with the reason where it has none."""
    found: Estimate | str = pickle.loads(answer)  # noqa: S301 - our own child wrote it  # nosec B301
    if isinstance(found, str):
        return _with_note(formula, found)
    inputs = {key: formula.assumptions[key] for key in ("inputs",) if key in formula.assumptions}
    return replace(found, assumptions={**found.assumptions, **inputs})


def _with_note(formula: Estimate, reason: str | None) -> Estimate:
    if reason is None:
        return formula
    return replace(formula, assumptions={**formula.assumptions, "trace": f"not traced: {reason}"})


def _allocator_settings() -> str:
    return os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")


def _bound(model: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """Positional and named arguments of forward, all by name."""
    import inspect

    return dict(inspect.signature(model.forward).bind_partial(*arguments, **keywords).arguments)


def _autocast_now(device: str) -> Literal["bf16", "fp16"] | None:
    """The autocast that the script calls its model under, on this thread."""
    torch = sys.modules["torch"]
    try:
        is_on, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    except TypeError:  # before torch 2.4 these were functions of the GPU only
        is_on, dtype = torch.is_autocast_enabled(), torch.get_autocast_gpu_dtype()
        is_on = is_on and device == "cuda"
    return _AUTOCAST.get(str(dtype)) if is_on else None


def _without_autocast() -> None:
    """In the child: what the parent was under is the question's to say. Left as it was it would hold in backward and in the optimizer's
    step, where the weights' copies that it keeps would then stay for good."""
    torch = sys.modules["torch"]
    for device in ("cuda", "cpu"):
        with contextlib.suppress(TypeError):  # before torch 2.4
            torch.set_autocast_enabled(device, False)
    torch.autocast_increment_nesting()
    while (
        torch.autocast_decrement_nesting() > 0
    ):  # else the end of no autocast in the child is the outermost, which clears the cache
        pass
    torch.clear_autocast_cache()


def _eager(model: Any) -> Any:
    """In the child: the model without torch.compile around it."""
    model = getattr(model, "_orig_mod", model)
    if getattr(model, "_compiled_call_impl", None) is not None:
        model._compiled_call_impl = None
    return model
