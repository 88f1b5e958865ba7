"""Cases. `small()` runs anywhere; `large()` has the same kinds at sizes that fill some GiB of a
GPU, for `record`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch

from benchmarks.estimator import architectures, families, language, public, ranks, vision
from benchmarks.estimator.optimizers import optimizer_named
from benchmarks.estimator.workload import Case, Workload

_BF16: dict[str, Any] = {"autocast": "bfloat16"}
_AGAIN: dict[str, Any] = {"checkpointing": "non_reentrant"}
_AGAIN_OLD: dict[str, Any] = {"checkpointing": "reentrant"}

_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("mlp", {}),
    "mlp sgd": ("mlp", {"optimizer": "sgd"}),
    "mlp momentum": ("mlp", {"optimizer": "momentum"}),
    "mlp foreach": ("mlp", {"optimizer": "adamw_foreach"}),
    "mlp fused": ("mlp", {"optimizer": "adamw_fused"}),
    "mlp amsgrad": ("mlp", {"optimizer": "amsgrad"}),
    "mlp rmsprop": ("mlp", {"optimizer": "rmsprop"}),
    "mlp 8-bit": ("mlp", {"optimizer": "adamw_8bit"}),
    "mlp adafactor": ("mlp", {"optimizer": "adafactor"}),
    "mlp autocast": ("mlp", _BF16),
    "mlp bf16": ("mlp", {"dtype": "bfloat16"}),
    "mlp accumulated": ("mlp", {"accumulation": 4}),
    "mlp one by one": ("mlp", {"optimizer": "adamw_single"}),
    "mlp scaled": ("mlp", {"autocast": "float16", "scaler": True}),
    "mlp clipped": ("mlp", {"optimizer": "adamw_foreach", "clip_norm": 1.0}),
    "mlp ddp": ("mlp", {"parallel": "ddp"}),
    "resnet": ("resnet", {"optimizer": "momentum"}),
    "resnet adamw": ("resnet", {}),
    "resnet autocast": ("resnet", {"optimizer": "momentum", **_BF16}),
    "resnet checkpointed": ("resnet", {"optimizer": "momentum", **_AGAIN}),
    "resnet accumulated": ("resnet", {"optimizer": "momentum", "accumulation": 2}),
    "unet": ("unet", {}),
    "unet autocast": ("unet", _BF16),
    "unet checkpointed": ("unet", _AGAIN),
    "diffusion": ("diffusion", {}),
    "diffusion autocast": ("diffusion", {"optimizer": "adamw_8bit", **_BF16}),
    "decoder": ("decoder", {}),
    "decoder foreach": ("decoder", {"optimizer": "adamw_foreach"}),
    "decoder autocast": ("decoder", _BF16),
    "decoder checkpointed": ("decoder", _AGAIN),
    "decoder checkpointed, reentrant": ("decoder", _AGAIN_OLD),
    "decoder accumulated": ("decoder", {"accumulation": 4, "optimizer": "sgd"}),
    "decoder lora": ("decoder", {"lora": True}),
    "decoder output dropped": ("decoder", {"holds_output": False}),
    "decoder ddp, views": ("decoder", {"parallel": "ddp_views", **_BF16}),
    "decoder fsdp2": ("decoder", {"parallel": "fsdp2"}),
    "decoder fsdp2, checkpointed": ("decoder", {"parallel": "fsdp2", **_AGAIN}),
    "encoder": ("encoder", {}),
    "moe": ("moe", {}),
    "moe autocast": ("moe", _BF16),
    "scan": ("scan", {}),
    "scan checkpointed": ("scan", _AGAIN),
    "lstm": ("lstm", {}),
    "lstm momentum": ("lstm", {"optimizer": "momentum"}),
    "graph": ("graph", {}),
    "graph autocast": ("graph", _BF16),
    "gpt2": ("gpt2", {}),
    "gpt2 eager": ("gpt2", {"attention": "eager"}),
    "gpt2 autocast": ("gpt2", _BF16),
    "gpt2 checkpointed": ("gpt2", _AGAIN),
    "gpt2 accumulated": ("gpt2", {"accumulation": 2, **_BF16}),
    "gpt2 lora": ("gpt2", {"lora": True}),
    "gpt2 scaled, clipped": ("gpt2", {"autocast": "float16", "scaler": True, "clip_norm": 1.0}),
    "gpt2 ddp": ("gpt2", {"parallel": "ddp"}),
    "gpt2 fsdp2": ("gpt2", {"parallel": "fsdp2", "optimizer": "adamw_foreach"}),
    "gpt2 as the Trainer": ("gpt2", {"holds_output": False, **_BF16}),
    "bert": ("bert", {}),
    "bert autocast 8-bit": ("bert", {"optimizer": "adamw_8bit", **_BF16}),
    "llama": ("llama", {}),
    "llama bf16 checkpointed": (
        "llama",
        {"dtype": "bfloat16", "optimizer": "adamw_foreach", **_AGAIN},
    ),
    "llama lora checkpointed": ("llama", {"lora": True, "dtype": "bfloat16", **_AGAIN_OLD}),
    "llama accumulated": ("llama", {"accumulation": 2}),
    "mixtral": ("mixtral", {}),
    "t5": ("t5", {}),
    "t5 adafactor": ("t5", {"optimizer": "adafactor", **_AGAIN}),
    "mamba": ("mamba", {}),
    "vit": ("vit", {}),
    "vit autocast": ("vit", {"optimizer": "momentum", **_BF16}),
}

_QUICK = (
    "mlp", "mlp 8-bit", "mlp accumulated", "resnet", "unet checkpointed", "decoder autocast", "decoder lora", "lstm", "graph", "gpt2",
)  # fmt: skip
_WITH_ALLOCATORS = ("gpt2", "decoder autocast", "unet", "llama", "moe", "resnet autocast")
_COMPILED = ("mlp foreach", "resnet autocast", "decoder autocast", "gpt2", "llama", "vit")
_ALLOCATORS = (
    "expandable_segments:True",
    "max_split_size_mb:64",
    "roundup_power2_divisions:8",
    "garbage_collection_threshold:0.6,max_split_size_mb:128",
    "expandable_segments:True,roundup_power2_divisions:4",
)


def small(*, quick: bool = False) -> list[Case]:
    """Return every case, or a few of as many kinds as possible."""
    cases = [Case(name, family, **rest) for name, (family, rest) in _CASES.items()]
    return [case for case in cases if case.name in _QUICK] if quick else cases


def large() -> list[Case]:
    """Return the same cases at the size of real trainings."""
    return [replace(case, name=f"{case.name}, large", size="large") for case in small()]


def with_allocators() -> list[Case]:
    """Return some large cases with other settings of the allocator."""
    cases = [case for case in large() if case.name.removesuffix(", large") in _WITH_ALLOCATORS]
    return [
        replace(case, name=f"{case.name}, {settings}", allocator=settings)
        for settings in _ALLOCATORS
        for case in cases
    ]


def compiled() -> list[Case]:
    """Return some large cases with `torch.compile`."""
    cases = [case for case in small() if case.name in _COMPILED]
    return [
        replace(case, name=f"{case.name} compiled, large", compiled=True, size="large")
        for case in cases
    ]


def configure(case: Case) -> None:
    """Apply the case's settings to torch's allocator, before it is first used."""
    if case.allocator is not None:
        torch.cuda.memory._set_allocator_settings(case.allocator)


def missing(case: Case) -> str | None:
    """Return the missing package that this case needs, if any."""
    if case.family in vision.FAMILIES:
        needs = vision.needed(case.family)
    else:
        needs = [] if case.family in families.FAMILIES else ["transformers"]
        needs += ["peft"] if needs and case.lora else []
    return next((package for package in needs if find_spec(package) is None), None)


def build(case: Case, device: str | None = "cpu", *, seed: int = 0) -> Workload:
    """Build the case directly on `device` and in its dtype: nothing is moved, so it also works on
    fake and meta tensors.

    Without a device, torch's current default is used.
    """
    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = case.cudnn_benchmark
    builders = (
        families.FAMILIES
        | language.FAMILIES
        | public.FAMILIES
        | architectures.FAMILIES
        | vision.FAMILIES
    )
    with _defaults(case, device):
        model, batch, loss = builders[case.family](case)
        model.train()
        if device != "meta":
            model = ranks.spread(model, case, ranks.device_type(device))
        if case.compiled:
            model.compile()
        optimizer = optimizer_named(case.optimizer, model.parameters())

    def make_batch() -> tuple[families.Tensors, families.Tensors]:
        with _defaults(case, device):
            return batch()

    scaler = torch.amp.GradScaler(device or "cpu") if case.scaler else None
    return Workload(case, model, make_batch, loss, optimizer, device or "cpu", scaler)


@contextmanager
def _defaults(case: Case, device: str | None) -> Iterator[None]:
    """Create new tensors on the device, and in the case's dtype unless they name one."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, case.dtype))
    try:
        with torch.device(device) if device else nullcontext():
            yield
    finally:
        torch.set_default_dtype(before)
