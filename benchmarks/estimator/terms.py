"""What this GPU's context and libraries take, inside and outside of torch's allocator, by step:
`python -m benchmarks.estimator terms --out FILE [--jobs N] [--seconds S]`.

1. A sequence is a process: CUDA starts with one kernel (`context`), then each step uses one thing
   for the first time. After each step stand the bytes outside of the allocator, and what it has
   reserved and given out.
2. Each step is also taken alone, right after the context, so its price doesn't depend on the
   order. All of them follow each other in the sequences `all`, with kernels loaded as they are
   needed (`lazy`, the default) and all at once (`eager`: CUDA_MODULE_LOADING).
3. A step that fails is kept with its error, and the sequence goes on.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.estimator import isolated, record
from benchmarks.estimator.process_memory import ProcessMemory

_TIMEOUT_S = 60.0
Step = Callable[[], Any]


def main(
    out: Path, *, jobs: int = 1, seconds: float | None = None, only: Collection[str] = ()
) -> int:
    """Measure all sequences and write the file. Return 1 if there is no GPU."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # the other check forbids forks
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    machine = isolated.call(partial(record.machine, "cuda"))
    if machine.value is None:
        print(f"there is nothing to measure: {machine.error}", file=sys.stderr)
        return 1
    sequences: list[dict[str, Any]] = []
    tasks = [
        isolated.Task(name, partial(measure, steps, loading), timeout_s=_TIMEOUT_S)
        for name, steps, loading in _sequences()
        if not only or name in only
    ]
    jobs = jobs if machine.value["is_own"] else 1  # the whole device is read
    for task, result in isolated.outcomes(tasks, jobs=jobs, seconds=seconds):
        row = {"name": task.name, "error": result.error, **(result.value or {})}
        sequences.append(row)
        print(f"{task.name}: {result.error or _line(row)}", flush=True)
        content = {"kind": "terms", **machine.value, "sequences": sequences}
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(content, indent=1) + "\n")
    return 0


def _sequences() -> Iterator[tuple[str, tuple[str, ...], str]]:
    everything = tuple(_STEPS)
    yield "all, lazy", everything, "LAZY"
    yield "all, eager", everything, "EAGER"
    yield "nothing, eager", (), "EAGER"
    for name in _STEPS:
        yield name, (name,), "LAZY"


def _line(row: dict[str, Any]) -> str:
    begin, end = row["steps"][0], row["steps"][-1]
    grown = end["outside_bytes"] - begin["outside_bytes"]
    return f"context {begin['outside_bytes'] >> 20} MiB, then {grown >> 20:+} MiB"


def measure(names: Iterable[str], loading: str) -> dict[str, Any]:
    """Take the steps in a process without CUDA so far. Return the bytes after each."""
    os.environ["CUDA_MODULE_LOADING"] = loading
    memory = ProcessMemory()
    memory.begin()
    steps = [{"step": "context", "error": "", **_sizes(memory)}]
    kept = []
    for name in names:
        error = ""
        try:
            kept.append(_STEPS[name]())
        except Exception as failure:  # noqa: BLE001 - the next steps don't need this one
            error = f"{type(failure).__name__}: {str(failure)[:200]}"
        steps.append({"step": name, "error": error, **_sizes(memory)})
    return {
        "loading": loading,
        "others_bytes": memory.others_bytes,
        "is_own": memory.is_own,
        "steps": steps,
    }


def _sizes(memory: ProcessMemory) -> dict[str, int]:
    return {
        "outside_bytes": memory.outside(),
        "reserved_bytes": torch.cuda.memory_reserved(),
        "allocated_bytes": torch.cuda.memory_allocated(),
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
    }


def _square(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(1024, 1024, device="cuda", dtype=dtype)


def _product(dtype: torch.dtype) -> None:
    _square(dtype) @ _square(dtype)


def _product_with_bias() -> None:
    """Take the path of cuBLASLt."""
    functional.linear(_square(torch.bfloat16), _square(torch.bfloat16), _square(torch.bfloat16)[0])


def _products_in_backward() -> None:
    layer = nn.Linear(1024, 1024, device="cuda")
    layer(_square()).sum().backward()


def _operators() -> None:
    """Use some twenty operators for the first time."""
    a = _square().requires_grad_()
    b = a.relu() + functional.gelu(a) + functional.silu(a) + a.sigmoid() + a.tanh() + a.exp().sqrt()
    b = functional.layer_norm(b, (1024,)) + b.softmax(-1) + functional.dropout(b, 0.1)
    b = torch.cat([b, b.t()], dim=1).cumsum(1).sort(1).values
    b = functional.embedding(torch.randint(1024, (64, 64), device="cuda"), b)
    (b.mean() + b.std() + functional.mse_loss(b, b.roll(1)) + b.index_select(0, _first())).sum()
    functional.cross_entropy(a, torch.randint(1024, (1024,), device="cuda")).backward()
    torch.nonzero(a > 1).unique()


def _first() -> torch.Tensor:
    return torch.zeros(64, dtype=torch.long, device="cuda")


def _attention(dtype: torch.dtype) -> None:
    query = torch.randn(4, 16, 1024, 64, device="cuda", dtype=dtype, requires_grad=True)
    functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()


def _convolution(*, half: bool = False, tuned: bool = False, dimensions: int = 2) -> None:
    torch.backends.cudnn.benchmark = tuned
    kind, size = (nn.Conv2d, (56, 56)) if dimensions == 2 else (nn.Conv3d, (16, 32, 32))
    layer = kind(64, 64, 3, padding=1, device="cuda")
    images = torch.randn(8, 64, *size, device="cuda", requires_grad=True)
    if half:
        layer, images = layer.to(memory_format=torch.channels_last), images.detach().contiguous(
            memory_format=torch.channels_last
        ).requires_grad_()  # fmt: skip
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        layer(images).sum().backward()


def _normalization() -> None:
    norm = nn.BatchNorm2d(64, device="cuda")
    norm(torch.randn(8, 64, 56, 56, device="cuda", requires_grad=True)).sum().backward()


def _recurrence() -> None:
    lstm = nn.LSTM(512, 512, 2, batch_first=True, device="cuda")
    lstm(torch.randn(16, 64, 512, device="cuda"))[0].sum().backward()


def _optimizer(**settings: bool) -> None:
    layer = nn.Linear(1024, 1024, device="cuda")
    layer.weight.grad, layer.bias.grad = torch.ones_like(layer.weight), torch.ones_like(layer.bias)
    torch.optim.AdamW(layer.parameters(), **settings).step()


def _solver() -> None:
    a = _square()[:256, :256]
    torch.linalg.cholesky(a @ a.t() + 256 * torch.eye(256, device="cuda"))
    torch.linalg.eigh(a + a.t())


def _sparse() -> None:
    torch.eye(256, device="cuda").to_sparse_csr() @ _square()[:256]


def _graph() -> Any:
    """Capture a CUDA graph and keep it."""
    x, graph = _square(), torch.cuda.CUDAGraph()
    (x @ x).relu()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = (x @ x).relu()
    graph.replay()
    return graph, x, y


def _compiled() -> None:
    """Run a Triton kernel."""
    torch.compile(lambda x: (x.relu() * 2 + 1).sin())(_square())


def _streams() -> Any:
    streams = [torch.cuda.Stream() for _ in range(8)]
    for stream in streams:
        with torch.cuda.stream(stream):
            _product(torch.float32)
    return streams


def _communicator() -> Any:
    """Start NCCL for this process alone, and reduce."""
    from torch import distributed

    if not distributed.is_initialized():
        store = distributed.HashStore()
        distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
    distributed.all_reduce(_square())


def _further_communicator() -> Any:
    from torch import distributed

    _communicator()
    group = distributed.new_group([0])
    distributed.all_reduce(_square(), group=group)
    return group


def _half_communicator() -> Any:
    """Reduce in another type, and gather: other kernels of NCCL."""
    from torch import distributed

    _communicator()
    x = _square(torch.bfloat16)
    distributed.all_reduce(x)
    distributed.all_gather_into_tensor(torch.empty_like(x), x)


_STEPS: dict[str, Step] = {
    "operators": _operators,
    "cublas fp32": partial(_product, torch.float32),
    "cublas bf16": partial(_product, torch.bfloat16),
    "cublaslt bf16": _product_with_bias,
    "backward": _products_in_backward,
    "attention bf16": partial(_attention, torch.bfloat16),
    "attention fp32": partial(_attention, torch.float32),
    "cudnn conv": _convolution,
    "cudnn conv, bf16, channels last": partial(_convolution, half=True),
    "cudnn conv, tuned": partial(_convolution, tuned=True),
    "cudnn conv 3d": partial(_convolution, dimensions=3),
    "batch norm": _normalization,
    "cudnn lstm": _recurrence,
    "adamw foreach": partial(_optimizer, foreach=True),
    "adamw fused": partial(_optimizer, fused=True),
    "cusolver": _solver,
    "cufft": lambda: torch.fft.fft(_square()),
    "cusparse": _sparse,
    "streams": _streams,
    "cuda graph": _graph,
    "nccl": _communicator,
    "nccl, second communicator": _further_communicator,
    "nccl, bf16 and gather": _half_communicator,
    "triton": _compiled,
}
