"""The lines to add to a script for each change: plain torch, or transformers where the model is one of its own.

They run as they stand (tests/agent/estimator/test_code_lines.py runs each) in a script that has `model`, `optimizer`, `lr`, and either
`batch` (transformers: a dict with input_ids and labels) or `inputs`, `targets` and `loss_of(output, targets)`.
"""

from __future__ import annotations

from memagent.estimator.advice.script_facts import Script, checkpointing_method


def zero_grad(_: Script) -> str:
    return "optimizer.zero_grad(set_to_none=True)"


def attention(script: Script) -> str:
    if script.transformers:
        return 'model.set_attn_implementation("sdpa")'
    return "attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)"


def no_cache(_: Script) -> str:
    return "model.config.use_cache = False"


def optimizer_step(script: Script) -> str:
    how = "fused=True" if script.has_fused_step else "foreach=False"
    return f"optimizer = torch.optim.{script.optimizer}(model.parameters(), lr=lr, {how})"


def autocast(script: Script) -> str:
    return f'with torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = {_loss(script)}'


def in_bf16(_: Script) -> str:
    return "model = model.to(torch.bfloat16)  # before the optimizer is made"


def chunked_loss(script: Script) -> str:
    if script.transformers:
        head, hidden = (
            "model.get_output_embeddings()",
            'model.base_model(batch["input_ids"]).last_hidden_state[:, :-1]',
        )
        labels = 'batch["labels"][:, 1:]'
    else:
        head, hidden, labels = "model.head", "model.features(inputs)", "targets"
    return (
        "from torch.utils.checkpoint import checkpoint\n\n"
        "def part_of_loss(hidden, labels):\n"
        f"    logits = {head}(hidden).float()\n"
        '    return torch.nn.functional.cross_entropy(logits, labels, reduction="sum")\n\n'
        f"hidden, labels = {hidden}.flatten(0, 1), {labels}.flatten()\n"
        "parts = zip(hidden.chunk(8), labels.chunk(8))\n"
        "loss = sum(checkpoint(part_of_loss, *part, use_reentrant=False) for part in parts) / (labels != -100).sum()"
    )


def eight_bit(script: Script) -> str:
    return f"import bitsandbytes\n\noptimizer = bitsandbytes.optim.{_of_bitsandbytes(script)}8bit(model.parameters(), lr=lr)"


def paged(script: Script) -> str:
    kind = f"Paged{_of_bitsandbytes(script)}8bit"
    return (
        f"import bitsandbytes\n\noptimizer = bitsandbytes.optim.{kind}(model.parameters(), lr=lr)"
    )


def _of_bitsandbytes(script: Script) -> str:
    return "Adam" if script.optimizer == "Adam" else "AdamW"


def adafactor(_: Script) -> str:
    return "optimizer = torch.optim.Adafactor(model.parameters(), lr=lr)"


def checkpointing(script: Script) -> str:
    if script.transformers:
        return f'model.{checkpointing_method()}({{"use_reentrant": False}})'
    return (
        "from functools import partial\nfrom torch.utils.checkpoint import checkpoint\n\n"
        f"for block in {script.blocks}:\n    block.forward = partial(checkpoint, block.forward, use_reentrant=False)"
    )


def accumulation(script: Script, *, parts: int) -> str:
    if script.transformers:
        loop = f"parts = zip(*(tensor.chunk({parts}) for tensor in batch.values()))\nfor part in parts:\n"
        loss = "model(**dict(zip(batch, part))).loss"
    else:
        loop = f"for inputs, targets in zip(inputs.chunk({parts}), targets.chunk({parts})):\n"
        loss = _loss(script)
    return f"{loop}    ({loss} / {parts}).backward()\noptimizer.step()"


def lora(script: Script) -> str:
    names = ", ".join(f'"{name}"' for name in script.targets)
    return (
        "from peft import LoraConfig, get_peft_model\n\n"
        f"model = get_peft_model(model, LoraConfig(r=16, target_modules=[{names}]))  # before the optimizer is made"
    )


def qlora(script: Script) -> str:
    return (
        "from transformers import AutoModelForCausalLM, BitsAndBytesConfig\n\n"
        'four_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,\n'
        "                               bnb_4bit_compute_dtype=torch.bfloat16)\n"
        f"model = AutoModelForCausalLM.from_pretrained(name, quantization_config=four_bits)\n{lora(script)}"
    )


def zero_1(script: Script) -> str:
    return (
        "from torch.distributed.optim import ZeroRedundancyOptimizer\n\n"
        f"optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.{script.optimizer}, lr=lr)"
    )


def zero_2(script: Script) -> str:
    return _sharded(script, "reshard_after_forward=False")


def zero_3(script: Script) -> str:
    return _sharded(script)


def offload_optimizer(script: Script) -> str:
    return (
        "from torchao.optim import CPUOffloadOptimizer\n\n"
        f"optimizer = CPUOffloadOptimizer(model.parameters(), torch.optim.{script.optimizer}, lr=lr)"
    )


def offload_parameters(script: Script) -> str:
    return _sharded(script, "offload_policy=CPUOffloadPolicy()", also="CPUOffloadPolicy, ")


def expandable_segments(_: Script) -> str:
    return "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def _sharded(script: Script, option: str = "", *, also: str = "") -> str:
    option = f", {option}" if option else ""
    blocks = (
        f"for block in {script.blocks}:\n    fully_shard(block{option})\n" if script.blocks else ""
    )
    start = f"from torch.distributed.fsdp import {also}fully_shard  # started by torchrun\n\n"
    return f"{start}{blocks}fully_shard(model{option})  # before the optimizer is made"


def _loss(script: Script) -> str:
    return "model(**batch).loss" if script.transformers else "loss_of(model(inputs), targets)"
