"""Bytes a value: how weights, gradients and activations are held, and what quantised weights take.

Sources: Micikevicius et al. 2018 (mixed precision) and Rajbhandari et al. 2020 (its bookkeeping);
Dettmers et al. 2022 (LLM.int8) and 2023 (QLoRA, section 3: blocks of 64, double quantisation in
blocks of 256); torch/amp/autocast_mode.py for what autocast keeps.
"""

from __future__ import annotations

import msgspec

from memagent.errors import OptionError, did_you_mean

BYTES_OF = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
    "int4": 0.5,
}


class Precision(msgspec.Struct, frozen=True):
    """Bytes of one value of each kind.

    - residual: the stream between layers.
    - master: the optimizer's fp32 copy of a weight (0: none).
    - state: a value of the optimizer's state if it follows the parameter's dtype.
    - casts: copies of weights that autocast, or fp8's kernels, hold until backward has used them.
    - stored: a linear layer's saved input if it differs from `compute` (fp8 saves one byte).
    """

    name: str
    weight: float
    gradient: float
    compute: float
    residual: float
    state: float
    master: float = 0.0
    casts: float = 0.0
    autocast: bool = False
    stored: float | None = None

    @property
    def saved_input(self) -> float:
        return self.compute if self.stored is None else self.stored


PRECISIONS = {
    "fp32": Precision("fp32", 4, 4, 4, 4, 4),
    "bf16": Precision("bf16", 2, 2, 2, 2, 2),
    "fp16": Precision("fp16", 2, 2, 2, 2, 2),
    "mixed": Precision("mixed", 2, 2, 2, 2, 4, master=4),
    "amp": Precision("amp", 4, 4, 2, 4, 4, casts=2, autocast=True),
    "bf16-amp": Precision("bf16-amp", 2, 2, 2, 2, 2, casts=2, autocast=True),
    "fp8": Precision("fp8", 2, 2, 2, 2, 4, master=4, casts=2, stored=1),
}
"""- `bf16`, `fp16`: everything in two bytes, as `model.to(torch.bfloat16)` does.
- `mixed`: two-byte weights and gradients, fp32 master copy and states (Apex O2, Megatron,
  DeepSpeed: 2 + 2 + 12 bytes a parameter with Adam).
- `amp`: torch.autocast over fp32 weights.
- `bf16-amp`: autocast over two-byte weights, as the Trainer does with `bf16=True` on a model loaded
  in bf16 or quantised (adapters are fp32).
- `fp8`: Transformer Engine over bf16 weights. It holds each weight in fp8 and transposed, and saves
  inputs in fp8.
"""


def sharded_precision(sizes: Precision) -> Precision:
    """Return the precision under FSDP: fp32 shards, gathered in two bytes if they are mixed.

    So nothing is cast again, and the stream between layers has two bytes
    (torch/distributed/fsdp/api.py, MixedPrecision). accelerate makes two-byte shards fp32 under
    autocast (`Accelerator.prepare_model`). fp8 stays as it is.
    """
    if sizes.name not in ("mixed", "amp", "bf16-amp"):
        return sizes
    return Precision(sizes.name, 4, 4, 2, 2, 4, autocast=sizes.autocast)


def default_precision(*, lora_rank: int | None, zero: int, kbit_training: str | None = None) -> str:
    """Return the usual precision: frozen weights are loaded in bf16, and ZeRO's masters are fp32.

    Without either, and with FSDP, weights are fp32 under autocast. A model prepared for k-bit
    training has fp32 parts, so it's trained under autocast.
    """
    if kbit_training is not None:
        return "bf16-amp"
    return "bf16" if lora_rank else "mixed" if zero in (1, 2) else "amp"


def precision_named(name: str) -> Precision:
    """Return the precision. Raises EstimateError that lists the known ones."""
    try:
        return PRECISIONS[name]
    except KeyError:
        choices = ", ".join(PRECISIONS)
        near = did_you_mean(name, PRECISIONS)
        raise OptionError(
            "precision", f"{name!r} is not known{near}: use one of {choices}"
        ) from None


QUANTISED = {
    "int8": 1.0,
    "fp8": 1.0,
    "int4": 0.5 + 2 / 128,
    "nf4": 0.5 + 4 / 64,
    "nf4-double": 0.5 + 1 / 64 + 4 / (64 * 256),
}
"""Bytes a value of a quantised weight, scales included.

NF4 has one fp32 scale for each block of 64 (0.0625 bytes). Double quantisation makes that one byte,
and adds an fp32 scale for each 256 blocks (0.0159; QLoRA section 3). int4 as in GPTQ has one fp16
scale for each 128 values."""


def quantised_bytes(name: str) -> float:
    """Return the bytes a value. Raises EstimateError that lists the known quantisations."""
    try:
        return QUANTISED[name]
    except KeyError:
        choices = ", ".join(QUANTISED)
        near = did_you_mean(name, QUANTISED)
        raise OptionError(
            "quantised", f"{name!r} is not known{near}: use one of {choices}"
        ) from None
