"""One trace in this very process: sets the rules, makes everything fake, runs the steps. Only ever called in a
process of its own.

`trace_here` changes torch for good (device guard, kernels, answers about CUDA): see `isolation` for who calls it.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memagent.errors import TraceError
from memagent.estimator.trace.events import Trace

CUDA, CUDA_ON_CPU, CPU = "cuda", "cuda-on-cpu", "cpu"


@dataclass(frozen=True)
class Job:
    """What to trace. `model` is a module, a callable that builds one, or "path.py:factory"; `plan` holds the
    arguments of `StepPlan`."""

    model: Any
    inputs: Any
    targets: Any = None
    optimizer: Any = "adamw"
    device_rules: str = CUDA
    plan: dict[str, Any] = field(default_factory=dict)
    limit_growth_bytes: int | None = None


def trace_here(job: Job) -> Trace:
    """Run the job on fake tensors, in this process."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from memagent.estimator.trace import distributed, kernels, torch_patches
    from memagent.estimator.trace.convert import (
        Converter,
        convert_module,
        convert_optimizer,
        convert_value,
    )
    from memagent.estimator.trace.recorder import StorageRecorder
    from memagent.estimator.trace.steps import StepPlan, mark_model, run_steps
    from memagent.estimator.trace.workspace import scratch_bytes

    begun, notes = time.perf_counter(), list[str]()
    growth = Growth(job.limit_growth_bytes)
    device = torch.device("cuda:0" if job.device_rules == CUDA else "cpu")
    torch_patches.apply(job.device_rules, notes)
    libraries = kernels.install(job.device_rules) if job.device_rules != CPU else []
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    model, sharded = _built(job.model, mode, device)
    model, reduction = distributed.unwrapped(model)
    if torch_patches.run_as_written(model):
        notes.append(torch_patches.COMPILED)
    torch_patches.let_libraries_ask()
    if sharded:
        notes.append("the model is sharded: this is one rank, and only the steady step tells")
    if job.device_rules != CPU and any(
        isinstance(part, torch.nn.RNNBase) for part in model.modules()
    ):
        notes.append(
            "recurrent layers are traced time step by time step; cuDNN's own kernels keep other amounts"
        )
    recorder = StorageRecorder(
        device.type,
        hidden=scratch_bytes if job.device_rules != CPU else None,
        answer=torch_patches.answer,
        watch=growth.check,
    )
    gc.disable()
    gc.freeze()  # what was there before is not looked through at the end of each step
    try:
        with mode:
            converter = Converter(mode, device)
            if not sharded:
                convert_module(model, converter)
            optimizer = optimizer_of(
                job.optimizer, model, lambda made: convert_optimizer(made, converter)
            )
            with recorder, module_paths(model, recorder), resizes(recorder):
                mark_model(recorder, model)
                kept = distributed.buckets(recorder, model, reduction)
                plan = StepPlan(**job.plan)

                def make() -> tuple[Any, Any]:
                    inputs = convert_value(job.inputs, converter)
                    return inputs, convert_value(job.targets, converter)

                notes += run_steps(recorder, model, make, optimizer, plan)
    except TraceError:
        raise
    except Exception as error:
        raise as_trace_error(error, recorder) from error
    finally:
        gc.unfreeze()
        gc.enable()
    del libraries, kept
    parameters = {parameter.untyped_storage()._cdata: parameter for parameter in model.parameters()}
    return Trace(
        events=tuple(recorder.events()),
        steps=plan.steps,
        parameters_bytes=sum(
            parameter.untyped_storage().nbytes() for parameter in parameters.values()
        ),
        parameters=sum(parameter.numel() for parameter in parameters.values()),
        device_rules=job.device_rules,
        torch_version=str(torch.__version__),
        optimizer=type(optimizer).__name__ if optimizer is not None else "",
        notes=(*notes, *recorder.notes),
        duration_s=time.perf_counter() - begun,
        growth_bytes=growth.bytes(),
        hidden_ops=tuple(sorted(recorder.hidden_ops)),
    )


def _built(given: Any, mode: Any, device: Any) -> tuple[Any, bool]:
    """The model, and whether it is sharded and made of fake tensors already."""
    import torch

    from memagent.estimator.trace import distributed

    try:
        model = built(given)
    except (
        RuntimeError,
        AssertionError,
    ):  # a device mesh of a device that is not there: fakes may do
        if isinstance(given, torch.nn.Module):
            raise
        model = None
    if model is not None and not distributed.is_sharded(model):
        return model, False
    model = distributed.built_on_fakes(
        imported(given) if isinstance(given, str) else given, mode, device
    )
    return model, distributed.is_sharded(model)


def as_trace_error(error: Exception, recorder: Any) -> TraceError:
    """The same failure in words for the user, with the operator it stopped at."""
    kind = type(error).__name__
    op = recorder.last_op
    if kind in (
        "DynamicOutputShapeException",
        "DataDependentOutputException",
        "UnsupportedOperatorException",
    ):
        op = str(getattr(error, "func", op))
        return TraceError(
            f"{op} depends on the tensors' values, which a trace does not have", op=op
        )
    return TraceError(f"the step failed at {op or 'its start'}: {kind}: {error}"[:1000], op=op)


def built(model: Any) -> Any:
    """The module: as given, or built without memory for its values (on the meta device), else for real."""
    import torch

    if isinstance(model, torch.nn.Module):
        return model
    factory = imported(model) if isinstance(model, str) else model
    try:
        with torch.device("meta"):
            made = factory()
    except Exception:  # noqa: BLE001  # a constructor that reads values: it has to have some
        made = factory()
    if not isinstance(made, torch.nn.Module):
        raise TraceError(f"the factory gave {type(made).__name__}, not a torch.nn.Module")
    return made


def imported(spec: str) -> Callable[[], Any]:
    """The callable named by "path.py:factory"."""
    path, _, name = spec.rpartition(":")
    if not path or not Path(path).is_file():
        raise TraceError(f"{spec!r} is not path.py:factory, or there is no such file")
    found = importlib.util.spec_from_file_location("_memagent_traced", path)
    if found is None or found.loader is None:
        raise TraceError(f"{path} can't be imported")
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    sys.path.insert(0, str(Path(path).resolve().parent))
    found.loader.exec_module(module)
    factory = getattr(module, name, None)
    if not callable(factory):
        raise TraceError(f"{path} has no callable {name!r}")
    return factory  # type: ignore[no-any-return]


_BY_NAME = {
    "adamw": "AdamW", "adam": "Adam", "sgd": "SGD", "momentum": "SGD", "adagrad": "Adagrad", "adafactor": "Adafactor", "rmsprop": "RMSprop",
    "nadam": "NAdam", "radam": "RAdam", "adamax": "Adamax", "adadelta": "Adadelta", "lbfgs": "LBFGS", "muon": "Muon",
}  # fmt: skip


def optimizer_of(given: Any, model: Any, convert: Callable[[Any], None]) -> Any:
    """The optimizer over the fake model: an instance is converted, a name, class or callable is given the trained
    parameters."""
    import torch

    if given is None:
        return None
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        return None
    if isinstance(given, str):
        kind = getattr(torch.optim, _BY_NAME.get(given.lower(), given), None)
        if kind is None:
            raise TraceError(
                f"torch.optim has no optimizer {given!r}: pass one, or a callable that takes the parameters"
            )
        return kind(
            trained, **({"lr": 0.1, "momentum": 0.9} if given.lower() == "momentum" else {})
        )
    if hasattr(given, "param_groups"):
        convert(given)
        return given
    return given(trained)


@contextmanager
def module_paths(model: Any, recorder: Any) -> Iterator[None]:
    """Let the recorder know which module is running: by the module's call, which also ends when a recomputation is
    broken off."""
    import torch

    names = {id(module): name for name, module in model.named_modules()}
    stack = [""]
    original = torch.nn.Module.__call__

    def called(module: Any, *args: Any, **kwargs: Any) -> Any:
        stack.append(names.get(id(module), stack[-1]))
        try:
            return original(module, *args, **kwargs)
        finally:
            stack.pop()

    recorder.module = lambda: stack[-1]
    torch.nn.Module.__call__ = called  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module.__call__ = original  # type: ignore[method-assign]


@contextmanager
def resizes(recorder: Any) -> Iterator[None]:
    """Let the recorder know of storages that are resized directly (FSDP frees and restores its parameters so)."""
    import torch

    kind = torch.UntypedStorage
    original = kind.resize_

    def resize_(storage: Any, size: int) -> Any:
        result = original(storage, size)
        recorder.resized(storage)
        return result

    kind.resize_ = resize_  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        kind.resize_ = original  # type: ignore[method-assign]


class Growth:
    """How much a process has grown since this was made, and whether that is still allowed."""

    def __init__(self, limit_bytes: int | None, process: int | str = "self") -> None:
        self._limit_bytes, self._process = limit_bytes, process
        self._first_bytes = _resident_bytes(process)

    def bytes(self) -> int:
        """Resident bytes more than at the beginning."""
        return max(0, _resident_bytes(self._process) - self._first_bytes)

    def check(self) -> None:
        """Raise TraceError when it is not."""
        if self._limit_bytes is not None and self.bytes() > self._limit_bytes:
            raise TraceError(
                f"the trace took more than {self._limit_bytes >> 20} MiB of host memory and was given up"
            )


def _resident_bytes(process: int | str) -> int:
    try:
        with Path(f"/proc/{process}/statm").open("rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
