"""Storages of each operator, on real and on fake tensors: `python -m benchmarks.estimator
operators`.

torch tests its operators with samples of inputs (`op_db`). Each sample runs forward and backward on
the CPU under the tracer's recorder, once on real tensors and once on fake ones. Sizes and order of
the new storages must be equal. Each difference is printed with one example: if a model uses that
operator, the trace is wrong by those bytes.
"""

from __future__ import annotations

import sys
import types
import unittest
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from memagent.estimator.trace.recorder import StorageRecorder
from memagent.estimator.trace.torch_patches import answer

SMALLEST_BYTES = 16
_SAMPLES = 12


@dataclass(frozen=True)
class Difference:
    """An operator with samples whose storages differ; `example` is the first."""

    operator: str
    samples: int
    example: str


def compare(dtype: torch.dtype) -> tuple[int, list[Difference]]:
    """Result: the number of compared samples, and the differences."""
    compared, counts, examples = 0, Counter[str](), dict[str, str]()
    for name, run, sample in _samples(dtype):
        try:
            real = _births(run, sample, StorageRecorder("cpu"))
        except Exception:  # noqa: BLE001  # samples that are meant to fail, or want another device
            continue
        compared += 1
        difference = _difference(real, run, sample)
        if difference is not None:
            counts[name] += 1
            examples.setdefault(name, difference)
    return compared, [
        Difference(name, count, examples[name]) for name, count in sorted(counts.items())
    ]


def main(dtypes: tuple[str, ...]) -> int:
    """Print the result for each dtype."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in dtypes:
        compared, differences = compare(getattr(torch, name))
        wrong = sum(difference.samples for difference in differences)
        print(f"-- {name}: {compared - wrong:,} of {compared:,} samples alike to the byte")
        for difference in differences:
            print(f"   {difference.operator}, {difference.samples} samples: {difference.example}")
    return 0


def _samples(dtype: torch.dtype) -> Iterator[tuple[str, Any, Any]]:
    for operator in _operators():
        if dtype not in operator.dtypes:
            continue
        trains = operator.supports_autograd and dtype in operator.backward_dtypes
        try:
            samples = list(operator.sample_inputs("cpu", dtype, requires_grad=trains))[:_SAMPLES]
        except Exception:  # noqa: BLE001  # needs a package or a device that is not here
            continue
        for sample in samples:
            yield operator.name, operator.op, ((sample.input, *sample.args), sample.kwargs)


def _operators() -> list[Any]:
    if (
        "expecttest" not in sys.modules
    ):  # torch's test code imports it, and uses it for something else
        stub = types.ModuleType("expecttest")
        stub.TestCase, stub.assert_expected_inline = unittest.TestCase, None  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stub
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def _births(run: Any, sample: Any, recorder: StorageRecorder) -> list[tuple[str, int]]:
    """Return the operators and byte sizes of forward and backward, sorted: the order of equal steps
    may differ.
    """
    arguments, keywords = sample
    with recorder:
        recorder.phase = "forward"
        output = run(*arguments, **keywords)
        recorder.phase = "backward"
        leaves = [
            leaf
            for leaf in tree_leaves(output)
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]
        if leaves:
            torch.autograd.backward(leaves, [torch.ones_like(leaf) for leaf in leaves])
    for leaf in tree_leaves(sample):
        if isinstance(leaf, torch.Tensor):
            leaf.grad = None
    return sorted(
        (event.op, event.size_bytes)
        for event in recorder.events()
        if event.kind == "alloc" and event.op and event.size_bytes >= SMALLEST_BYTES
    )


def _difference(real: list[tuple[str, int]], run: Any, sample: Any) -> str | None:
    mode = FakeTensorMode()
    fake = tree_map(
        lambda leaf: mode.from_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf, sample
    )
    try:
        with mode:
            traced = _births(run, fake, StorageRecorder("cpu", answer=answer))
    except Exception as error:  # noqa: BLE001  # is a row
        return f"not traced: {type(error).__name__}: {str(error).splitlines()[0][:100]}"
    more, less = Counter(traced) - Counter(real), Counter(real) - Counter(traced)
    if not more and not less:
        return None
    return f"traced {dict(more)} for {dict(less)}"
