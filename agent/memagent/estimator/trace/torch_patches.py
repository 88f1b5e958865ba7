"""Patches of torch in the tracer's process: tensors count as CUDA's, and nothing asks the driver.

`apply` changes torch permanently, in a process that ends with the trace. `answer` is the value that
a program gets when it reads a tensor.

The import of torch's compiler takes longer than a whole trace. Fake mode reads two of its settings,
and functions that torch hides from the compiler import it for that purpose only. A stand-in for
`torch._dynamo` serves both; any other attribute imports the real module at that moment.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor

from memagent.errors import TraceError
from memagent.estimator.trace import fake_cuda
from memagent.estimator.trace.producers import LIKELY, UNLIKELY
from memagent.estimator.trace.recurrent import replace_lstm

COMPILED_NOTE = (
    "the model is compiled, and the trace runs the uncompiled program; the compiler's kernels keep "
    "different amounts, usually less"
)
_VALUES_NOTE = (
    "if the model asks whether all of its data are true, the answer was yes (a mask without "
    "padding); if it asks whether any is, no"
)
_CHANCE_NOTE = "where the model draws a random number, to drop a layer, the likelier case was taken"
_DYNAMO = "torch._dynamo"
_CAPABILITY = (8, 0)
"""Ampere: the oldest generation with all the kernels that `kernels` chooses among."""
_PROPERTIES = SimpleNamespace(
    name="NVIDIA A100-SXM4-80GB",
    major=8,
    minor=0,
    total_memory=80 << 30,
    multi_processor_count=108,
    warp_size=32,
)


def apply(device_rules: str, notes: list[str]) -> None:
    """Set the rules of the device in this process, and add a note if they are incomplete."""
    _accept_fake_tensors_in_foreach()
    _install_lazy_dynamo()
    if device_rules == "cpu":
        return
    # nothing may ask the driver from here on, in a fork that CUDA does not survive
    torch.cuda.is_available = lambda: False
    torch.cuda._initialized = False
    fake_tensor.init_gpu_context = lambda *_: None  # type: ignore[assignment]
    if device_rules == "cuda":
        reason = fake_cuda.install()
        if reason is not None:
            raise TraceError(reason)
        _enable_autocast_without_driver()
        _stub_cuda_functions()
        _run_recurrent_layers_without_cudnn()
        return
    _enable_foreach_on_cpu()
    notes.append("cpu tensors represent cuda's: dropout masks and autocast lists may differ")


def allow_cuda_queries() -> None:
    """Hide from transformers that tensors are fake.

    For fake tensors it builds masks that a real run leaves out. It then reads values: see `answer`.
    """
    library = sys.modules.get("transformers.utils.import_utils")
    if library is not None and hasattr(library, "is_fake_tensor"):
        vars(library)["is_fake_tensor"] = lambda _: False


def unwrap_compiled(model: torch.nn.Module) -> bool:
    """Disable torch's compiler if it is loaded. Return whether a part of the model was compiled."""
    if "torch._dynamo.eval_frame" not in sys.modules:
        return False
    torch.compiler.set_stance("force_eager")
    return any(
        type(part).__name__ == "OptimizedModule"
        or getattr(part, "_compiled_call_impl", None) is not None
        for part in model.modules()
    )


def answer(recorder: Any, tensor: torch.Tensor, producer: str = "") -> Any:
    """Return a plausible value of a tensor: step counters count, "all?" is yes, "any?" is no,
    places are evenly spread, and chance does what is more likely.

    `producer` is the operator that made the tensor; the default is the recorded one. Raises
    TraceError for other questions, because the program's path depends on its data.
    """
    producer = producer or recorder.producers.operator_of(tensor)
    # optimizers read step counters, and flags such as found_inf
    if recorder.phase == "optimizer" and producer != "aten::equal":
        if tensor.dtype is torch.bool:
            return False
        step = recorder.step + 1
        return float(step) if tensor.is_floating_point() else step
    if producer in ("aten::all", "aten::any", "aten::equal"):
        if _VALUES_NOTE not in recorder.notes:
            recorder.notes.append(_VALUES_NOTE)
        return producer != "aten::any"
    if producer in (LIKELY, UNLIKELY):
        if _CHANCE_NOTE not in recorder.notes:
            recorder.notes.append(_CHANCE_NOTE)
        return producer == LIKELY
    count = recorder.fractions.count_of(tensor)
    value = recorder.producers.value_of(tensor) if count is None else count
    if value is not None:
        return value
    raise TraceError(
        f"the model reads the value of a tensor made by {producer or 'an unknown operator'}, "
        "which a trace does not have",
        op=producer or "aten::_local_scalar_dense",
    )


def _accept_fake_tensors_in_foreach() -> None:
    """Add FakeTensor to the exact types for which torch chooses foreach implementations."""
    from torch.nn.utils import clip_grad
    from torch.optim import optimizer

    supported = getattr(optimizer, "_foreach_supported_types", None)
    if isinstance(supported, list) and FakeTensor not in supported:
        supported.append(FakeTensor)
    if hasattr(clip_grad, "_has_foreach_support"):
        clip_grad._has_foreach_support = lambda *_: True


def _run_recurrent_layers_without_cudnn() -> None:
    """Let torch's own kernels run recurrent layers; cuDNN's ask for values and descriptors.

    An LSTM allocates what cuDNN's would.
    """
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        setattr(torch._VF, name, _without_cudnn(getattr(torch._VF, name)))
    torch._VF.lstm = replace_lstm(torch._VF.lstm)


def _without_cudnn(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        with torch.backends.cudnn.flags(enabled=False):
            return function(*args)

    return call


def _enable_foreach_on_cpu() -> None:
    from torch.optim import optimizer

    if hasattr(optimizer, "_get_foreach_kernels_supported_devices"):
        optimizer._get_foreach_kernels_supported_devices = lambda: ["cpu", "cuda"]


def _enable_autocast_without_driver() -> None:
    """Keep `torch.autocast("cuda")` and `GradScaler("cuda")` from disabling themselves."""
    from torch.amp import autocast_mode
    from torch.cuda.amp import common

    common.amp_definitely_not_available = lambda: False
    if hasattr(autocast_mode, "amp_definitely_not_available"):
        autocast_mode.amp_definitely_not_available = lambda: False
    torch.cuda.is_bf16_supported = lambda *_, **__: True


class _FakeStream:
    """A stream or an event that is always done. Every other method does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = torch.device("cuda:0")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Any) -> float:
        return 0.0


def _stub_cuda_functions() -> None:
    """Replace the functions of `torch.cuda` that a step may call and that ask the driver."""
    stream = _FakeStream()
    # Each name needs a separate function: if the compiler gets imported after all, it refuses one
    # object under names with different rules.
    stubs: dict[str, Any] = {
        "Stream": _FakeStream,
        "Event": _FakeStream,
        "stream": lambda *_: contextlib.nullcontext(),
        "current_stream": lambda *_: stream,
        "default_stream": lambda *_: stream,
        "set_stream": lambda *_: None,
        "synchronize": lambda *_: None,
        "current_device": lambda: 0,
        "set_device": lambda *_: None,
        "device_count": lambda: 1,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda *_: None,
        "is_current_stream_capturing": lambda: False,
        "get_device_capability": lambda *_: _CAPABILITY,
        "get_device_name": lambda *_: _PROPERTIES.name,
        "get_device_properties": lambda *_: _PROPERTIES,
        "memory_allocated": lambda *_: 0,
        "max_memory_allocated": lambda *_: 0,
        "memory_reserved": lambda *_: 0,
        "max_memory_reserved": lambda *_: 0,
    }
    for name, stub in stubs.items():
        setattr(torch.cuda, name, stub)


def _install_lazy_dynamo() -> None:
    """Put a stand-in in place of the compiler, unless the compiler is loaded."""
    spec = None if _DYNAMO in sys.modules else importlib.util.find_spec(_DYNAMO)
    if spec is None:
        return
    lazy = _LazyDynamo(_DYNAMO)
    lazy.__spec__ = spec
    lazy.__path__ = spec.submodule_search_locations  # type: ignore[assignment]
    sys.modules[_DYNAMO] = lazy
    torch._dynamo = lazy
    try:
        importlib.import_module(f"{_DYNAMO}.config")
    except Exception:  # noqa: BLE001  # in this torch the settings need the rest of the compiler
        _import_dynamo()
        return
    sys.meta_path.insert(0, _DynamoFinder())


class _LazyDynamo(ModuleType):
    """Implements what optimizers and fake mode call, and imports the compiler for all else."""

    @staticmethod
    def disable(function: Any, *_: Any, **__: Any) -> Any:
        """Return the function: there is no compiler to hide it from."""
        return function

    @staticmethod
    def graph_break(*_: Any, **__: Any) -> None:
        """Do nothing: there is no graph."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_import_dynamo(), name)


class _DynamoFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the whole compiler at the first import of another part of it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        is_lazy = isinstance(sys.modules.get(_DYNAMO), _LazyDynamo)
        if not fullname.startswith(_DYNAMO + ".") or not is_lazy:
            return None
        _import_dynamo()
        return importlib.machinery.ModuleSpec(fullname, self) if fullname in sys.modules else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the import of the compiler has executed the module."""


def _import_dynamo() -> ModuleType:
    if isinstance(sys.modules.get(_DYNAMO), _LazyDynamo):
        # the stand-in would be returned in place of the compiler
        del sys.modules[_DYNAMO]
    module = importlib.import_module(_DYNAMO)
    torch._dynamo = module
    return module
