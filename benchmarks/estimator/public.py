"""Trainings that others measured and published, with the models rebuilt from their configs.

`truth/public_a100_80gb_sft.json` holds facts from foundation-model-stack/fms-acceleration (Apache-2.0), which it names. The models are
built by the installed `transformers`, not by the one that was measured (4.48.1), except for the loss of santacoder, which has changed
since. Rows with quantised weights or with kernels that replace parts of the model (`foak`) are kept in the file and not scored: they
can't be rebuilt without the libraries they ran on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from benchmarks.estimator.families import Built, Tensors, own_loss
from benchmarks.estimator.workload import Case

FILE = "public_a100_80gb_sft.json"
_MIB = 2**20
CONTEXT_BYTES = 480 * _MIB
"""Not published with the rows: what a process with a CUDA context and little else shows on an A100."""


@dataclass(frozen=True)
class Row:
    source: str
    case: Case
    levels: dict[str, int] = field(default_factory=dict)
    died_at_bytes: int | None = None
    note: str = ""


def rows(path: Path) -> Iterator[Row]:
    """The rows that can be rebuilt: weights in bfloat16, trained whole or with LoRA, by the model's own code."""
    content = json.loads(path.read_text())
    for row in content["rows"]:
        family = _FAMILY_OF.get(row["model"])
        if family is None or row["quantised"] or row["fused_kernels"]:
            continue
        case = Case(
            f"{family}{' lora' if row['lora_rank'] else ''} x {row['batch']}",
            f"{family} x {row['batch']}",
            optimizer="adamw_foreach",
            dtype="bfloat16",
            checkpointing="reentrant",
            lora=bool(row["lora_rank"]),
            holds_output=True,  # by the figures: without it the rows that peak at the loss miss just the logits' bytes
            size="large",
        )
        if row["peak_allocated_bytes"] is None:
            yield Row(content["source"], case, died_at_bytes=content["device_bytes"])
            continue
        levels = {"allocated": row["peak_allocated_bytes"], "device": row["nvidia_smi_mib"] * _MIB}
        yield Row(content["source"], case, levels)


def _santacoder(case: Case) -> Built:
    from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM

    config = GPTBigCodeConfig(
        n_embd=2048, n_layer=24, n_head=16, n_inner=8192, n_positions=2048, vocab_size=49280, multi_query=True, use_cache=False,
        attn_implementation="sdpa",
    )  # fmt: skip
    model, batch, _ = _finished(case, GPTBigCodeForCausalLM(config), 2048, 49280)

    def unlabelled() -> tuple[Tensors, Tensors]:
        inputs, _ = batch()
        return {"input_ids": inputs["input_ids"]}, {"labels": inputs["labels"]}

    return model, unlabelled, _loss_of_4_48


def _loss_of_4_48(output: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """As GPTBigCode computed it in transformers 4.48: in the dtype of the logits, on a shifted copy of them."""
    shifted = output.logits[..., :-1, :].contiguous()
    labels = targets["labels"][..., 1:].contiguous()
    return functional.cross_entropy(shifted.view(-1, shifted.size(-1)), labels.view(-1))


def _mistral(case: Case) -> Built:
    from transformers import MistralConfig, MistralForCausalLM

    return _finished(case, MistralForCausalLM(MistralConfig(**_MISTRAL_7B)), 4096, 32000)


def _mixtral(case: Case) -> Built:
    from transformers import MixtralConfig, MixtralForCausalLM

    return _finished(case, MixtralForCausalLM(MixtralConfig(**_MISTRAL_7B, num_local_experts=8)), 4096, 32000)


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
}
_BUILDERS = {"santacoder": _santacoder, "mistral7b": _mistral, "mixtral8x7b": _mixtral}
FAMILIES: dict[str, Callable[[Case], Built]] = {
    f"{name} x {batch}": build for name, build in _BUILDERS.items() for batch in (4, 8)
}
