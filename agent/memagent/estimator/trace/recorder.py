"""Recorder of every tensor storage that is allocated and released, for fake and real tensors.

1. A storage counts as allocated when an operator's output first refers to it. Views and in-place
   results refer to a known one.
2. It's released when its last owner drops it. A weak reference to the storage object reports that
   for every kind of owner (Python, autograd, C++).
3. A resized storage is released and allocated again with its new size.
4. The purpose of an allocation becomes known later: a tensor becomes a gradient when autograd
   delivers it, and state when the optimizer keeps it. So `assign_component` works at any time, and
   `events` gives the final component to every event of the storage.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

import memagent
from memagent.estimator.trace.corrections import run_corrected
from memagent.estimator.trace.data_dependent_ops import (
    OperatorCall,
    TrueFractions,
    run_data_dependent,
)
from memagent.estimator.trace.events import MemoryEvent
from memagent.estimator.trace.gradients import GradientSums
from memagent.estimator.trace.operand_dtypes import check_operands
from memagent.estimator.trace.operation_counts import count_operations
from memagent.estimator.trace.producers import Producers

_MIN_SIZE_WITH_SOURCE_BYTES = 1 << 16
_GROWTH_CHECK_INTERVAL = 256
"""Allocations between two checks of the tracer's own memory."""
_COMPONENT_BY_PHASE = {
    "data": "data",
    "forward": "activations",
    "backward": "workspace",
    "optimizer": "workspace",
}
"""The assumed component of a storage by the phase of its allocation."""
_ASSUMED_COMPONENTS = frozenset(_COMPONENT_BY_PHASE.values())
_VALUE_OPERATORS = {
    "aten::_local_scalar_dense": "",
    "aten::equal": "aten::equal",
    "aten::allclose": "aten::equal",
}
"""Operators that return a Python value, with the question they answer if it is known."""
_CONVOLUTION_BACKWARD = "aten::convolution_backward"
_DROPOUT = "aten::native_dropout"
"""Its kernel allocates the mask before the output."""
"""In place of the operator that compared a random number with a probability."""
_DEVICE_OPERATOR = torch.ops.prim.device.default
_META_DEVICE = torch.device("meta")
_PLAIN_TYPES = {torch.Tensor, torch.nn.Parameter}


class _StorageRef(weakref.ref):  # type: ignore[type-arg]
    """A weak reference with the key of its storage."""

    __slots__ = ("key",)

    key: int


@dataclass(slots=True)
class _StorageRecord:
    """One storage from its allocation on. Only the component and the module may change."""

    uid: int
    size_bytes: int
    component: str
    module: str
    op: str
    shape: tuple[int, ...]
    dtype: str
    source: str = ""


class StorageRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the storages of tensors on `device_type`. Set `phase` and `step` during the run.

    - `scratch_bytes` returns the bytes that the kernel of an operator allocates and frees inside.
    - `answer` returns a Python value when a program reads a tensor. With it, all tensors are fake.
    - `check_growth` may raise to abort the trace.
    """

    def __init__(
        self,
        device_type: str,
        *,
        scratch_bytes: Callable[[str, tuple[Any, ...], Any], int] = lambda *_: 0,
        answer: Callable[[StorageRecorder, torch.Tensor, str], Any] | None = None,
        check_growth: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device_type = device_type
        self.phase = "data"
        self.step = 0
        self.module_path: Callable[[], str] = str
        self.last_op = ""
        self.hidden_ops: set[str] = set()
        self.operations: Counter[str] = Counter()
        """Floating-point operations of all forwards, by the path of the module."""
        self.arguments: dict[str, set[int]] = {}
        self.outputs: dict[str, set[int]] = {}
        """The storages of what a module returned in forward, by its path."""
        self.notes: list[str] = []
        self._scratch_bytes = scratch_bytes
        self._answer = answer
        self._check_growth = check_growth
        self._is_fake = answer is not None
        self._live: dict[int, tuple[_StorageRecord, _StorageRef]] = {}
        self._log: list[tuple[bool, _StorageRecord, str, int]] = []
        self._next_uid = 0
        self.producers = Producers()
        self.fractions = TrueFractions()
        self._sums = GradientSums()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, so that torch adds no wrapper to each call that hides it from a compiler.

        torch asks when it creates the class. Nothing is compiled here.
        """
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Autograd and autocast ask for a fake tensor's device more often than they run operators.
        if func is _DEVICE_OPERATOR:
            return _fake_device(args[0]) if self._is_fake else func(*args)
        kwargs = kwargs or {}
        # A wrapper (DTensor, quantized): torch unwraps it and calls again with the tensors inside.
        if any(
            kind not in _PLAIN_TYPES and issubclass(kind, torch.Tensor) and _is_wrapper(kind)
            for kind in types
        ):
            return NotImplemented
        name = func.name()
        self.last_op = name
        if (
            self._is_fake
            and name.startswith("aten::_foreach_")
            and self._changes_only_values(func, args)
        ):
            return None
        if name == "aten::add.Tensor" and self.phase == "backward" and self._sums.is_in_place(args):
            func, name = torch.ops.aten.add_.Tensor, "aten::add_.Tensor"
        output = self._run(func, name, args, kwargs)
        if self.phase == "forward" and (count := count_operations(func, args, kwargs, output)):
            self.operations[self.module_path()] += count
        tensors = list(_output_tensors(output))
        for tensor in reversed(tensors) if name == _DROPOUT else tensors:
            self.add(tensor, name)
            if name == _CONVOLUTION_BACKWARD:  # each gradient has a separate kernel
                self._record_scratch(name, args, tensor)
        if self._is_fake:
            self.producers.update(name, output, args)
        if name != _CONVOLUTION_BACKWARD:
            self._record_scratch(name, args, output)
        return output

    def _run(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the operator; a fake output gets the storage that the real kernel would allocate."""
        if not self._is_fake:
            return func(*args, **kwargs)
        if self.phase == "forward":
            check_operands(name, args, self.module_path)
        if (
            name == "aten::_local_scalar_dense"
            and self._answer is not None
            and args[0].constant is None
        ):
            return self._answer(self, args[0], "")
        try:
            output = run_corrected(func, name, args, kwargs)
        except DataDependentOutputException:
            if self._answer is None or name not in _VALUE_OPERATORS:
                raise
            return self._answer(self, args[0], _VALUE_OPERATORS[name])
        except DynamicOutputShapeException:
            call = OperatorCall(func, args, kwargs, self.fractions, self.notes)
            output = run_data_dependent(call)
            if output is None:
                raise
        self.fractions.update(name, output, args)
        return output

    def add(
        self,
        tensor: torch.Tensor,
        op: str = "",
        component: str | None = None,
        module: str | None = None,
    ) -> None:
        """Record the tensor's storage if it is on the device, and new or resized."""
        device = _fake_device(tensor) if type(tensor) is FakeTensor else tensor.device
        if device.type != self.device_type or tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        live = self._live.get(key)
        if live is not None:
            if live[0].size_bytes != size:
                self._resize(key, size, tensor)
            return
        record = self._record_alloc(size, tensor, op, component, module)
        # torch preserves the Python object of a storage as long as any owner, in Python or in C++,
        # keeps the storage alive. So the callback runs exactly when the memory is released.
        reference = _StorageRef(storage, self._record_free)
        reference.key = key
        self._live[key] = (record, reference)

    def assign_component(self, tensor: torch.Tensor, component: str, module: str = "") -> None:
        """Set the purpose of the tensor's storage, unless one is already assigned."""
        for part in plain_tensors(tensor):
            if part.layout is not torch.strided:
                continue  # a sparse tensor has no storage
            live = self._live.get(part.untyped_storage()._cdata)
            if live is not None and live[0].component in _ASSUMED_COMPONENTS:
                live[0].component = component
                live[0].module = module or live[0].module

    def add_arguments(self, path: str, tensors: Iterable[torch.Tensor]) -> None:
        """Record what the module at `path` was given in forward."""
        if self.phase == "forward":
            self.arguments.setdefault(path, set()).update(self._storages_of(tensors))

    def add_output(self, path: str, tensors: Iterable[torch.Tensor]) -> None:
        """Record what the module at `path` returned in forward."""
        if self.phase == "forward":
            self.outputs.setdefault(path, set()).update(self._storages_of(tensors))

    def _storages_of(self, tensors: Iterable[torch.Tensor]) -> Iterator[int]:
        for part in (part for tensor in tensors for part in plain_tensors(tensor)):
            if part.layout is torch.strided:
                live = self._live.get(part.untyped_storage()._cdata)
                yield from [live[0].uid] if live else []

    def on_storage_resize(self, storage: torch.UntypedStorage) -> None:
        """Record a resize without an operator (`UntypedStorage.resize_`)."""
        if storage._cdata in self._live:
            self._resize(storage._cdata, storage.nbytes(), None)

    def live_bytes(self) -> int:
        """Return the sum of the sizes of the live storages."""
        return sum(record.size_bytes for record, _ in self._live.values())

    def events(self) -> Iterator[MemoryEvent]:
        """Yield every allocation and release so far, in order."""
        for index, (is_alloc, record, phase, step) in enumerate(self._log):
            yield MemoryEvent(
                "alloc" if is_alloc else "free",
                record.uid,
                record.size_bytes,
                index,
                phase,
                step,
                record.component,
                record.shape,
                record.dtype,
                record.module,
                record.source,
                record.op,
            )

    def _record_alloc(
        self,
        size: int,
        tensor: torch.Tensor | None,
        op: str,
        component: str | None,
        module: str | None = None,
    ) -> _StorageRecord:
        record = _StorageRecord(
            self._next_uid,
            size,
            component or _COMPONENT_BY_PHASE[self.phase],
            self.module_path() if module is None else module,
            op,
            tuple(tensor.shape) if tensor is not None else (size,),
            str(tensor.dtype).removeprefix("torch.") if tensor is not None else "uint8",
        )
        self._next_uid += 1
        if self._check_growth is not None and not self._next_uid % _GROWTH_CHECK_INTERVAL:
            self._check_growth()
        if size >= _MIN_SIZE_WITH_SOURCE_BYTES and component is None:
            # of the caller's caller: this function and `add` are the recorder's
            record.source = _source_line(sys._getframe(2))
        # empty tensors allocate nothing
        if size:
            self._log.append((True, record, self.phase, self.step))
        return record

    def _record_free(self, reference: Any) -> None:
        record, _ = self._live.pop(reference.key, (None, None))
        self.producers.forget(reference.key)
        self.fractions.forget(reference.key)
        if record is not None and record.size_bytes:
            self._log.append((False, record, self.phase, self.step))

    def _resize(self, key: int, size: int, tensor: torch.Tensor | None) -> None:
        old, reference = self._live[key]
        if old.size_bytes:
            self._log.append((False, old, self.phase, self.step))
        record = self._record_alloc(size, tensor, old.op, old.component, old.module)
        if tensor is None:
            record.shape = old.shape
            record.dtype = old.dtype
        self._live[key] = (record, reference)

    def _changes_only_values(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Return True for in-place operators on lists, which can be skipped: fakes have no values.

        The lists are as long as the model. Step counters (one element) have values and do run.
        """
        first = args[0][0]
        return (
            not func._schema.returns and first.numel() > 1 and first.device.type == self.device_type
        )

    def _record_scratch(self, op: str, args: tuple[Any, ...], output: Any) -> None:
        """Record bytes that live only while the kernel runs."""
        if not (size := self._scratch_bytes(op, args, output)):
            return
        self.hidden_ops.add(op)
        record = self._record_alloc(size, None, op, "workspace")
        self._log.append((False, record, self.phase, self.step))


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors inside a wrapper, or the tensor itself if it is plain."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        part = getattr(tensor, name)
        if isinstance(part, torch.Tensor):  # a DTensor's parts include its mesh
            yield from plain_tensors(part)


def _fake_device(tensor: Any) -> torch.device:
    """Return the device of a fake tensor as FakeTensor's own handler would, but faster."""
    return _META_DEVICE if tensor.fake_mode.in_kernel_invocation else tensor.fake_device


@cache
def _is_wrapper(kind: type) -> bool:
    """Return whether this type of tensor has other tensors inside."""
    return hasattr(kind, "__tensor_flatten__")


def _output_tensors(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, (tuple, list)):
        for item in output:
            yield from _output_tensors(item)


_MAX_FRAMES = 60
_TORCH_FILES = (str(Path(torch.__file__).parent) + os.sep, "<")
_MEMAGENT_FILES = str(Path(memagent.__file__).parent) + os.sep
_STEP_RUNNER = "steps.py"
_END = "the tracer"
"""The label of the frame that runs the step. Its callers aren't part of the step."""


def _source_line(frame: FrameType | None) -> str:
    """Return "file.py:123" of the nearest caller outside torch and memagent; "" if there is none.

    That is the user's program, or a library between it and torch.
    """
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return ""
        label = _file_label(frame.f_code.co_filename)
        if label:
            return "" if label is _END else f"{label}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@cache
def _file_label(path: str) -> str:
    """Return a file's name; "" for files of torch and memagent, which the search skips."""
    if path.startswith(_MEMAGENT_FILES):
        return _END if path.endswith(_STEP_RUNNER) else ""
    return "" if path.startswith(_TORCH_FILES) else Path(path).name
