"""One trace in this process: set the device rules, convert everything to fakes, run the steps.

`run_trace_in_process` changes torch permanently (device guard, kernels, CUDA queries). Call it only
in a process that exists for the trace: see `isolation`.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent.errors import EstimateError, OptionError, TraceError
from memagent.estimator.quantised_model import quantisation_notes
from memagent.estimator.trace.arguments import argument_error, name_notes, shape_error
from memagent.estimator.trace.events import Trace
from memagent.estimator.trace.isolation import MemoryGrowth
from memagent.estimator.trace.operand_dtypes import OperandError

if TYPE_CHECKING:
    import torch

    from memagent.estimator.trace.recorder import StorageRecorder

CUDA = "cuda"
CUDA_ON_CPU = "cuda-on-cpu"
CPU = "cpu"

_VALUE_ERRORS = (
    "DynamicOutputShapeException",
    "DataDependentOutputException",
    "UnsupportedOperatorException",
)
_VARIANTS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "adamw_fused": ("adamw", {"fused": True}),
    "momentum": ("sgd", {"lr": 0.1, "momentum": 0.9}),
    "amsgrad": ("adamw", {"amsgrad": True}),
}
"""The formula's names of optimizers with other arguments than torch's defaults."""


@dataclass(frozen=True)
class TraceJob:
    """The arguments of a trace.

    `model` is a module, a callable that builds one, or "path.py:factory"; `plan` has the arguments
    of `StepPlan`.
    """

    model: Any
    inputs: Any
    targets: Any = None
    optimizer: Any = "adamw"
    device_rules: str = CUDA
    plan: dict[str, Any] = field(default_factory=dict)
    limit_growth_bytes: int | None = None


def run_trace_in_process(job: TraceJob) -> Trace:
    """Run the job on fake tensors, in this process.

    Raises OptionError for inputs that the model doesn't take, and TraceError for other failures.
    """
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
    from memagent.estimator.trace.steps import MEAN_LOSS_NOTE, StepPlan, record_model, run_steps

    started, notes = time.process_time(), list[str]()
    growth = MemoryGrowth(job.limit_growth_bytes)
    device = torch.device("cuda:0" if job.device_rules == CUDA else "cpu")
    torch_patches.apply(job.device_rules, notes)
    libraries = kernels.install(job.device_rules) if job.device_rules != CPU else []
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    model, is_sharded = _build_model_or_shards(job.model, mode, device)
    model, reduction = distributed.unwrap_ddp(model)
    if torch_patches.unwrap_compiled(model):
        notes.append(torch_patches.COMPILED_NOTE)
    torch_patches.allow_cuda_queries()
    if is_sharded:
        notes.append("the model is sharded: this is one rank, and only the steady step counts")
    notes.extend(_recurrence_notes(model, job.device_rules))
    notes.extend(quantisation_notes(model))
    recorder = StorageRecorder(
        device.type,
        scratch_bytes=kernels.scratch_bytes if job.device_rules != CPU else lambda *_: 0,
        answer=torch_patches.answer,
        check_growth=growth.check,
    )
    # Only `run_steps` collects garbage, at the end of each step, so that two traces of one job are
    # equal. Older objects are frozen, so that those collections skip them.
    gc.disable()
    gc.freeze()
    try:
        with mode:
            converter = Converter(mode, device)
            if not is_sharded:
                convert_module(model, converter)
            optimizer = build_optimizer(
                job.optimizer, model, lambda instance: convert_optimizer(instance, converter)
            )
            with (
                recorder,
                track_module_paths(model, recorder),
                track_resizes(recorder.on_storage_resize),
            ):
                record_model(recorder, model)
                buckets = distributed.allocate_buckets(recorder, model, reduction)
                plan = StepPlan(**job.plan)

                def make_batch() -> tuple[Any, Any]:
                    inputs = convert_value(job.inputs, converter)
                    return inputs, convert_value(job.targets, converter)

                notes += run_steps(recorder, model, make_batch, optimizer, plan)
        notes += name_notes(model, job.inputs, has_loss=MEAN_LOSS_NOTE not in notes)
    except EstimateError:
        raise
    except Exception as error:
        raise _input_error(error, model, job, recorder) or _trace_error(error, recorder) from error
    finally:
        gc.unfreeze()
        gc.enable()
    # kept until here: they would be unregistered, or released, during the steps
    del libraries, buckets
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
        model_class=_class_of(model),
        notes=(*notes, *recorder.notes),
        processor_s=time.process_time() - started,
        growth_bytes=growth.bytes(),
        hidden_ops=tuple(sorted(recorder.hidden_ops)),
        operations=dict(recorder.operations),
        arguments={path: tuple(storages) for path, storages in recorder.arguments.items()},
        outputs={path: tuple(storages) for path, storages in recorder.outputs.items()},
    )


def _class_of(model: Any) -> str:
    """Return the model's class; of one with peft's adapters, that of the model they're in."""
    is_adapted = hasattr(model, "peft_config") and hasattr(model, "get_base_model")
    return type(model.get_base_model() if is_adapted else model).__name__


def _recurrence_notes(model: Any, device_rules: str) -> list[str]:
    """Say whether layers run otherwise than on a GPU, where only an LSTM is as cuDNN's."""
    import torch

    recurrent = [m for m in model.modules() if isinstance(m, torch.nn.RNNBase)]
    known = torch.nn.LSTM if device_rules == CUDA else ()
    if device_rules == CPU or all(isinstance(m, known) for m in recurrent):
        return []
    return [
        "recurrent layers are traced time step by time step; cuDNN's kernels keep different amounts"
    ]


def build_model(model: Any) -> Any:
    """Return the module, or build it: on the meta device, or else with real values.

    Values are needed only for a constructor that reads them.
    """
    import torch

    if isinstance(model, torch.nn.Module):
        return model
    factory = import_factory(model) if isinstance(model, str) else model
    try:
        with torch.device("meta"):
            module = factory()
    except EstimateError:
        raise
    except Exception:  # noqa: BLE001  # the constructor reads values
        module = factory()
    if not isinstance(module, torch.nn.Module):
        raise TraceError(f"the factory returned {type(module).__name__}, not a torch.nn.Module")
    return module


def import_factory(spec: str) -> Callable[[], Any]:
    """Import the callable named by "path.py:factory"."""
    path, _, name = spec.rpartition(":")
    if not path or not Path(path).is_file():
        raise TraceError(f"{spec!r} is not path.py:factory, or there is no such file")
    module_spec = importlib.util.spec_from_file_location("_memagent_traced", path)
    if module_spec is None or module_spec.loader is None:
        raise TraceError(f"{path} can't be imported")
    module = importlib.util.module_from_spec(module_spec)
    # as an import does: classes of the file are looked up there by pickle and dataclasses
    sys.modules[module_spec.name] = module
    sys.path.insert(0, str(Path(path).resolve().parent))
    module_spec.loader.exec_module(module)
    factory = getattr(module, name, None)
    if not callable(factory):
        raise TraceError(f"{path} has no callable {name!r}")
    return factory  # type: ignore[no-any-return]


def build_optimizer(
    optimizer: Any, model: torch.nn.Module, convert: Callable[[Any], None]
) -> torch.optim.Optimizer | None:
    """Return the optimizer over the fake model.

    An instance gets converted. A name, class or callable gets the trained parameters.
    """
    import torch

    if optimizer is None:
        return None
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        return None
    if isinstance(optimizer, str):
        name = optimizer.lower()
        classes = {
            name.lower(): item for name, item in vars(torch.optim).items() if isinstance(item, type)
        }
        name, arguments = _VARIANTS.get(name, (name, {}))
        kind = classes.get(name)
        if kind is None:
            raise TraceError(
                f"torch.optim has no optimizer {optimizer!r}: "
                "pass one, or a callable that takes the parameters"
            )
        return kind(trained, **arguments)  # type: ignore[no-any-return]
    if hasattr(optimizer, "param_groups"):
        convert(optimizer)
        return optimizer  # type: ignore[no-any-return]
    return optimizer(trained)  # type: ignore[no-any-return]


@contextmanager
def track_module_paths(model: torch.nn.Module, recorder: StorageRecorder) -> Iterator[None]:
    """Let the recorder know which module is running.

    Wraps the call of a module instead of using hooks, because the call also ends when checkpointing
    stops a recomputation early.
    """
    import torch

    from memagent.estimator.trace.steps import tensors_in

    names = {id(module): name for name, module in model.named_modules()}
    stack = [""]
    original = torch.nn.Module.__call__

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        stack.append(names.get(id(module), stack[-1]))
        recorder.add_arguments(stack[-1], tensors_in((args, kwargs)))
        try:
            output = original(module, *args, **kwargs)
            recorder.add_output(stack[-1], tensors_in(output))
            return output
        finally:
            stack.pop()

    recorder.module_path = lambda: stack[-1]
    torch.nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module.__call__ = original  # type: ignore[method-assign]


@contextmanager
def track_resizes(on_resize: Callable[[torch.UntypedStorage], None]) -> Iterator[None]:
    """Report directly resized storages. FSDP releases and restores its parameters that way."""
    import torch

    original = torch.UntypedStorage.resize_

    def resize_(storage: Any, size: int) -> Any:
        result = original(storage, size)
        on_resize(storage)
        return result

    torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = original  # type: ignore[method-assign]


def _build_model_or_shards(model: Any, mode: Any, device: torch.device) -> tuple[Any, bool]:
    """Return the model, and whether it's sharded and therefore already fake."""
    import torch

    from memagent.estimator.trace import distributed

    try:
        module = build_model(model)
    except (RuntimeError, AssertionError):
        # The device mesh may need a device that doesn't exist here. Fake tensors may work.
        if isinstance(model, torch.nn.Module):
            raise
        module = None
    if module is not None and not distributed.is_sharded(module):
        return module, False
    factory = import_factory(model) if isinstance(model, str) else model
    module = distributed.build_sharded(factory, mode, device)
    return module, distributed.is_sharded(module)


def _input_error(
    error: Exception, model: Any, job: TraceJob, recorder: StorageRecorder
) -> EstimateError | None:
    """Return the failure as one of the inputs, if they would fail without a trace, too."""
    if recorder.phase != "forward":
        return None
    if isinstance(error, OperandError):
        if error.is_of(model):
            return OptionError("model", f"fails in its forward at {error}")
        return OptionError("inputs", f"and {type(model).__name__} don't fit at {error}")
    return argument_error(model, job.inputs) or shape_error(
        model, job.inputs, error, recorder.last_op
    )


def _trace_error(error: Exception, recorder: StorageRecorder) -> TraceError:
    """Return the failure as a message for the user, with the operator at which it happened."""
    kind = type(error).__name__
    op = recorder.last_op
    if kind in _VALUE_ERRORS:
        op = str(getattr(error, "func", op))
        message = f"{op} depends on the tensors' values, which a trace does not have"
    else:
        message = f"the step failed at {op or 'its start'}: {kind}: {error}"[:1000]
    return TraceError(message, op=op)
