"""Cost of an estimate by trace: `python -m benchmarks.estimator speed`.

Each model is built from a config of `transformers`, traced for two steps for CUDA, and replayed in
the simulated allocator, on one core. Times are seconds of that core for the whole answer of
`memagent.estimate`, with libraries already imported; the wall clock's time is printed as well.
Growth is the memory that the tracing process added. Each figure is the minimum of a few runs.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memagent.estimator import engine
from memagent.estimator.huggingface import request_for_config
from memagent.units import MIB

_RUNS = 3

_GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
_LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
_70B = {
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28_672,
}
_MIXTRAL = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}

MODELS: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    "bert-base": ({"model_type": "bert"}, {"batch": 8, "sequence": 512}, 1.0),
    "gpt2": (_GPT2, {"batch": 8, "sequence": 1024}, 1.0),
    "vit-b-16": ({"model_type": "vit", "architectures": ["ViTForImageClassification"]}, {"batch": 8}, 1.0),
    "gpt2-medium": ({**_GPT2, "n_embd": 1024, "n_layer": 24, "n_head": 16}, {"batch": 8, "sequence": 1024}, 1.0),
    "bert-large": (
        {"model_type": "bert", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
        {"batch": 8, "sequence": 512}, 1.0,
    ),
    "llama-7b": (_LLAMA, {"batch": 1, "sequence": 2048, "precision": "bf16"}, 3.0),
    "llama-7b, recomputed": (
        _LLAMA, {"batch": 1, "sequence": 2048, "precision": "bf16", "checkpointing": "non_reentrant"}, 3.0,
    ),
    "mixtral-8x7b": (_MIXTRAL, {"batch": 1, "sequence": 2048, "precision": "bf16"}, 10.0),
    "llama-70b": ({**_LLAMA, **_70B}, {"batch": 1, "sequence": 2048, "precision": "bf16"}, 10.0),
}  # fmt: skip
"""By name: the config, the training, and the maximum processor time in seconds."""


@dataclass(frozen=True)
class Cost:
    """Processor and wall time of a whole estimate, wall time of its replay, and memory growth.

    `growth_bytes` is what the tracing process added.
    """

    parameters: int
    events: int
    cpu_s: float
    wall_s: float
    replay_s: float
    growth_bytes: int


def cost(config: dict[str, Any], training: dict[str, Any]) -> Cost:
    """Measure one estimate."""
    request = request_for_config(config, **training)
    began, busy = time.perf_counter(), _cpu_s()
    trace = engine.record(request)
    traced = time.perf_counter()
    engine.estimate_trace(request, trace)
    done = time.perf_counter()
    return Cost(
        trace.parameters,
        len(trace.events),
        _cpu_s() - busy,
        done - began,
        done - traced,
        trace.growth_bytes,
    )


def _cpu_s() -> float:
    """Return the processor time of this process and its finished children, such as a trace."""
    mine, children = (
        resource.getrusage(resource.RUSAGE_SELF),
        resource.getrusage(resource.RUSAGE_CHILDREN),
    )
    return mine.ru_utime + mine.ru_stime + children.ru_utime + children.ru_stime


def main(only: Sequence[str] | None = None) -> int:
    """Print the table. Return 1 if a model exceeds its time or 300 MiB of growth, else 0."""
    import torch

    torch.set_num_threads(1)
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(
        f"{'':22}{'parameters':>14}{'events':>9}{'core':>9}{'clock':>9}{'replay':>9}{'growth':>10}   at most"
    )
    late = 0
    for name, (config, training, limit_s) in MODELS.items():
        if only and name not in only:
            continue
        cheapest = min((cost(config, training) for _ in range(_RUNS)), key=lambda one: one.cpu_s)
        is_late = cheapest.cpu_s > limit_s or cheapest.growth_bytes > 300 * MIB
        late += is_late
        print(
            f"{name:22}{cheapest.parameters:>14,}{cheapest.events:>9,}{cheapest.cpu_s:>7.2f} s{cheapest.wall_s:>7.2f} s"
            f"{cheapest.replay_s:>7.2f} s{cheapest.growth_bytes / MIB:>6.0f} MiB   {limit_s:g} s{' <- over' * is_late}"
        )
    return 1 if late else 0
