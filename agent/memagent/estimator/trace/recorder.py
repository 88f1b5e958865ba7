"""Sees every tensor storage that is born and dies while it is active, on fake tensors and on real ones alike.

1. A storage is born the first time an operator's output holds it; views and in-place results hold one that is known
   already.
2. It dies when its last owner lets go: a weak reference to the storage object says so, whoever the owner was (Python,
   autograd, C++).
3. A storage that is resized dies and is born again with its new size.
4. What an allocation is *for* is known only later (a tensor becomes a gradient when autograd hands it over, state
   when the optimizer keeps it): `mark` may be called at any time, and `events` gives every event of the storage the
   last word.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from memagent.estimator.trace.corrections import corrected
from memagent.estimator.trace.data_dependent_ops import Shares, sized
from memagent.estimator.trace.events import MemoryEvent
from memagent.estimator.trace.gradients import GradientSums
from memagent.estimator.trace.source_lines import source_line

_SMALLEST_WITH_SOURCE_BYTES = 1 << 16

_BORN_IN = {
    "data": "data",
    "forward": "activations",
    "backward": "workspace",
    "optimizer": "workspace",
}
"""What a storage is taken for by the phase it was born in, until something better is known."""


class _Grave(weakref.ref):  # type: ignore[type-arg]
    """A weak reference that knows which storage it watches."""

    __slots__ = ("key",)

    key: int


class _Life:
    """One storage from birth on: the facts that do not change, and its component, which may."""

    __slots__ = (
        "born_phase",
        "component",
        "dtype",
        "module",
        "op",
        "shape",
        "size_bytes",
        "source",
        "uid",
    )

    def __init__(
        self, uid: int, size_bytes: int, tensor: torch.Tensor | None, component: str, phase: str
    ) -> None:
        self.uid, self.size_bytes, self.component, self.born_phase = (
            uid,
            size_bytes,
            component,
            phase,
        )
        self.shape = tuple(tensor.shape) if tensor is not None else (size_bytes,)
        self.dtype = str(tensor.dtype).removeprefix("torch.") if tensor is not None else "uint8"
        self.module = self.source = self.op = ""


class StorageRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the storages of tensors on `device_type`. Set `phase` and `step` as the run goes on; `module` says
    where it is.

    `hidden` gives, for an operator and its arguments, bytes that its kernel allocates and frees inside, which no
    output shows. `answer` gives a Python number where a program asks a fake tensor for its value; with it, the
    tensors are taken to be fake.
    """

    def __init__(
        self,
        device_type: str,
        *,
        hidden: Callable[[str, tuple[Any, ...]], int] | None = None,
        answer: Callable[[StorageRecorder, torch.Tensor, str], Any] | None = None,
        watch: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device_type = device_type
        self.phase, self.step = "data", 0
        self.module: Callable[[], str] = str
        self.last_op = ""
        self.hidden_ops: set[str] = set()
        self.notes: list[str] = []
        self._hidden, self._answer, self._watch = hidden, answer, watch
        self._fake = answer is not None
        self._live: dict[int, tuple[_Life, _Grave]] = {}
        self._log: list[tuple[bool, _Life, str, int]] = []
        self._next = 0
        self._made_by: dict[int, str] = {}
        self._shares, self._sums = Shares(), GradientSums()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No wrapper around each call that hides it from a compiler: nothing is compiled here (torch asks when the class is made)."""
        return False

    # -- what torch calls -------------------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE_OF:
            return _device_of(args[0]) if self._fake else func(*args)
        kwargs = kwargs or {}
        if any(
            kind not in _PLAIN and issubclass(kind, torch.Tensor) and _wraps(kind) for kind in types
        ):
            return (
                NotImplemented  # a wrapper (DTensor, quantised): see the tensors inside it instead
            )
        name = func.name()
        self.last_op = name
        if (
            self._fake
            and name.startswith("aten::_foreach_")
            and self._changes_only_values(func, args)
        ):
            return None
        if name == "aten::add.Tensor" and self.phase == "backward" and self._sums.is_in_place(args):
            func, name = torch.ops.aten.add_.Tensor, "aten::add_.Tensor"
        output = self._run(func, name, args, kwargs)
        for tensor in _tensors(output):
            self.see(tensor, name)
        if self._answer is not None and isinstance(output, torch.Tensor) and output.numel() == 1:
            self._remember(output, name, args)
        if self._hidden is not None and (size := self._hidden(name, args)):
            self._flash(size, name)
        return output

    def _run(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The operator's output; for fake tensors with the storages that the real kernel would have made."""
        if not self._fake:
            return func(*args, **kwargs)
        if (
            name == "aten::_local_scalar_dense"
            and self._answer is not None
            and args[0].constant is None
        ):
            return self._answer(self, args[0], "")
        try:
            output = corrected(func, name, args, kwargs)
        except DataDependentOutputException:
            if self._answer is None or name not in _ASKS_FOR_VALUES:
                raise
            return self._answer(self, args[0], _ASKS_FOR_VALUES[name])
        except DynamicOutputShapeException:
            output = sized(func, args, kwargs, self._shares, self.notes)
            if output is None:
                raise
        self._shares.follow(name, output, args)
        return output

    # -- what the tracer calls --------------------------------------------------------------------------------------------------------

    def see(
        self,
        tensor: torch.Tensor,
        op: str = "",
        component: str | None = None,
        module: str | None = None,
    ) -> None:
        """Take note of the tensor's storage, if it is on the device and new, or of another size than before."""
        device = _device_of(tensor) if type(tensor) is FakeTensor else tensor.device
        if device.type != self.device_type or tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        known = self._live.get(key)
        if known is not None:
            if known[0].size_bytes != size:
                self._resize(key, size, tensor)
            return
        life = self._born(size, tensor, op, component, module)
        grave = _Grave(storage, self._died)
        grave.key = key
        self._live[key] = (life, grave)

    def mark(self, tensor: torch.Tensor, component: str, module: str = "") -> None:
        """Say what the tensor's storage is for; the first mark that is not a guess stays."""
        for part in parts_of(tensor):
            if part.layout is not torch.strided:
                continue  # sparse: has no storage of its own
            known = self._live.get(part.untyped_storage()._cdata)
            if known is not None and known[0].component in _GUESSES:
                known[0].component = component
                known[0].module = module or known[0].module

    def maker_of(self, tensor: torch.Tensor) -> str:
        """The operator that made a one-element tensor; "" where it is not known."""
        return self._made_by.get(tensor.untyped_storage()._cdata, "")

    def resized(self, storage: Any) -> None:
        """A storage was resized behind the operators' back (`UntypedStorage.resize_`)."""
        if storage._cdata in self._live:
            self._resize(storage._cdata, storage.nbytes(), None)

    def live_bytes(self) -> int:
        """Sum of the sizes of the live storages."""
        return sum(life.size_bytes for life, _ in self._live.values())

    def events(self) -> Iterator[MemoryEvent]:
        """Every birth and death so far, in order."""
        for index, (born, life, phase, step) in enumerate(self._log):
            yield MemoryEvent(
                "alloc" if born else "free",
                life.uid,
                life.size_bytes,
                index,
                phase,
                step,
                life.component,
                life.shape,
                life.dtype,
                life.module,
                life.source,
                life.op,
            )

    # -- inside -----------------------------------------------------------------------------------------------------------------------

    def _born(
        self,
        size: int,
        tensor: torch.Tensor | None,
        op: str,
        component: str | None,
        module: str | None = None,
    ) -> _Life:
        life = _Life(self._next, size, tensor, component or _BORN_IN[self.phase], self.phase)
        self._next += 1
        if self._watch is not None and not self._next % 256:
            self._watch()
        life.op, life.module = op, self.module() if module is None else module
        if size >= _SMALLEST_WITH_SOURCE_BYTES and component is None:
            life.source = source_line(sys._getframe(2))
        if size:
            self._log.append((True, life, self.phase, self.step))
        return life

    def _died(self, grave: Any) -> None:
        life, _ = self._live.pop(grave.key, (None, None))
        self._made_by.pop(grave.key, None)
        self._shares.forget(grave.key)
        if life is not None and life.size_bytes:
            self._log.append((False, life, self.phase, self.step))

    def _resize(self, key: int, size: int, tensor: torch.Tensor | None) -> None:
        old, grave = self._live[key]
        if old.size_bytes:
            self._log.append((False, old, self.phase, self.step))
        life = self._born(size, tensor, old.op, old.component, old.module)
        if tensor is None:
            life.shape, life.dtype = old.shape, old.dtype
        self._live[key] = (life, grave)

    def _changes_only_values(self, func: Any, args: tuple[Any, ...]) -> bool:
        """In place, on a list as long as the model: no storage is born, and fakes have no values. Step counters (one
        element) do."""
        first = args[0][0]
        return (
            not func._schema.returns and first.numel() > 1 and first.device.type == self.device_type
        )

    def _remember(self, output: torch.Tensor, op: str, args: tuple[Any, ...]) -> None:
        """What a one-element tensor was made by; a sum that is compared with the number of its terms asks "all?"."""
        if op in ("aten::sum", "aten::sum.dim_IntList"):
            op = f"aten::sum of {args[0].numel()}"
        elif op == "aten::eq.Scalar" and self.maker_of(args[0]) == f"aten::sum of {args[1]}":
            op = "aten::all"
        self._made_by[output.untyped_storage()._cdata] = op

    def _flash(self, size: int, op: str) -> None:
        """Bytes that live only while the kernel runs."""
        self.hidden_ops.add(op)
        life = self._born(size, None, op, "workspace")
        self._log.append((False, life, self.phase, self.step))


_DEVICE_OF = torch.ops.prim.device.default
"""What autograd and autocast ask of every fake tensor, more often than there are operators."""


def _device_of(tensor: Any) -> torch.device:
    """What FakeTensor's own handler answers."""
    return _META if tensor.fake_mode.in_kernel_invocation else tensor.fake_device


_META = torch.device("meta")
_ASKS_FOR_VALUES = {
    "aten::_local_scalar_dense": "",
    "aten::equal": "aten::equal",
    "aten::allclose": "aten::equal",
}
"""Operators that give Python a value, and what they are an answer to where that is known."""

_GUESSES = frozenset(_BORN_IN.values())
_PLAIN = {torch.Tensor, torch.nn.Parameter}
_WRAPS: dict[type, bool] = {}


def _wraps(kind: type) -> bool:
    """Whether this type of tensor holds others inside."""
    answer = _WRAPS.get(kind)
    if answer is None:
        answer = _WRAPS[kind] = hasattr(kind, "__tensor_flatten__")
    return answer


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, (tuple, list)):
        for item in output:
            yield from _tensors(item)


def parts_of(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors that a tensor is made of: itself, or those inside a wrapper."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        part = getattr(tensor, name)
        if isinstance(part, torch.Tensor):  # a DTensor's parts include its mesh
            yield from parts_of(part)
