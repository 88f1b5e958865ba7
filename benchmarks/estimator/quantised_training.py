"""Adapters on quantised weights: `memagent rehearse quantised_training.py CASE`.

CASE is JSON: the fields of `benchmarks.estimator.quantised.Case`. The layers are bitsandbytes', the
adapters peft's, the loop is transformers' Trainer. Weights and tokens are random.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

import bitsandbytes as bnb
import peft
import torch
import transformers
from torch.utils.data import Dataset
from transformers.integrations.bitsandbytes import replace_with_bnb_linear


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
    again = case["checkpointing"] == "full"
    model = _quantised(_model(case["config"]), case["quantised"])
    if case["kbit_training"]:
        model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=again)
    config = peft.LoraConfig(
        r=case["lora_rank"], target_modules=list(case["lora_targets"]), task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(model, config)
    if case["kbit_training"] == "trl":
        _narrow(model)
    if again:
        model.enable_input_require_grads()
    arguments = transformers.TrainingArguments(
        tempfile.mkdtemp(),
        max_steps=100,
        save_strategy="no",
        report_to=[],
        bf16=case["precision"] == "bf16-amp",
        gradient_checkpointing=again,
        gradient_checkpointing_kwargs={"use_reentrant": False} if again else None,
        per_device_train_batch_size=case["batch"],
    )
    text = Text(case["length"])
    transformers.Trainer(model=model, args=arguments, train_dataset=text).train()


def _model(options: dict[str, Any]) -> Any:
    config = transformers.AutoConfig.for_model(**options)
    config._attn_implementation = "sdpa"
    config.use_cache = False
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    torch.set_default_dtype(torch.float32)
    return model


def _quantised(model: Any, name: str) -> Any:
    """Quantise all linear layers but the head's, as transformers does while it loads weights."""
    four_bits = name != "int8"
    config = transformers.BitsAndBytesConfig(
        load_in_4bit=four_bits,
        load_in_8bit=not four_bits,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=name == "nf4-double",
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    weights = dict(model.named_parameters())
    head = [
        path for path, module in model.named_modules() if module is model.get_output_embeddings()
    ]
    model = replace_with_bnb_linear(model, modules_to_not_convert=head, quantization_config=config)
    for path, layer in model.named_modules():
        if isinstance(layer, bnb.nn.Linear4bit | bnb.nn.Linear8bitLt):
            value = weights.pop(f"{path}.weight").data
            value = value.T if layer.source_cls is not torch.nn.Linear else value
            layer.weight = _weight(layer.weight, value)
            if layer.bias is not None:
                layer.bias = torch.nn.Parameter(weights[f"{path}.bias"].data, requires_grad=False)
    del weights
    torch.cuda.empty_cache()
    setattr(model, "is_loaded_in_4bit" if four_bits else "is_loaded_in_8bit", True)
    return model


def _weight(empty: Any, value: torch.Tensor) -> Any:
    if isinstance(empty, bnb.nn.Params4bit):
        return bnb.nn.Params4bit(value, requires_grad=False, **empty.__dict__).to("cuda")
    return bnb.nn.Int8Params(value.cpu(), requires_grad=False).to("cuda")


def _narrow(model: Any) -> None:
    """Narrow embeddings and head to bf16, as TRL's `peft_module_casting_to_bf16` does."""
    for path, module in model.named_modules():
        is_edge = any(name in path for name in ("lm_head", "embed_tokens", "wte", "wpe"))
        if is_edge and getattr(module, "weight", None) is not None:
            module.to(torch.bfloat16)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
