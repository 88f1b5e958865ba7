"""Training with FSDP by transformers' Trainer: `memagent rehearse --ranks N sharded_training.py CASE`.

CASE is JSON: the fields of `benchmarks.estimator.sharded.Case`. Weights and tokens are random.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

import torch
import transformers
from torch.utils.data import Dataset


class Text(Dataset[dict[str, torch.Tensor]]):
    """Random tokens."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 1000, (self._length,))
        return {"input_ids": tokens, "labels": tokens}


def main(case: dict[str, Any]) -> None:
    """Train until the rehearsal ends it."""
    model = _model(case["config"])
    if case["lora_rank"]:
        model = _with_lora(model, case["lora_rank"], has_own_units=case["peft_policy"])
        if not case["peft_policy"]:
            transformers.trainer.update_fsdp_plugin_peft = lambda *_: None
    block = sorted(model._no_split_modules)[0]
    again = case["checkpointing"] != "none"
    is_reentrant = case["checkpointing"] == "reentrant"
    arguments = transformers.TrainingArguments(
        tempfile.mkdtemp(),
        max_steps=100,
        save_strategy="no",
        report_to=[],
        bf16=case["precision"] == "amp",
        gradient_checkpointing=again,
        gradient_checkpointing_kwargs={"use_reentrant": is_reentrant} if again else None,
        gradient_accumulation_steps=case["accumulation"],
        per_device_train_batch_size=case["batch"],
        fsdp="full_shard auto_wrap",
        fsdp_config={
            "transformer_layer_cls_to_wrap": [block],
            "backward_prefetch": "backward_pre",
            "use_orig_params": True,
            "version": 1,
        },
    )
    text = Text(case["length"])
    transformers.Trainer(model=model, args=arguments, train_dataset=text).train()


def _model(options: dict[str, Any]) -> Any:
    config = transformers.AutoConfig.for_model(**options)
    config._attn_implementation = "sdpa"
    config.use_cache = False
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, torch_dtype=torch.bfloat16)
    torch.set_default_dtype(torch.float32)
    return model


def _with_lora(model: Any, rank: int, *, has_own_units: bool) -> Any:
    import peft

    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    config = peft.LoraConfig(r=rank, target_modules=targets, task_type="CAUSAL_LM")
    # a unit has one dtype
    adapted = peft.get_peft_model(model, config, autocast_adapter_dtype=has_own_units)
    adapted.enable_input_require_grads()
    adapted._no_split_modules = model._no_split_modules
    return adapted


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
