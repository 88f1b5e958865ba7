"""Traced configurations: the formula beside the trace, asked as the command line asks.

`python -m benchmarks.estimator configurations --out FILE` traces more than 200 trainings of the
models that the formula knows: their published configs with fewer layers, crossed with precisions,
checkpointing, attention, LoRA, accumulation and optimizers. The trace is within 0.1 % of torch's
allocator (`agreement`), so it's the truth for the formula.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.estimator import isolated
from benchmarks.estimator.corpus import Measured
from benchmarks.estimator.estimators import prediction_of
from memagent.cli.estimate import add_step_arguments
from memagent.cli.estimate_request import build_request
from memagent.errors import EstimateError
from memagent.estimator.engine import estimate, record
from memagent.estimator.formula.presets import CONFIGS
from memagent.estimator.from_trace import estimate_of
from memagent.estimator.huggingface import ConfiguredModel
from memagent.estimator.request import EstimateRequest, TraceRequest

FILE = Path(__file__).with_name("configurations.json")
LAYERS = 3
_LAYER_FIELDS = (
    "num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers", "n_layers",
    "encoder_layers", "decoder_layers",
)  # fmt: skip
MODELS = (
    "gpt2", "gpt2-xl", "llama-2-7b", "llama-3-8b", "llama-3.2-1b", "mistral-7b", "mixtral-8x7b",
    "qwen2-0.5b", "qwen2.5-7b", "qwen3-0.6b", "qwen3-8b", "gemma-2b", "phi-2", "phi-3-mini",
    "santacoder", "pythia-1b", "granite-3-2b", "bert-base", "bert-large", "roberta-base",
    "t5-small", "t5-large", "flan-t5-base", "vit-b-16", "vit-l-16",
    "opt-125m", "opt-1.3b", "opt-2.7b", "starcoder2-3b", "starcoder2-7b", "distilbert-base",
    "bart-base", "mbart-large-50", "pegasus-large", "mt5-small",
)  # fmt: skip
OPTIONS = (
    "--batch 4",
    "--batch 4 --precision fp32 --optimizer sgd",
    "--batch 8 --precision bf16",
    "--batch 8 --precision bf16 --checkpointing full",
    "--batch 4 --precision amp --checkpointing full",
    "--batch 2 --precision amp --attention eager",
    "--batch 4 --precision bf16 --lora-rank 16 --lora-targets all-linear",
    "--batch 8 --precision bf16 --lora-rank 16 --lora-targets all-linear --checkpointing full",
    "--batch 4 --precision amp --accumulation 4",
    "--batch 1 --precision fp32 --sequence 512",
)
_SEQUENCES = {
    **dict.fromkeys(("bert", "roberta", "distilbert"), "256"),
    **dict.fromkeys(("t5", "mt5", "bart", "mbart", "pegasus"), "512"),
}


def names() -> Iterator[tuple[str, str]]:
    """Yield each model with each set of options; images have neither LoRA nor a sequence."""
    for model in MODELS:
        for options in OPTIONS:
            if not model.startswith("vit") or "--lora" not in options:
                yield model, options.partition(" --sequence")[0] if model[:3] == "vit" else options


def config_of(model: str, layers: int = LAYERS) -> dict[str, Any]:
    """Return the model's published config with at most so many layers in each stack."""
    config = dict(CONFIGS[model])
    return config | {name: min(layers, config[name]) for name in _LAYER_FIELDS if name in config}


@dataclass(frozen=True)
class Traced:
    """One configuration and its traced peaks by level."""

    model: str
    options: str
    levels: dict[str, int]


def request_of(model: str, options: str, method: str) -> EstimateRequest:
    """Return what the command line asks for."""
    config = config_of(model) | {"use_cache": False}  # as they were traced
    parser = argparse.ArgumentParser()
    add_step_arguments(parser)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        words = ["--model", str(path), *options.split(), "--method", method, "--timeout", "200"]
        words += ["--loop", "step"]  # as they were traced
        if config["model_type"] != "vit" and "--sequence" not in words:
            words += ["--sequence", _SEQUENCES.get(config["model_type"], "1024")]
        return build_request(parser.parse_args(words))


def trace(model: str, options: str) -> Traced:
    """Trace one configuration."""
    request = request_of(model, options, "trace")
    assert isinstance(request, TraceRequest)
    peaks = estimate_of(record(request), workspace_bytes=request.workspace_bytes)
    levels = {"allocated": peaks.peak_allocated_bytes, "reserved": peaks.peak_reserved_bytes or 0}
    return Traced(model, options, levels)


def read(path: Path = FILE) -> list[Measured]:
    """Return the traced configurations beside what the formula says now."""
    return [beside_formula(Traced(**row)) for row in json.loads(path.read_text())]


def beside_formula(row: Traced) -> Measured:
    """Return one configuration with the formula's prediction, none if the formula refuses it."""
    name, program = f"{row.model} {row.options}", CONFIGS[row.model]["model_type"]
    try:
        predictions = {
            "formula": prediction_of(estimate(request_of(row.model, row.options, "formula")))
        }
    except EstimateError:
        predictions = {}
    return Measured("configurations", name, program, row.levels, predictions=predictions)


def _warm_up(model: str) -> None:
    """Import once, before the forks, what this model needs."""
    import torch

    with torch.device("meta"):
        for rank in (None, 8) if not model.startswith("vit") else (None,):
            targets = None if rank is None else "all-linear"
            ConfiguredModel(config_of(model), lora_rank=rank, lora_targets=targets)()


def main(out: Path, only: str = "") -> int:
    """Trace all configurations whose name has `only` in it, and write them."""
    rows = []
    ready = set()
    for model, options in names():
        if only not in f"{model} {options}":
            continue
        if model not in ready:
            ready.add(model)
            _warm_up(model)
        outcome = isolated.call(partial(trace, model, options), timeout_s=300.0)
        if outcome.value is None:
            print(f"{model} {options}: {outcome.error}", file=sys.stderr, flush=True)
            continue
        row = outcome.value
        rows.append(row)
        for prediction in beside_formula(row).predictions.values():
            error = prediction.allocated_bytes / row.levels["allocated"] - 1
            print(f"{model} {options}: {100 * error:+.2f} %", file=sys.stderr, flush=True)
        lines = ",\n".join(json.dumps(asdict(each), separators=(",", ":")) for each in rows)
        out.write_text(f"[\n{lines}\n]\n")
    return 0
