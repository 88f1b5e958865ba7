"""Small models of transformers' families with random weights, and their steps on the CPU."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

BATCH, LENGTH, HIDDEN, HEADS, FFN, VOCAB = 4, 96, 64, 4, 192, 512


def library() -> Any:
    """transformers, or a skip that says so; under CI a failure."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import transformers
    except ImportError:
        if os.environ.get("CI"):
            raise
        pytest.skip("transformers is not installed: the formula is not compared with its models")
    transformers.logging.set_verbosity_error()
    return transformers


def _gpt2(kind: str, layers: int, drop: float) -> Any:
    chances = {
        "resid_pdrop": drop,
        "embd_pdrop": drop,
        "attn_pdrop": drop,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    return getattr(library(), kind)(
        n_layer=layers,
        n_embd=HIDDEN,
        n_head=HEADS,
        n_inner=FFN,
        vocab_size=VOCAB,
        n_positions=LENGTH,
        **chances,
    )


def _llama(kind: str, layers: int, drop: float, **more: Any) -> Any:
    chances = (
        {"resid_pdrop": drop, "embd_pdrop": drop, "attention_dropout": drop}
        if kind == "PhiConfig"
        else {}
    )
    sizes = {
        "num_hidden_layers": layers,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "intermediate_size": FFN,
    }
    tokens = {"vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    return getattr(library(), kind)(**sizes, **tokens, **chances, **more)


def _bert(kind: str, layers: int, drop: float) -> Any:
    sizes = {
        "num_hidden_layers": layers,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "intermediate_size": FFN,
    }
    chances = {"hidden_dropout_prob": drop, "attention_probs_dropout_prob": drop}
    rest = (
        {"image_size": 28, "patch_size": 4, "num_labels": 10}
        if kind == "ViTConfig"
        else {"vocab_size": VOCAB, "max_position_embeddings": LENGTH + 4}
    )
    return getattr(library(), kind)(**sizes, **chances, **rest)


def _t5(layers: int, drop: float, projection: str) -> Any:
    return library().T5Config(
        num_layers=layers,
        d_model=HIDDEN,
        num_heads=HEADS,
        d_ff=FFN,
        d_kv=16,
        vocab_size=VOCAB,
        dropout_rate=drop,
        feed_forward_proj=projection,
        decoder_start_token_id=0,
    )


CONFIGS = {
    "gpt2": lambda layers, drop: _gpt2("GPT2Config", layers, drop),
    "gpt_bigcode": lambda layers, drop: _gpt2("GPTBigCodeConfig", layers, drop),
    "llama": lambda layers, drop: _llama("LlamaConfig", layers, drop, num_key_value_heads=2),
    "mistral": lambda layers, drop: _llama("MistralConfig", layers, drop, num_key_value_heads=2),
    "mixtral": lambda layers, drop: _llama(
        "MixtralConfig",
        layers,
        drop,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
    ),
    "qwen2": lambda layers, drop: _llama("Qwen2Config", layers, drop, num_key_value_heads=2),
    "qwen3": lambda layers, drop: _llama(
        "Qwen3Config", layers, drop, num_key_value_heads=2, head_dim=16
    ),
    "gemma": lambda layers, drop: _llama(
        "GemmaConfig", layers, drop, num_key_value_heads=1, head_dim=24
    ),
    "phi": lambda layers, drop: _llama("PhiConfig", layers, drop),
    "phi3": lambda layers, drop: _llama("Phi3Config", layers, drop),
    "gpt_neox": lambda layers, drop: _llama("GPTNeoXConfig", layers, drop),
    "bert": lambda layers, drop: _bert("BertConfig", layers, drop),
    "roberta": lambda layers, drop: _bert("RobertaConfig", layers, drop),
    "vit": lambda layers, drop: _bert("ViTConfig", layers, drop),
    "t5": lambda layers, drop: _t5(layers, drop, "relu"),
    "t5-gated": lambda layers, drop: _t5(layers, drop, "gated-gelu"),
}


@dataclass
class Case:
    """A model, one batch for it, and its config as config.json has it."""

    model: Any
    inputs: dict[str, torch.Tensor]
    config: dict[str, Any]


def build(
    family: str,
    *,
    layers: int = 2,
    drop: float = 0.0,
    attention: str = "sdpa",
    dtype: Any = torch.float32,
) -> Case:
    torch.manual_seed(0)
    transformers = library()
    config = CONFIGS[family](layers, drop)
    kinds = {
        "bert": transformers.AutoModelForMaskedLM,
        "roberta": transformers.AutoModelForMaskedLM,
        "vit": transformers.AutoModelForImageClassification,
        "t5": transformers.AutoModelForSeq2SeqLM,
        "t5-gated": transformers.AutoModelForSeq2SeqLM,
    }
    kind = kinds.get(family, transformers.AutoModelForCausalLM)
    model = kind.from_config(config, attn_implementation=attention).to(dtype).train()
    if family == "vit":
        inputs = {
            "pixel_values": torch.randn(BATCH, 3, 28, 28, dtype=dtype),
            "labels": torch.zeros(BATCH).long(),
        }
    else:
        tokens = torch.randint(1, VOCAB, (BATCH, LENGTH))
        inputs = {"input_ids": tokens, "labels": tokens}
    return Case(model, inputs, {**config.to_dict(), "architectures": [type(model).__name__]})


class LiveStorages(TorchDispatchMode):
    """The sum of all live storages, each counted once, and its peak by phase."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.phase = "setup"
        self.peaks: dict[str, int] = {}
        self._alive: dict[int, int] = {}

    def see(self, tensors: Iterator[Any]) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._alive:
                self._alive[storage._cdata] = storage.nbytes()
                self.now += storage.nbytes()
                weakref.finalize(storage, self._free, storage._cdata)
        self.peaks[self.phase] = max(self.peaks.get(self.phase, 0), self.now)

    def _free(self, key: int) -> None:
        self.now -= self._alive.pop(key, 0)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        output = function(*args, **(kwargs or {}))
        self.see(leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor))
        return output


def real_peaks(
    case: Case, optimizer: torch.optim.Optimizer, *, autocast: bool = False
) -> dict[str, int]:
    """Peaks by phase of the second step, when the optimizer's state is there."""
    live = LiveStorages()
    with live:
        live.see(iter([*case.model.parameters(), *case.model.buffers(), *case.inputs.values()]))
        for _ in range(2):
            live.peaks = {}
            live.phase = "forward"
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                output = case.model(**case.inputs)
            live.phase = "backward"
            output.loss.backward()
            del output
            live.phase = "optimizer"
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return live.peaks


def really_saved(case: Case) -> int:
    """Return the bytes of the storages that autograd saves, without parameters."""
    own = {parameter.untyped_storage().data_ptr() for parameter in case.model.parameters()}
    storages: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            storages.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = case.model(**case.inputs)
    size = sum(tensor.untyped_storage().nbytes() for tensor in storages.values())
    del output
    return size
