"""What torch must believe in the tracer's process: that tensors are CUDA's, and that the driver is not to be asked.

`apply` is for good; it is called in a process that ends with the trace. `answer` is what a program is told when it
asks a tensor for its value.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor

from memagent.errors import TraceError
from memagent.estimator.trace import cuda_stubs, fake_cuda, lazy_dynamo


def apply(device_rules: str, notes: list[str]) -> None:
    """Set the rules of the device in this process."""
    _take_fakes_for_tensors()
    lazy_dynamo.install()
    if device_rules == "cpu":
        return
    torch.cuda.is_available = lambda: False
    torch.cuda._initialized = False
    fake_tensor.init_gpu_context = lambda *_: None  # type: ignore[assignment]
    if device_rules == "cuda":
        reason = fake_cuda.install()
        if reason is not None:
            raise TraceError(reason)
        _autocast_without_driver()
        cuda_stubs.install()
        return
    _foreach_on_cpu()
    notes.append("cpu tensors stand in for cuda's: dropout masks and autocast lists may differ")


def _take_fakes_for_tensors() -> None:
    """The foreach implementations are chosen by the exact type of the parameters: fakes must count as what they stand
    for."""
    from torch.nn.utils import clip_grad
    from torch.optim import optimizer

    supported = getattr(optimizer, "_foreach_supported_types", None)
    if isinstance(supported, list) and FakeTensor not in supported:
        supported.append(FakeTensor)
    if hasattr(clip_grad, "_has_foreach_support"):
        clip_grad._has_foreach_support = lambda *_: True


def _foreach_on_cpu() -> None:
    from torch.optim import optimizer

    if hasattr(optimizer, "_get_foreach_kernels_supported_devices"):
        optimizer._get_foreach_kernels_supported_devices = lambda: ["cpu", "cuda"]


def _autocast_without_driver() -> None:
    """`torch.autocast("cuda")` and `GradScaler("cuda")` switch themselves off where no driver answers."""
    from torch.amp import autocast_mode
    from torch.cuda.amp import common

    common.amp_definitely_not_available = lambda: False
    if hasattr(autocast_mode, "amp_definitely_not_available"):
        autocast_mode.amp_definitely_not_available = lambda: False
    torch.cuda.is_bf16_supported = lambda *_, **__: True


_ASSUMED = "where the model asks whether all of its data are so, the answer was yes (a mask without padding); whether any is, no"


def let_libraries_ask() -> None:
    """transformers takes another way when it meets fake tensors (it builds masks that a real run leaves out): let it
    ask, and see `answer`."""
    library = sys.modules.get("transformers.utils.import_utils")
    if library is not None and hasattr(library, "is_fake_tensor"):
        vars(library)["is_fake_tensor"] = lambda _: False


COMPILED = "the model is compiled: what is traced is the program as it is written; the compiler's kernels keep other amounts, usually less"


def run_as_written(model: torch.nn.Module) -> bool:
    """Switch torch's compiler off, where it is in this process at all. Whether a part of the model was compiled."""
    if "torch._dynamo.eval_frame" not in sys.modules:
        return False
    torch.compiler.set_stance("force_eager")
    return any(
        type(part).__name__ == "OptimizedModule"
        or getattr(part, "_compiled_call_impl", None) is not None
        for part in model.modules()
    )


def answer(recorder: Any, tensor: torch.Tensor, maker: str = "") -> Any:
    """The value a program asks a tensor for, where any sensible one will do: step counters count, "all?" is yes,
    "any?" is no. `maker` is the operator that made it, by default what the recorder remembers.

    Raises TraceError for other questions: the program's way depends on its data.
    """
    maker = maker or recorder.maker_of(tensor)
    if recorder.phase == "optimizer" and maker != "aten::equal":
        value = float(recorder.step + 1)
        return (
            value
            if tensor.is_floating_point()
            else int(value)
            if tensor.dtype is not torch.bool
            else False
        )
    if maker in ("aten::all", "aten::any", "aten::equal"):
        if _ASSUMED not in recorder.notes:
            recorder.notes.append(_ASSUMED)
        return maker != "aten::any"
    raise TraceError(
        f"the model asks for the value of a tensor made by {maker or 'an unknown operator'}, which a trace does not have",
        op=maker or "aten::_local_scalar_dense",
    )
