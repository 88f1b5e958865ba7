"""Published measurements of trainings, with the models rebuilt from their configs.

`truth/public_a100_80gb_sft.json` holds facts from foundation-model-stack/fms-acceleration
(Apache-2.0) and names it. The formula gets what the libraries of these rows did (transformers
4.48.1, accelerate 1.0.1, peft 0.13.2), according to their code: `spec_of`. For the trace, the
installed `transformers` builds the models, with the loss and the cache of 4.48.1: `as_of_4_48`.
Rows with quantised weights or with kernels that replace parts of the model (`foak`) can't be
rebuilt without those libraries and are for the formula alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from benchmarks.estimator.families import Built, own_loss
from benchmarks.estimator.workload import Case
from memagent.estimator.formula.presets import preset
from memagent.estimator.formula.spec import TrainingSpec

FILE = "public_a100_80gb_sft.json"
_MIB = 2**20


@dataclass(frozen=True)
class Row:
    """One row. `spec` is the training for the formula; `is_formula_only` if the model can't be
    rebuilt.
    """

    source: str
    case: Case
    spec: TrainingSpec
    levels: dict[str, int] = field(default_factory=dict)
    steady_bytes: int | None = None
    died_at_bytes: int | None = None
    device_bytes: int | None = None
    is_formula_only: bool = False


def rows(path: Path) -> Iterator[Row]:
    """Return all rows."""
    content = json.loads(path.read_text())
    for row in content["rows"]:
        family = _FAMILY_OF[row["model"]]
        words = [
            family,
            row["quantised"],
            "prepared" if _is_prepared(row) else None,
            "lora" if row["lora_rank"] else None,
        ]
        words += ["foak" if row["fused_kernels"] else None, f"x {row['batch']}"]
        case = Case(
            " ".join(word for word in words if word),
            f"{family} x {row['batch']}",
            optimizer="adamw_foreach",
            dtype="bfloat16",
            checkpointing="reentrant",
            lora=bool(row["lora_rank"]),
            holds_output=False,  # the Trainer's compute_loss drops it
            size="large",
        )
        facts: dict[str, Any] = {
            "spec": spec_of(row),
            "device_bytes": content["device_bytes"],
            "is_formula_only": bool(row["quantised"] or row["fused_kernels"]),
        }
        if row["peak_allocated_bytes"] is None:
            yield Row(content["source"], case, died_at_bytes=content["device_bytes"], **facts)
            continue
        levels = {"allocated": row["peak_allocated_bytes"], "device": row["nvidia_smi_mib"] * _MIB}
        yield Row(
            content["source"],
            case,
            levels=levels,
            steady_bytes=row["steady_allocated_bytes"],
            **facts,
        )


def spec_of(row: Mapping[str, Any]) -> TrainingSpec:
    """Return the training as these libraries ran it.

    1. The loss copied the logits to shift them (transformers/loss/loss_utils.py). gpt_bigcode's
       logits stayed in their dtype, and its cache was filled in spite of checkpointing. Mixtral's
       experts ran one after the other. The Trainer drops the output.
    2. Quantised rows ran with `bf16=True`: autocast, whose LayerNorm returns fp32, and accelerate,
       which casts the output to fp32. It makes no difference if the norm is RMSNorm and the loss is
       in fp32 already.
    3. `baseline-peft-bnb` prepared the model by peft's function, within TRL's trainer; the
       accelerated rows keep norms in bf16.
    4. FOAK's cross-entropy overwrites the logits, and its RMSNorm keeps its input alone.
    """
    coder = "santacoder" in row["model"]
    options: dict[str, Any] = {"precision": "bf16", "gpu": "a100"}
    if row["lora_rank"]:
        names = [name for name in row["targets"] if (name == "c_attn") == coder]
        options |= {"lora_rank": row["lora_rank"], "lora_targets": tuple(names)}
    if row["quantised"]:
        options["quantised"] = {"nf4": "nf4-double", "gptq": "int4"}[row["quantised"]]
    if coder:
        options |= {"logits_upcast": False, "cache_survives": True}
        options |= {"precision": "bf16-amp"} if row["quantised"] else {}
    if _is_prepared(row):
        options |= {"kbit_training": "trl", "precision": "bf16-amp"}
    if row["fused_kernels"]:
        options |= {"loss": "inplace", "fused_norms": True}
    return TrainingSpec(
        preset(_PRESET_OF[row["model"]]), row["batch"], 2048 if coder else 4096, checkpointing="full", shifted_copy=True,
        loop="trainer", expert_loop=True, **options,
    )  # fmt: skip


def _is_prepared(row: Mapping[str, Any]) -> bool:
    return str(row["framework"]).startswith("baseline")


def as_of_4_48(model: Any, *, upcast: bool = True, keeps_cache: bool = False) -> Any:
    """Give the model the loss of transformers 4.48: in fp32 or in the logits' dtype, on a shifted
    copy.

    `keeps_cache`: gpt_bigcode returned keys and values in spite of checkpointing, as views of the
    whole projection, which outlived its layer until the output was dropped.
    """
    model.loss_function = partial(_shifted_loss, upcast=upcast)
    if not keeps_cache:
        return model
    cache: list[torch.Tensor] | None = None

    def begin(*_: Any) -> None:
        nonlocal cache
        cache = []

    def end(_: Any, __: Any, output: Any) -> Any:
        nonlocal cache
        output["past_key_values"], cache = cache, None
        return output

    def keep(_: Any, __: Any, output: torch.Tensor) -> None:
        if cache is not None:  # not while a layer is recomputed
            cache.append(output.detach())

    model.register_forward_pre_hook(begin)
    model.register_forward_hook(end)
    for block in model.transformer.h:
        block.attn.c_attn.register_forward_hook(keep)
    return model


def _shifted_loss(
    logits: torch.Tensor, labels: torch.Tensor, vocab_size: int, *, upcast: bool, **_: Any
) -> torch.Tensor:
    if upcast:
        logits = logits.float()
    shifted = logits[..., :-1, :].contiguous()
    wanted = labels[..., 1:].contiguous()
    return functional.cross_entropy(shifted.view(-1, vocab_size), wanted.view(-1))


def _santacoder(case: Case) -> Built:
    from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM

    config = GPTBigCodeConfig(
        n_embd=2048, n_layer=24, n_head=16, n_inner=8192, n_positions=2048, vocab_size=49280, multi_query=True, use_cache=False,
        attn_implementation="sdpa",
    )  # fmt: skip
    model = as_of_4_48(GPTBigCodeForCausalLM(config), upcast=False, keeps_cache=True)
    return _finished(case, model, 2048, 49280)


def _mistral(case: Case) -> Built:
    from transformers import MistralConfig, MistralForCausalLM

    return _finished(
        case, as_of_4_48(MistralForCausalLM(MistralConfig(**_MISTRAL_7B))), 4096, 32000
    )


def _mixtral(case: Case) -> Built:
    from transformers import MixtralConfig, MixtralForCausalLM

    return _finished(
        case,
        as_of_4_48(MixtralForCausalLM(MixtralConfig(**_MISTRAL_7B, num_local_experts=8))),
        4096,
        32000,
    )


_MISTRAL_7B: dict[str, Any] = {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 32000, "use_cache": False, "attn_implementation": "sdpa", "tie_word_embeddings": False,
}  # fmt: skip


def _finished(case: Case, model: Any, length: int, words: int) -> Built:
    from benchmarks.estimator.language import prepared, text

    batch = int(case.family.rpartition(" x ")[2])
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    return prepared(case, model, targets, rank=16), text(batch, length, words), own_loss


_FAMILY_OF = {
    "bigcode/gpt_bigcode-santacoder": "santacoder",
    "mistralai/Mistral-7B-v0.1": "mistral7b",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mixtral8x7b",
    "TheBloke/Mistral-7B-v0.1-GPTQ": "mistral7b",
}
_PRESET_OF = {
    "bigcode/gpt_bigcode-santacoder": "santacoder",
    "mistralai/Mistral-7B-v0.1": "mistral-7b",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mixtral-8x7b",
    "TheBloke/Mistral-7B-v0.1-GPTQ": "mistral-7b",
}
_BUILDERS = {"santacoder": _santacoder, "mistral7b": _mistral, "mixtral8x7b": _mixtral}
FAMILIES: dict[str, Callable[[Case], Built]] = {
    f"{name} x {batch}": build for name, build in _BUILDERS.items() for batch in (4, 8)
}
