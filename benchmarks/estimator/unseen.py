"""Configurations that no rule was written beside: formula, trace and rehearsal.

`python -m benchmarks.estimator unseen --trace --rehearse` adds what `unseen.json` lacks. The cases
were chosen before the formula or the trace had been asked about one of them: published configs with
at most eight layers, asked as the command line asks, with its default loop (the Trainer's). `first`
is what the formula said then (None: it refused), the printed table what it says now.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import memagent
from benchmarks.estimator import isolated
from benchmarks.estimator.configurations import config_of
from memagent.cli.estimate import add_step_arguments
from memagent.cli.estimate_request import build_request
from memagent.errors import EstimateError, RehearsalError
from memagent.estimator.cards import CARDS
from memagent.estimator.devices import CUBLAS_HANDLES, cublas_workspace_bytes
from memagent.estimator.engine import estimate, estimate_trace, record
from memagent.estimator.request import EstimateRequest, TraceRequest

FILE = Path(__file__).with_name("unseen.json")
TRAINING = Path(__file__).with_name("unseen_training.py")
LAYERS = 8
CASES = (
    ("llama-3.2-3b", "--batch 2 --precision bf16 --sequence 1024"),
    ("tinyllama-1.1b", "--batch 4 --precision amp --checkpointing full --sequence 1024"),
    ("smollm2-360m", "--batch 8 --precision amp --sequence 512"),
    ("codellama-7b", "--batch 2 --lora-rank 16 --sequence 1024"),
    ("yi-6b", "--batch 1 --precision bf16 --checkpointing full --optimizer sgd --sequence 2048"),
    (
        "mistral-nemo-12b",
        "--batch 1 --lora-rank 32 --lora-targets all-linear --checkpointing full --sequence 2048",
    ),
    ("gemma-7b", "--batch 1 --precision bf16 --sequence 1024"),
    ("qwen2.5-3b", "--batch 2 --precision amp --attention eager --sequence 512"),
    ("qwen3-4b", "--batch 2 --lora-rank 8 --sequence 1024"),
    ("phi-4-mini", "--batch 1 --precision bf16 --checkpointing full --sequence 2048"),
    ("phi-1.5", "--batch 4 --precision amp --sequence 512"),
    ("opt-6.7b", "--batch 2 --precision bf16 --checkpointing full --sequence 1024"),
    ("pythia-410m", "--batch 8 --precision fp32 --optimizer momentum --sequence 256"),
    ("starcoderbase-1b", "--batch 2 --precision bf16 --sequence 1024"),
    ("gpt2-medium", "--batch 4 --precision amp --attention eager --sequence 512"),
    ("granite-3b-code", "--batch 2 --precision amp --accumulation 4 --sequence 512"),
    ("mixtral-8x22b", "--batch 1 --lora-rank 16 --checkpointing full --sequence 512"),
    ("bert-base-multilingual", "--batch 32 --precision amp --sequence 128"),
    ("distilroberta-base", "--batch 32 --precision fp32 --sequence 128"),
    ("xlm-roberta-base", "--batch 16 --precision bf16 --checkpointing full --sequence 256"),
    ("bart-large", "--batch 4 --precision amp --sequence 256"),
    (
        "flan-t5-xl",
        "--batch 1 --precision bf16 --checkpointing full --optimizer adafactor --sequence 512",
    ),
    ("byt5-small", "--batch 8 --precision fp32 --sequence 256"),
    ("vit-b-32", "--batch 64 --precision amp"),
    ("vit-h-14", "--batch 16 --precision bf16 --checkpointing full"),
    ("opt-350m", "--batch 4 --precision amp --sequence 512"),
    ("gemma-2-2b", "--batch 1 --precision bf16 --sequence 1024"),
    ("gemma-3-1b", "--batch 2 --lora-rank 16 --sequence 1024"),
    ("gpt-neo-1.3b", "--batch 2 --precision amp --sequence 512"),
    ("gpt-j-6b", "--batch 1 --precision bf16 --checkpointing full --sequence 1024"),
    ("bloom-560m", "--batch 4 --precision amp --sequence 512"),
    ("falcon-7b", "--batch 1 --precision bf16 --sequence 1024"),
    ("mpt-7b", "--batch 1 --precision bf16 --checkpointing full --sequence 1024"),
    ("olmo-2-1b", "--batch 2 --precision bf16 --sequence 1024"),
    ("stablelm-2-1.6b", "--batch 2 --lora-rank 16 --checkpointing full --sequence 1024"),
    ("deberta-v3-base", "--batch 16 --precision amp --sequence 128"),
    ("electra-base", "--batch 32 --precision fp32 --sequence 128"),
    ("albert-base-v2", "--batch 32 --precision amp --sequence 128"),
    ("whisper-small", "--batch 4 --precision amp"),
    ("convnext-tiny", "--batch 32 --precision amp"),
    ("swin-tiny-patch4-window7-224", "--batch 32 --precision fp32"),
)
SECOND = (
    (
        "gpt2-large",
        "--batch 4 --precision bf16 --checkpointing full --optimizer momentum --sequence 1024",
    ),
    ("llama-2-13b", "--batch 1 --precision bf16 --optimizer adafactor --sequence 2048"),
    ("qwen2-1.5b", "--batch 4 --precision amp --optimizer sgd --sequence 1024"),
    (
        "qwen2.5-1.5b",
        "--batch 4 --lora-rank 8 --lora-targets q_proj,v_proj --checkpointing full --sequence 2048",
    ),
    ("pythia-1.4b", "--batch 4 --precision bf16 --sequence 1024"),
    ("pythia-160m", "--batch 16 --precision amp --checkpointing full --sequence 512"),
    ("roberta-large", "--batch 16 --precision amp --accumulation 2 --sequence 256"),
    ("t5-base", "--batch 8 --precision amp --optimizer adafactor --sequence 512"),
    ("flan-t5-large", "--batch 2 --lora-rank 16 --sequence 512"),
    ("smollm2-1.7b", "--batch 2 --precision fp32 --optimizer rmsprop --sequence 512"),
    ("deepseek-coder-1.3b", "--batch 2 --precision bf16 --optimizer nadam --sequence 2048"),
    ("ministral-8b", "--batch 1 --lora-rank 64 --lora-targets all-linear --sequence 2048"),
    ("qwen3-1.7b", "--batch 2 --precision amp --checkpointing full --sequence 2048"),
    ("phi-1", "--batch 4 --precision bf16 --checkpointing full --sequence 1024"),
    ("phi-4", "--batch 1 --lora-rank 16 --lora-targets qkv_proj,o_proj --sequence 1024"),
    ("granite-3-8b", "--batch 1 --precision bf16 --attention eager --sequence 1024"),
    ("distilgpt2", "--batch 16 --precision fp32 --sequence 256"),
    ("bert-large-cased", "--batch 32 --precision bf16 --sequence 128"),
    ("mt5-base", "--batch 4 --precision bf16 --sequence 256"),
    ("starcoder2-15b", "--batch 1 --precision bf16 --checkpointing full --sequence 1024"),
)
"""Cases chosen after the formula was mended beside the errors of `CASES`."""
THIRD = (
    (
        "llama-3-70b",
        "--batch 1 --lora-rank 16 --lora-targets all-linear --checkpointing full --sequence 1024",
    ),
    ("smollm2-135m", "--batch 16 --precision fp32 --optimizer adamax --sequence 512"),
    ("yi-34b", "--batch 1 --precision bf16 --optimizer sgd --sequence 512"),
    (
        "mistral-small-24b",
        "--batch 1 --precision bf16 --checkpointing full --optimizer adafactor --sequence 1024",
    ),
    (
        "qwen2.5-0.5b",
        "--batch 8 --precision amp --checkpointing full --accumulation 4 --sequence 1024",
    ),
    ("qwen1.5-1.8b", "--batch 4 --precision amp --attention eager --sequence 512"),
    ("qwen3-14b", "--batch 1 --precision bf16 --optimizer momentum --sequence 2048"),
    (
        "pythia-2.8b",
        "--batch 2 --lora-rank 32 --lora-targets query_key_value,dense --sequence 1024",
    ),
    ("gpt-neox-20b", "--batch 1 --precision bf16 --checkpointing full --sequence 1024"),
    ("starcoder", "--batch 1 --precision amp --sequence 1024"),
    ("phi-3-medium", "--batch 1 --precision amp --sequence 1024"),
    ("granite-8b-code", "--batch 2 --lora-rank 16 --sequence 1024"),
    ("deepseek-coder-6.7b", "--batch 1 --precision bf16 --attention eager --sequence 1024"),
    (
        "mixtral-8x7b",
        "--batch 1 --precision bf16 --checkpointing full --optimizer sgd --sequence 512",
    ),
    ("opt-13b", "--batch 1 --lora-rank 8 --checkpointing full --sequence 1024"),
    ("xlm-roberta-large", "--batch 8 --precision amp --checkpointing full --sequence 256"),
    ("bge-small-en", "--batch 64 --precision fp32 --sequence 128"),
    ("t5-3b", "--batch 1 --precision amp --checkpointing full --accumulation 2 --sequence 512"),
    ("flan-t5-small", "--batch 16 --precision fp32 --optimizer sgd --sequence 256"),
    ("vit-l-16", "--batch 32 --precision amp --checkpointing full --optimizer momentum"),
    ("qwen3-30b-a3b", "--batch 1 --precision bf16 --checkpointing full --sequence 512"),
    ("qwen1.5-moe-a2.7b", "--batch 1 --precision bf16 --sequence 512"),
    ("smollm3-3b", "--batch 1 --precision amp --sequence 1024"),
    ("modernbert-base", "--batch 8 --precision amp --sequence 512"),
    ("nllb-200-600m", "--batch 4 --precision amp --sequence 128"),
    ("mamba-130m", "--batch 2 --precision fp32 --sequence 256"),
    ("clip-vit-base-patch32", "--batch 32 --precision amp"),
    ("dinov2-base", "--batch 16 --precision bf16"),
    ("beit-base-patch16-224", "--batch 16 --precision amp"),
    ("segformer-b0", "--batch 16 --precision fp32"),
    ("resnet-50", "--batch 32 --precision amp"),
    ("wav2vec2-base", "--batch 4 --precision fp32"),
    ("hubert-base", "--batch 4 --precision amp"),
    ("whisper-tiny", "--batch 8 --precision bf16 --checkpointing full"),
)
"""Cases chosen after that, of sizes and combinations that weren't tried; the last 14 are of other
families, vision and audio among them. Mixtral 8x7B and ViT-L are known, in other combinations. Seen
since the moments of a layer's backward were told apart, which was measured on DeepSeek Coder."""
REHEARSED = (
    "llama-3.2-3b", "smollm2-360m", "qwen3-4b", "opt-6.7b", "bert-base-multilingual", "bart-large",
    "vit-b-32", "phi-1.5", "bloom-560m", "falcon-7b", "gemma-2-2b", "deberta-v3-base",
    "whisper-small", "convnext-tiny",
    "qwen2.5-0.5b", "qwen1.5-1.8b", "pythia-2.8b", "xlm-roberta-large", "flan-t5-small", "vit-l-16",
    "qwen1.5-moe-a2.7b", "smollm3-3b", "modernbert-base", "nllb-200-600m", "clip-vit-base-patch32",
    "dinov2-base", "beit-base-patch16-224", "segformer-b0", "resnet-50", "wav2vec2-base",
    "hubert-base", "whisper-tiny",
)  # fmt: skip
_CARD = "h100"
_LIBRARIES = ("torch", "transformers", "peft")


@dataclass(frozen=True)
class Row:
    """One case: peaks of the tensors in bytes, None if there is none.

    rehearsed: torch's own allocator's; first: the formula's when the case was chosen.
    """

    model: str
    options: str
    traced: int
    first: int | None
    rehearsed: int | None = None

    @property
    def name(self) -> str:
        return f"{self.model} {self.options}"

    @property
    def traced_on_card(self) -> int | None:
        """Return the traced peak with the workspaces of the card that it was rehearsed on."""
        if self.rehearsed is None:
            return None
        usual, own = (cublas_workspace_bytes(each) for each in (None, CARDS[_CARD].capability))
        return self.traced + CUBLAS_HANDLES * (own - usual)


def request_of(model: str, options: str, method: str) -> EstimateRequest:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser()
    add_step_arguments(parser)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config_of(model, LAYERS)))
        words = ["--model", str(path), *options.split(), "--method", method, "--timeout", "300"]
        return build_request(parser.parse_args(words))


def formula_of(model: str, options: str, version: str) -> tuple[int, tuple[int, int]] | None:
    """Return the formula's peak of the tensors and its interval; None if it refuses the model."""
    try:
        answer = estimate(request_of(model, f"{options} --transformers {version}", "formula"))
    except EstimateError:
        return None
    return answer.peak_allocated_bytes, answer.intervals["allocated"]


def read() -> dict[str, list[Row]]:
    """Return the kept rows by the versions of the libraries."""
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    return {versions: [Row(**row) for row in rows] for versions, rows in kept.items()}


def release_in(versions: str) -> str:
    """Return the version of transformers among those that rows are kept by."""
    return dict(pair.split(" ") for pair in versions.split(", "))["transformers"]


def main(only: str = "", *, trace: bool = False, rehearse: bool = False) -> int:
    """Print errors by case and by group, after tracing and rehearsing what is missing."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in _LIBRARIES)
    if trace:
        _add_traces(versions, only)
    if rehearse:
        _add_rehearsals(versions, only)
    for versions, rows in read().items():
        print(versions)
        for cases in (CASES, SECOND, THIRD):
            models = {model for model, _ in cases}
            some = [row for row in rows if row.model in models and only in row.name]
            _print(some, release_in(versions))
    return 0


def _add_traces(versions: str, only: str) -> None:
    rows = read().get(versions, [])
    for model, options in (*CASES, *SECOND, *THIRD):
        if only not in f"{model} {options}" or any(row.model == model for row in rows):
            continue
        outcome = isolated.call(partial(_traced_bytes, model, options), timeout_s=600.0)
        if outcome.value is None:
            print(f"{model} {options}: {outcome.error}", file=sys.stderr, flush=True)
            continue
        first = formula_of(model, options, metadata.version("transformers"))
        rows.append(Row(model, options, outcome.value, None if first is None else first[0]))
        _write(versions, rows)


def _traced_bytes(model: str, options: str) -> int:
    request = request_of(model, options, "trace")
    assert isinstance(request, TraceRequest)
    return estimate_trace(request, record(request)).peak_allocated_bytes


def _add_rehearsals(versions: str, only: str) -> None:
    rows = read().get(versions, [])
    for index, row in enumerate(rows):
        if row.model in REHEARSED and row.rehearsed is None and only in row.name:
            try:
                result = memagent.rehearse(
                    TRAINING, [row.model, row.options], gpu=f"{_CARD}:512GiB", silent=True
                )
            except RehearsalError as error:
                print(f"{row.name}: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
                continue
            rows[index] = replace(row, rehearsed=result.peak_allocated_bytes)
            _write(versions, rows)


def _write(versions: str, rows: Sequence[Row]) -> None:
    kept = {key: [asdict(row) for row in each] for key, each in read().items()}
    kept[versions] = [asdict(row) for row in rows]
    blocks = (
        f"{json.dumps(key)}: [\n" + ",\n".join(json.dumps(row) for row in each) + "\n]"
        for key, each in kept.items()
    )
    FILE.write_text("{\n" + ",\n".join(blocks) + "\n}\n")


def _print(rows: Sequence[Row], version: str) -> None:
    print("| case | traced GiB | formula first | now | in the interval | trace, of the rehearsal |")
    print("| --- | --- | --- | --- | --- | --- |")
    errors: dict[str, list[float]] = {"first": [], "now": [], "rehearsal": []}
    held = 0
    for row in rows:
        now = formula_of(row.model, row.options, version)
        is_held = now is not None and now[1][0] <= row.traced <= now[1][1]
        held += is_held
        cells = [
            _cell(row.first, row.traced, errors["first"]),
            _cell(now and now[0], row.traced, errors["now"]),
            "refused" if now is None else "yes" if is_held else "no",
            _cell(row.traced_on_card, row.rehearsed or 1, errors["rehearsal"]),
        ]
        print(f"| {row.name} | {row.traced / 2**30:.2f} | {' | '.join(cells)} |")
    for label, some in errors.items():
        print(f"{label}: {_summary(some)}")
    print(
        f"in the interval: {held} of {len(errors['now'])}; refused: {len(rows) - len(errors['now'])}"
    )


def _cell(predicted: int | None, true: int, errors: list[float]) -> str:
    if predicted is None:
        return ""
    errors.append(predicted / true - 1)
    return f"{100 * errors[-1]:+.2f} %"


def _summary(errors: Sequence[float]) -> str:
    sizes = sorted(100 * abs(error) for error in errors)
    if not sizes:
        return "none"
    p90 = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
    return f"{len(sizes)}, median {median(sizes):.2f} %, p90 {p90:.2f} %, worst {sizes[-1]:.2f} %"
