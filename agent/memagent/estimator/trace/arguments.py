"""Arguments that a model's forward doesn't take: a mistake in the request, not in the trace.

1. Names and positions are compared with the signature of `forward` after the step has failed, so
   that a model whose hooks change its arguments isn't refused.
2. A forward with `**kwargs` drops a misspelt name, and fails for another reason: the name is then
   the cause. A step that ran without a loss may have dropped its labels, or read that name from
   `**kwargs`: a name near a free one is noted then (`name_notes`).
3. A signature without names, such as a wrapper's, says nothing.
4. Shapes and dtypes are checked by a second forward, on the meta device and without the trace. Only
   a check of torch's own functions and layers that fails there, too, is blamed on the inputs: not
   the model's own errors, what it imports, or operators of others. The trace's message is the rest.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping
from typing import Any

from memagent.errors import OptionError, did_you_mean
from memagent.estimator.input_specs import TensorSpec, convert_tensors, is_tensor

MAX_NAMES = 8
"""The names that a message lists of one signature: those of the usual training come first."""
_CHECKS = (RuntimeError, ValueError, IndexError, AssertionError)
"""The errors of torch's checks of shapes and dtypes. Derived classes are of other failures."""
_CONVOLUTION = "aten::convolution"
"""It fails in other words on the meta device, which don't name the channels."""
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def argument_error(model: Any, inputs: Any) -> OptionError | None:
    """Return the error that names an argument which `forward` doesn't take, or lacks."""
    signature = _signature(model)
    names = _names(signature)
    if signature is None or not names:
        return None
    unknown = [name for name in inputs if name not in names] if _is_named(inputs) else []
    if unknown:
        return _unknown_name(model, unknown[0], names)
    try:
        _bind(signature, inputs)
    except TypeError as error:
        problem = f"and {_described(model)} differ, {error}: it takes {_listed(names)}"
        return OptionError("inputs", problem)
    return None


def name_notes(model: Any, inputs: Any, *, has_loss: bool) -> list[str]:
    """Return a note for each name near a free argument: `**kwargs` took it, maybe labels."""
    names = _names(_signature(model))
    if has_loss or not names or not _is_named(inputs):
        return []
    free = [name for name in names if name not in inputs]
    return [
        f"{name} isn't a named argument of {_described(model)}{near}"
        for name in inputs
        if name not in names and (near := did_you_mean(name, free))
    ]


def shape_error(model: Any, inputs: Any, failure: Exception, op: str) -> OptionError | None:
    """Return the error that says where the inputs' shapes or dtypes don't fit: see 4."""
    error, place = _failure_on_meta(model, inputs)
    if type(error) not in _CHECKS or not place.startswith("torch."):
        return None
    if str(error) != str(failure) and not (op == _CONVOLUTION and ".conv" in place):
        return None
    text = str(failure).partition("\n")[0]
    return OptionError("inputs", f"and {type(model).__name__} don't fit at {place}: {text}")


def _failure_on_meta(model: Any, inputs: Any) -> tuple[Exception | None, str]:
    """Return why a forward fails on the meta device, and which function or layer raised it.

    The name of an operator of others begins with its library; other code has none.
    """
    from torch.overrides import TorchFunctionMode, resolve_name

    failures: list[tuple[Exception, str]] = []

    class Watch(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, _types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            try:
                return func(*args, **(kwargs or {}))
            except Exception as error:
                failures.append((error, resolve_name(func) or ""))
                raise

    try:
        with Watch():
            _run_on_meta(model, inputs)
    except Exception as error:  # noqa: BLE001  # of user code
        return error, next((name for raised, name in failures if raised is error), _layer(error))
    return None, ""


def _layer(error: Exception) -> str:
    """Return the module of torch's layers whose own check raised the error, or nothing."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    name = str(frame.f_globals.get("__name__", ""))
    return name if name.startswith("torch.nn.modules.") else ""


def _run_on_meta(model: Any, inputs: Any) -> None:
    import torch

    from memagent.estimator.trace.convert import parse_dtype

    def empty(spec: TensorSpec) -> Any:
        return torch.empty(spec[0], dtype=parse_dtype(spec[1]), device="meta")

    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    # by shape: empty_like of a fake tensor would be one of the trace again
    state = {
        name: torch.empty(each.shape, dtype=each.dtype, device="meta")
        for name, each in tensors.items()
    }
    arguments = convert_tensors(inputs, empty)
    args, kwargs = ((), arguments) if _is_named(arguments) else (arguments, {})
    args = args if isinstance(args, (tuple, list)) else (args,)
    torch.func.functional_call(model, state, tuple(args), kwargs)


def _unknown_name(model: Any, name: str, names: list[str]) -> OptionError:
    near = did_you_mean(name, names)
    problem = f"{name} isn't an argument of {_described(model)}{near}: use {_listed(names)}"
    return OptionError("inputs", problem)


def _signature(model: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(model.forward)
    except (TypeError, ValueError):
        return None


def _names(signature: inspect.Signature | None) -> list[str]:
    parameters = signature.parameters.values() if signature else ()
    return [parameter.name for parameter in parameters if parameter.kind in _NAMED]


def _described(model: Any) -> str:
    return f"{type(model).__name__}.forward"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:MAX_NAMES]) + (" ..." if len(names) > MAX_NAMES else "")


def _is_named(inputs: Any) -> bool:
    return isinstance(inputs, Mapping)


def _bind(signature: inspect.Signature, inputs: Any) -> None:
    if _is_named(inputs):
        signature.bind(**inputs)
    elif isinstance(inputs, (tuple, list)) and not is_tensor(inputs):
        signature.bind(*inputs)
    else:
        signature.bind(inputs)
