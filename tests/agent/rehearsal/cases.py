"""Scripts that run under the rehearsal device: `python cases.py NAME` prints what it saw as JSON.

They use torch only, and the interpreter of a CUDA build of it. With `computed` as the second
argument, small tensors have values.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from memagent.rehearsal.measurement import peak_resident_bytes

GIB = 1 << 30
MIB = 1 << 20


def rounded(size: int) -> int:
    return (size + 511) // 512 * 512


def basics() -> dict[str, Any]:
    """Properties, the allocator's statistics, values of small tensors, an out-of-memory error."""
    properties = torch.cuda.get_device_properties(0)
    large = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    blocks = [torch.empty(n, dtype=torch.uint8, device="cuda") for n in (4000, 3 * MIB, 11 * MIB)]
    stats = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    del blocks
    torch.cuda.memory._record_memory_history(max_entries=1000)
    try:
        torch.empty(total, dtype=torch.uint8, device="cuda")
        error = ""
    except torch.OutOfMemoryError as caught:
        error = str(caught)
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    pinned = torch.empty(100).pin_memory()
    return {
        "count": torch.cuda.device_count(),
        "name": properties.name,
        "capability": torch.cuda.get_device_capability(),
        "multiprocessors": properties.multi_processor_count,
        "l2": properties.L2_cache_size,
        "shared": properties.shared_memory_per_block_optin,
        "threads": properties.max_threads_per_multi_processor,
        "warp": properties.warp_size,
        "total": total,
        "used": total - free,
        "allocated": stats["allocated_bytes.all.current"],
        "reserved": stats["reserved_bytes.all.current"],
        "error": error,
        "ooms": torch.cuda.memory_stats()["num_ooms"],
        "actions": [entry["action"] for entry in trace],
        "numbers": torch.arange(10).cuda().cpu().tolist(),
        "zeros": torch.zeros(5, device="cuda").tolist(),
        "pinned": [pinned.is_pinned(), torch.empty(3).is_pinned()],
        "large_is_cuda": large.is_cuda,
    }


def mlp() -> dict[str, Any]:
    """An MLP with Adam: each figure beside the same by arithmetic."""
    batch, width, hidden = 512, 1024, 4096
    model = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    sizes = (hidden * width, hidden, width * hidden, width)
    parameters = sum(rounded(4 * n) for n in sizes)
    seen = {"parameters": torch.cuda.memory_allocated(), "parameters_expected": parameters}
    inputs = torch.randn(batch, width, device="cuda")
    targets = torch.randn(batch, width, device="cuda")
    for _ in range(4):
        torch.cuda.reset_peak_memory_stats()
        optimizer.zero_grad()
        loss = functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    held = torch.cuda.memory_allocated()
    data = 2 * rounded(4 * batch * width)
    result = rounded(loss.untyped_storage().nbytes())  # the mean's, and the squares' before it
    seen["workspaces"] = held - 4 * parameters - data - result
    seen["peak"] = torch.cuda.max_memory_allocated()
    seen["peak_expected"] = held + parameters
    seen["loss"] = loss.item()
    return seen


def segments() -> dict[str, Any]:
    """Fragmentation under a fraction of the memory; run with and without expandable segments."""
    torch.cuda.set_per_process_memory_fraction(0.05)
    kept, holes = [], []
    for _ in range(100):
        kept.append(torch.empty(3 * MIB, dtype=torch.uint8, device="cuda"))
        holes.append(torch.empty(7 * MIB, dtype=torch.uint8, device="cuda"))
    reserved = torch.cuda.memory_reserved()
    holes.clear()
    large = []
    try:
        while True:
            large.append(torch.empty(60 * MIB, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as error:
        text = str(error)
    snapshot = torch.cuda.memory_snapshot()
    count = len(large)
    large.clear()
    kept.clear()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return {
        "reserved": reserved,
        "expandable": sorted({segment["is_expandable"] for segment in snapshot}),
        "large": count,
        "error": text,
        "reserved_after": torch.cuda.memory_reserved(),
        "used_after": total - free,
    }


class Block(nn.Module):
    """A block of GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, steps, width = x.shape
        q, k, v = (
            part.view(batch, steps, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, steps, width))
        return x + self.mlp(self.norms[1](x))


class Gpt(nn.Module):
    """A small GPT-2."""

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.blocks(self.embedding(tokens)))
        return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def gpt() -> dict[str, Any]:
    """bf16 autocast, scaled_dot_product_attention, clipping, AdamW."""
    model = Gpt(50_304, 768, 12, 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, 50_304, (4, 512), device="cuda")
    for _ in range(3):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return {**memory(), "loss": loss.item()}


def tied() -> dict[str, Any]:
    """One weight for words and logits: autograd adds its two gradients into a third tensor."""
    words, logits = nn.Embedding(8192, 256), nn.Linear(256, 8192, bias=False)
    logits.weight = words.weight
    model = nn.Sequential(words, logits).cuda()
    model(torch.randint(0, 8192, (64,), device="cuda")).logsumexp(-1).mean().backward()
    return memory()


def residual() -> dict[str, Any]:
    """Convolutions and batch norms in channels-last, fp16 with GradScaler."""

    def unit(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))

    model = nn.Sequential(
        unit(3, 64, 2), unit(64, 128, 2), unit(128, 256, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(256, 1000),
    ).cuda()  # fmt: skip
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    images = torch.randn(16, 3, 224, 224, device="cuda")
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (16,), device="cuda")
    for _ in range(3):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return {**memory(), "scale": scaler.get_scale(), "loss": loss.item()}


def recurrent() -> dict[str, Any]:
    """LSTM, GRU and a projected LSTM, forward and backward."""
    for net in (
        nn.LSTM(64, 128, 2, batch_first=True, bidirectional=True, dropout=0.1),
        nn.GRU(64, 128, 2, batch_first=True),
        nn.RNN(64, 128, batch_first=True, bias=False),
        nn.LSTM(64, 128, proj_size=32, batch_first=True),
    ):
        output, _ = net.cuda()(torch.randn(8, 20, 64, device="cuda"))
        output.sum().backward()
    return {**memory(), "shape": list(output.shape)}


def graphs() -> dict[str, Any]:
    """Capture of forward and backward after a warm-up on a side stream, replay, pools."""
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).cuda()
    inputs = torch.randn(32, 256, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(inputs).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        branch = torch.cuda.Stream()
        branch.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(branch):
            extra = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
            captures = torch.cuda.is_current_stream_capturing()
        torch.cuda.current_stream().wait_stream(branch)
        model(inputs).sum().backward()
    graph.replay()
    pools = {tuple(segment["segment_pool_id"]) for segment in torch.cuda.memory_snapshot()}
    private = [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) != (0, 0)]
    return {
        "pools": len(pools),
        "branch_captures": captures,
        "private_bytes": sum(segment["total_size"] for segment in private),
        "capturing_after": torch.cuda.is_current_stream_capturing(),
        "extra": extra.numel(),
    }


def two_devices() -> dict[str, Any]:
    """Memory of two devices is apart; copies between them keep small values."""
    first = torch.arange(1000, device="cpu").to("cuda:0")
    second = first.to("cuda:1")
    large = torch.empty(GIB, dtype=torch.uint8, device="cuda:1")
    return {
        "count": torch.cuda.device_count(),
        "allocated": [torch.cuda.memory_allocated(device) for device in (0, 1)],
        "last": second[-1].item(),
        "uuids": len({str(torch.cuda.get_device_properties(d).uuid) for d in (0, 1)}),
        "large": large.numel(),
    }


def readings() -> dict[str, Any]:
    """What NVML says of this process, and of the device."""
    import pynvml

    held = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return {
        "name": pynvml.nvmlDeviceGetName(handle),
        "total": pynvml.nvmlDeviceGetMemoryInfo(handle).total,
        "used": pynvml.nvmlDeviceGetMemoryInfo(handle).used,
        "processes": [(p.pid, p.usedGpuMemory) for p in processes],
        "pid": os.getpid(),
        "torch_used": torch.cuda.device_memory_used(),
        "held": held.numel(),
    }


class LlamaBlock(nn.Module):
    """A block of a 7B Llama."""

    def __init__(self, width: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, steps, width = x.shape
        normed = self.norms[0](x)
        q, k, v = (
            layer(normed).view(batch, steps, self.heads, -1).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, steps, width))
        normed = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


def llama() -> dict[str, Any]:
    """Two steps of AdamW on 6.7 billion bf16 parameters."""
    began = time.monotonic()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        embedding = nn.Embedding(32_000, 4096)
        blocks = nn.Sequential(*(LlamaBlock(4096, 11_008, 32) for _ in range(32)))
        head = nn.Linear(4096, 32_000, bias=False)
    parameters = [p for part in (embedding, blocks, head) for p in part.parameters()]
    optimizer = torch.optim.AdamW(parameters)
    tokens = torch.randint(0, 32_000, (1, 2048), device="cuda")
    for _ in range(2):
        logits = head(blocks(embedding(tokens)))
        functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {
        **memory(),
        "parameters": sum(p.numel() for p in parameters),
        "parameter_bytes": sum(rounded(2 * p.numel()) for p in parameters),
        "seconds": time.monotonic() - began,
        "processor_seconds": time.process_time(),
        "host_bytes": peak_resident_bytes(),
    }


def sharded() -> dict[str, Any]:
    """One rank of eight: FSDP2 of a Llama's blocks, then DDP."""
    from torch import distributed
    from torch.distributed.fsdp import fully_shard

    distributed.init_process_group("nccl", rank=0, world_size=8, store=distributed.HashStore())
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        blocks = nn.Sequential(*(LlamaBlock(4096, 11_008, 32) for _ in range(4)))
    whole = torch.cuda.memory_allocated()
    for block in blocks:
        fully_shard(block)
    fully_shard(blocks)
    shard = torch.cuda.memory_allocated()
    optimizer = torch.optim.AdamW(blocks.parameters())
    inputs = torch.randn(1, 2048, 4096, device="cuda")
    for _ in range(2):
        blocks(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    steps = memory()
    model = nn.parallel.DistributedDataParallel(nn.Linear(1024, 1024).cuda(), device_ids=[0])
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    gathered = torch.empty(8 * 3, device="cuda", dtype=torch.int64)
    distributed.all_gather_into_tensor(gathered, torch.tensor([1, 2, 3], device="cuda"))
    distributed.destroy_process_group()
    return {**steps, "whole": whole, "shard": shard, "gathered": gathered.tolist()}


def sorting() -> dict[str, Any]:
    """Sorts and scans by CUB, as in the backward of an embedding."""
    embedding = nn.Embedding(1000, 64).cuda()
    tokens = torch.zeros(8, 4096, dtype=torch.int64, device="cuda")
    embedding(tokens).sum().backward()
    torch.randn(100_000, device="cuda").sort()
    torch.randn(100_000, device="cuda").cumsum(0)
    return {"rows": list(embedding.weight.grad.shape)}


def ending() -> dict[str, Any]:
    """A thread in C asks for Python's lock while Python ends. If that ends it, the status is 7."""
    libc = ctypes.PyDLL(None)
    key = ctypes.c_uint()
    libc.pthread_key_create(ctypes.byref(key), ctypes.cast(libc._exit, ctypes.c_void_p))

    def wait() -> None:
        libc.pthread_setspecific(key, ctypes.c_void_p(7))
        while True:
            ctypes.CDLL(None).usleep(50_000)

    threading.Thread(target=wait, daemon=True).start()
    ending.last = Last()  # type: ignore[attr-defined]
    return {"threads": threading.active_count()}


class Last:
    """An object that is deleted while Python ends, which takes a second."""

    def __del__(self, sleep: Any = time.sleep) -> None:
        sleep(1.0)


def values() -> dict[str, Any]:
    """Values of small tensors, and sizes that depend on them."""
    x = torch.arange(10, device="cuda").float()
    occupied = torch.full((1000,), 7.5, device="cuda")
    del occupied
    large = torch.randn(4096, 4096, device="cuda")
    seen = {
        "zeros": torch.zeros(5, device="cuda").tolist(),
        "empty": torch.empty(1000, device="cuda").sum().item(),
        "sum": x.sum().item(),
        "product": (x @ x).item(),
        "nonzero": (x > 6).nonzero().flatten().tolist(),
        "masked": [x[x > 7].tolist(), torch.masked_select(x, x < 2).tolist()],
        "bincount": torch.bincount(torch.tensor([1, 1, 3]).cuda()).tolist(),
        "repeated": torch.repeat_interleave(torch.tensor([1, 2]).cuda()).tolist(),
        "unique": torch.unique(torch.tensor([3, 1, 3]).cuda()).tolist(),
        "histogram": torch.histc(x, 5).tolist(),
        "equal": [torch.equal(x, x), torch.equal(x, x + 1), torch.allclose(x, x)],
        "large": [large.sum().item(), *large[large > 0].shape],
    }
    x[x > 8] = 0
    source = torch.ones(4, device="cuda", requires_grad=True)
    (2 * x.masked_scatter(x > 6, source)).sum().backward()
    seen["scattered"] = source.grad.tolist()
    return {**seen, "assigned": x[-2:].tolist(), **learning()}


def experts() -> dict[str, Any]:
    """A router of 4,096 tokens, whose features are large: the tokens of each expert."""
    router, tokens = nn.Linear(1024, 8).cuda(), torch.randn(4096, 1024, device="cuda")
    scores = functional.softmax(router(tokens), -1)
    chosen = scores.topk(2)[1]
    hits = functional.one_hot(chosen, 8).permute(2, 1, 0)
    return {
        "one_by_one": [len(torch.where(hits[expert])[0]) for expert in range(8)],
        "best": [int((scores.max(-1)[1] == expert).sum()) for expert in range(8)],
    }


def learning() -> dict[str, Any]:
    """A small classifier in fp16 with GradScaler: it learns."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cuda")
    data = torch.randn(32, 8, device="cuda")
    labels = (data[:, 0] > 0).long()
    losses = []
    for _ in range(20):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = functional.cross_entropy(model(data), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": losses, "scale": scaler.get_scale()}


def memory() -> dict[str, int]:
    """Return the allocator's peaks, and how often it had to try again."""
    stats = torch.cuda.memory_stats()
    return {
        "peak": stats["allocated_bytes.all.peak"],
        "reserved": stats["reserved_bytes.all.peak"],
        "held": stats["allocated_bytes.all.current"],
        "retries": stats["num_alloc_retries"],
    }


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    case.__name__: case
    for case in (
        basics, mlp, segments, gpt, tied, residual, recurrent, graphs, two_devices, readings, llama,
        sharded, sorting, ending, values, experts,
    )
}  # fmt: skip


def mode_of(option: str) -> AbstractContextManager[Any]:
    """Return the mode in which small tensors have values, or nothing."""
    if option != "computed":
        return nullcontext()
    from memagent.rehearsal.values import SmallValues

    return SmallValues()


if __name__ == "__main__":
    case_name, *options = sys.argv[1:]
    with mode_of(options[0] if options else ""):
        result = CASES[case_name]()
    print(json.dumps({"case": case_name, **result}), flush=True)
