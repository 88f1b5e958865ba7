"""Fine-tuning as the published rows ran it: `python -m benchmarks.estimator.fine_tuning MODEL BATCH
[RANK]`.

Hugging Face's own Trainer, peft and checkpointing; the model's weights are random. RANK is that of
LoRA, 0 for all parameters. Attention is torch's own instead of flash-attn's: both keep the same.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import torch
import transformers
from torch.utils.data import Dataset

_LENGTHS = {"santacoder": 2048, "mistral7b": 4096, "mixtral8x7b": 4096}
_MISTRAL: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32768,
    "attn_implementation": "sdpa",
    # The window is as long as the text and hides nothing, but torch's attention would get a mask of
    # 32 MiB for it. flash-attn takes none.
    "sliding_window": None,
}
_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]


class Text(Dataset[dict[str, torch.Tensor]]):
    """Random tokens."""

    def __init__(self, length: int, words: int) -> None:
        self._length = length
        self._words = words

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, self._words, (self._length,))
        return {"input_ids": tokens, "labels": tokens}


def main(name: str, batch: int, rank: int) -> None:
    """Train until the rehearsal ends it."""
    model = _model(name)
    if rank:
        model = _with_lora(model, rank)
    options: dict[str, Any] = {"save_strategy": "no", "report_to": [], "logging_steps": 50}
    options |= {"gradient_checkpointing": True, "per_device_train_batch_size": batch}
    arguments = transformers.TrainingArguments(tempfile.mkdtemp(), max_steps=100, **options)
    text = Text(_LENGTHS[name], model.config.vocab_size)
    transformers.Trainer(model=model, args=arguments, train_dataset=text).train()


def _model(name: str) -> Any:
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = _BUILDERS[name]()
    torch.set_default_dtype(torch.float32)
    return model


def _santacoder() -> Any:
    # `use_cache` stays on: this model keeps its keys and values in spite of checkpointing
    return transformers.GPTBigCodeForCausalLM(
        transformers.GPTBigCodeConfig(
            n_embd=2048, n_layer=24, n_head=16, n_inner=8192, n_positions=2048, vocab_size=49280, attn_implementation="sdpa",
        )
    )  # fmt: skip


def _mistral() -> Any:
    return transformers.MistralForCausalLM(transformers.MistralConfig(**_MISTRAL))


def _mixtral() -> Any:
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**_MISTRAL))


def _with_lora(model: Any, rank: int) -> Any:
    import peft

    config = peft.LoraConfig(
        r=rank, lora_alpha=16, lora_dropout=0.1, target_modules=_TARGETS, task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(model, config)
    model.enable_input_require_grads()
    return model


_BUILDERS = {"santacoder": _santacoder, "mistral7b": _mistral, "mixtral8x7b": _mixtral}

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
