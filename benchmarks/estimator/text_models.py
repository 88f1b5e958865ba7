"""Traces of all text models of the installed transformers, beside real steps on this CPU.

Each model gets a small common shape and random weights. Two steps run for real, whose storages are
counted (`truth_cpu`), and then in a trace with the CPU's rules. The peaks are compared. A second
trace, with CUDA's rules, must end. Models that the common shape doesn't fit are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.estimator.families import own_loss
from benchmarks.estimator.truth_cpu import measured_peaks, one_thread
from benchmarks.estimator.workload import Case, Workload
from memagent.errors import MemagentError
from memagent.estimator.trace.tracing import record_trace

_WORDS, _ROWS, _LENGTH, _MAX_PARAMETERS = 200, 2, 64, 60_000_000
_WIDTHS = (
    "hidden_size", "n_embd", "d_model", "embedding_size", "dim", "word_embed_proj_dim",
)  # fmt: skip
_INNER = (
    "intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "ffn_dim", "hidden_dim",
    "ffn_hidden_size",
)  # fmt: skip
_DEPTHS = (
    "num_hidden_layers", "n_layer", "encoder_layers", "decoder_layers", "num_layers", "n_layers",
    "num_encoder_layers", "num_decoder_layers",
)  # fmt: skip
_HEADS = (
    "num_attention_heads", "n_head", "encoder_attention_heads", "decoder_attention_heads",
    "num_heads", "n_heads",
)  # fmt: skip
_SHAPE = {
    **dict.fromkeys(_WIDTHS, 64), **dict.fromkeys(_INNER, 128), **dict.fromkeys(_DEPTHS, 2),
    **dict.fromkeys(_HEADS, 4), "num_key_value_heads": 2, "vocab_size": _WORDS, "d_kv": 16,
    "head_dim": 16, "kv_channels": 16, "max_position_embeddings": 256, "n_positions": 256,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64, "q_lora_rank": 32,
    "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "n_group": 1, "topk_group": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 0, "use_cache": False,
}  # fmt: skip
"""Attributes of configs; each model gets those that its config has."""


@dataclass(frozen=True)
class Row:
    """A model: its peaks in bytes, or why there is none."""

    model: str
    task: str
    real_bytes: int | None = None
    traced_bytes: int | None = None
    left_out: str = ""
    error: str = ""

    @property
    def error_ratio(self) -> float | None:
        if self.real_bytes is None or self.traced_bytes is None:
            return None
        return self.traced_bytes / self.real_bytes - 1


def main(out: Path | None, only: Sequence[str] = ()) -> int:
    """Compare all models, or `only` some, and print each that differs and the totals."""
    rows = []
    with one_thread():
        for task, name in _models():
            if not only or name in only:
                rows.append(compare(task, name))
                if rows[-1].error or rows[-1].error_ratio:
                    print(_line(rows[-1]), flush=True)
    if out:
        out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    ran = [row for row in rows if not row.left_out]
    exact = sum(row.error_ratio == 0 for row in ran)
    failed = sum(bool(row.error) for row in ran)
    print(f"{len(ran)} models ran ({len(rows) - len(ran)} left out): {exact} traced to the byte, "
          f"{len(ran) - exact - failed} otherwise, {failed} not traced")  # fmt: skip
    return 0


def compare(task: str, name: str) -> Row:
    """Run and trace a model: "CausalLM", "MaskedLM" or "Seq2SeqLM", and its `model_type`."""
    row = partial(Row, name, task)
    build = partial(_model, task, name)
    try:
        real = max(measured_peaks(partial(_workload, build)).by_phase.values())
    except Exception as error:  # noqa: BLE001 - each library model has its own checks
        return row(left_out=f"{type(error).__name__}: {error}"[:200])
    inputs = {"input_ids": _ids(), "labels": _ids()}
    try:
        traced = record_trace(build, inputs, loss=_loss, device="cpu").peak_bytes
        record_trace(build, inputs, loss=_loss)
    except MemagentError as error:
        return row(real_bytes=real, error=str(error)[:200])
    return row(real_bytes=real, traced_bytes=traced)


def _models() -> Iterator[tuple[str, str]]:
    from transformers.models.auto import modeling_auto

    for task, names in (
        ("CausalLM", modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
        ("MaskedLM", modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
        ("Seq2SeqLM", modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES),
    ):
        yield from ((task, name) for name in names)


def _model(task: str, name: str) -> torch.nn.Module:
    import transformers

    config = transformers.AutoConfig.for_model(name)
    shape = {key: value for key, value in _SHAPE.items() if hasattr(config, key)}
    config = transformers.AutoConfig.for_model(name, **shape)
    library_class: Any = getattr(transformers, f"AutoModelFor{task}")
    with torch.device("meta"):
        size = sum(each.numel() for each in library_class.from_config(config).parameters())
    if size > _MAX_PARAMETERS:
        raise ValueError(f"{size:,} parameters, in spite of the small shape")
    torch.manual_seed(0)
    model: torch.nn.Module = library_class.from_config(config)
    return model.train()


def _workload(build: partial[torch.nn.Module]) -> Workload:
    model = build()
    return Workload(
        case=Case("text", "text"),
        model=model,
        batch=lambda: ({"input_ids": _ids(), "labels": _ids()}, {}),
        loss=own_loss,
        optimizer=torch.optim.AdamW(model.parameters()),
    )


def _loss(output: Any, _: Any = None) -> torch.Tensor:
    return own_loss(output, {})


def _ids() -> torch.Tensor:
    return torch.arange(_ROWS * _LENGTH).remainder(_WORDS - 3).add(3).view(_ROWS, _LENGTH)


def _line(row: Row) -> str:
    ratio = row.error_ratio
    return f"{row.model} ({row.task}): {row.error if ratio is None else f'{100 * ratio:+.3f} %'}"
