"""The formula and the trace beside rehearsals of adapters on quantised weights:
`python -m benchmarks.estimator quantised`.

Each case is trained by transformers' Trainer with bitsandbytes' layers on a rehearsed GPU
(`quantised_training.py`). The results are kept in `quantised.json` with the libraries' versions;
`--rehearse` adds those of the libraries at hand. The rules were written beside the families in
`SEEN`; the others were rehearsed afterwards.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from memagent.estimator import engine
from memagent.estimator.api import device_fields
from memagent.estimator.formula.from_config import from_config
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.training import estimate_training
from memagent.estimator.huggingface import request_for_config
from memagent.estimator.quantised_model import TRACED_QUANTISATIONS

RESULTS = Path(__file__).parent / "quantised.json"
_SCRIPT = Path(__file__).parent / "quantised_training.py"
_LIBRARIES = ("torch", "transformers", "accelerate", "peft", "bitsandbytes")
_CARD = "a100"
_GIB = 2**30

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_CONFIGS: Mapping[str, dict[str, Any]] = {
    "mistral": {
        "model_type": "mistral", "vocab_size": 32000, "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 8, "num_attention_heads": 32,
        "num_key_value_heads": 8, "max_position_embeddings": 8192, "sliding_window": None,
    },
    "llama": {
        "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048,
        "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "max_position_embeddings": 8192, "tie_word_embeddings": True,
    },
    "qwen2": {
        "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584,
        "intermediate_size": 18944, "num_hidden_layers": 6, "num_attention_heads": 28,
        "num_key_value_heads": 4, "max_position_embeddings": 8192, "tie_word_embeddings": False,
    },
    "opt": {
        "model_type": "opt", "vocab_size": 50272, "hidden_size": 2048, "ffn_dim": 8192,
        "num_hidden_layers": 12, "num_attention_heads": 32, "max_position_embeddings": 2048,
        "word_embed_proj_dim": 2048,
    },
    "gemma": {
        "model_type": "gemma", "vocab_size": 256000, "hidden_size": 2048,
        "intermediate_size": 16384, "num_hidden_layers": 10, "num_attention_heads": 8,
        "num_key_value_heads": 1, "head_dim": 256, "max_position_embeddings": 8192,
    },
    "phi": {
        "model_type": "phi", "vocab_size": 51200, "hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 10, "num_attention_heads": 32, "max_position_embeddings": 2048,
    },
}  # fmt: skip
_TARGETS = {
    "opt": ("q_proj", "k_proj", "v_proj", "out_proj"),
    "phi": ("q_proj", "k_proj", "v_proj", "dense"),
}
SEEN = ("mistral", "llama", "opt")
"""The families that the rules were written beside."""


@dataclass(frozen=True)
class Case:
    """A model and its training; `bf16-amp` is the Trainer's bf16=True, `bf16` without it."""

    family: str
    batch: int
    length: int
    quantised: str = "nf4-double"
    kbit_training: str | None = "peft"
    precision: str = "bf16-amp"
    checkpointing: str = "full"
    lora_rank: int = 16
    lora_targets: tuple[str, ...] = _ATTENTION
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        parts = [self.family, f"{self.batch} x {self.length}", self.quantised]
        parts += [f"kbit {self.kbit_training}"] if self.kbit_training else []
        parts += [self.precision] if self.precision != "bf16-amp" else []
        parts += ["stored"] if self.checkpointing == "none" else []
        return ", ".join(parts)


_PLANS: tuple[tuple[int, int, dict[str, Any]], ...] = (
    (4, 1024, {}),
    (4, 1024, {"kbit_training": "trl"}),
    (4, 1024, {"kbit_training": None}),
    (2, 1024, {"checkpointing": "none"}),
    (2, 1024, {"checkpointing": "none", "kbit_training": None}),
    (1, 512, {}),
    (4, 1024, {"precision": "bf16"}),
    (2, 1024, {"quantised": "int8", "checkpointing": "none", "kbit_training": None}),
)
CASES = tuple(
    Case(
        family,
        batch,
        length,
        lora_targets=_TARGETS.get(family, _ATTENTION),
        config=config,
        **options,
    )
    for family, config in _CONFIGS.items()
    for batch, length, options in _PLANS
)


@dataclass(frozen=True)
class QuantisedRow:
    """Bytes of the tensors' peak, as rehearsed and by formula; is it in the interval?"""

    case: Case
    versions: str
    rehearsed: int
    phases: Mapping[str, int]
    estimated: int
    estimated_phases: Mapping[str, int]
    is_held: bool

    @property
    def error_ratio(self) -> float:
        return self.estimated / self.rehearsed - 1

    def line(self) -> str:
        phase = max(self.phases, key=lambda name: self.phases[name])
        seen = "seen" if self.case.family in SEEN else "unseen"
        return (
            f"| {self.case.name} | {seen} | {self.rehearsed / _GIB:.2f} | {phase} "
            f"| {100 * self.error_ratio:+.1f} % |"
        )


def rows() -> Iterator[QuantisedRow]:
    """Return all kept rehearsals beside the formula and the trace, if it was kept."""
    cases = {case.name: case for case in CASES}
    for versions, peaks in _kept().items():
        for name, phases in peaks.items():
            if name in cases:
                yield _row(cases[name], versions, phases)


def _row(case: Case, versions: str, phases: Mapping[str, int]) -> QuantisedRow:
    release = versions.split("transformers ")[1].split(",", maxsplit=1)[0]
    estimate = estimate_training(spec_of(case, release))
    during = {name: size for name, size in phases.items() if name != "data"}
    peak = max(during.values())
    low, high = estimate.intervals["allocated"]
    return QuantisedRow(
        case,
        versions,
        peak,
        during,
        estimate.peak_allocated_bytes,
        estimate.phases,
        is_held=low <= peak <= high,
    )


def spec_of(case: Case, transformers: str) -> TrainingSpec:
    """Return the case as its Trainer runs it."""
    return TrainingSpec(
        from_config(dict(case.config)),
        batch=case.batch,
        sequence=case.length,
        precision=case.precision,
        checkpointing="full" if case.checkpointing == "full" else "none",
        transformers=transformers,
        lora_rank=case.lora_rank,
        lora_targets=case.lora_targets,
        quantised=case.quantised,
        kbit_training=case.kbit_training,  # type: ignore[arg-type]  # one of its literals
        loop="trainer",
        use_cache=False,
        gpu=_CARD,
    )


def traced_bytes(case: Case) -> int | None:
    """Return the peak of tensors by trace with the libraries at hand; None if it isn't traced."""
    if case.quantised not in TRACED_QUANTISATIONS:
        return None
    request = request_for_config(
        dict(case.config),
        batch=case.batch,
        sequence=case.length,
        precision=case.precision,
        attention="sdpa",
        checkpointing="non_reentrant" if case.checkpointing == "full" else None,
        lora_rank=case.lora_rank,
        lora_targets=case.lora_targets,
        quantised=case.quantised,
        kbit_training=case.kbit_training,  # type: ignore[arg-type]  # one of its literals
        **device_fields(gpu=_CARD),
    )
    return engine.estimate_trace(request, engine.record(request)).peak_allocated_bytes


def main(*, rehearse: bool, trace: bool = False, only: str = "") -> int:
    """Print the table and its medians; rehearse and trace the cases with `only` in their names if
    asked to.
    """
    if rehearse:
        _rehearse_all(only)
    found = [row for row in rows() if only in row.case.name]
    print("| | | rehearsed GiB | peak in | formula | trace |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in found:
        peak = traced_bytes(row.case) if trace else None
        ratio = "" if peak is None else f"{100 * (peak / row.rehearsed - 1):+.3f} %"
        print(row.line(), ratio, "|", flush=True)
    for label, is_seen in (("seen", True), ("unseen", False)):
        some = [row for row in found if (row.case.family in SEEN) is is_seen]
        errors = sorted(abs(row.error_ratio) for row in some)
        if errors:
            print(
                f"\n{len(errors)} {label}: median {100 * median(errors):.1f} %, 90th percentile "
                f"{100 * errors[int(0.9 * (len(errors) - 1))]:.1f} %, worst {100 * errors[-1]:.1f} %"
                f"; {sum(row.is_held for row in some)} within their interval"
            )
    return 0


def _rehearse_all(only: str) -> None:
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in _LIBRARIES)
    for case in CASES:
        if only not in case.name or case.name in _kept().get(versions, {}):
            continue
        phases = _rehearsed(case)
        print(case.name, phases, flush=True)
        if phases:
            kept = _kept()
            kept.setdefault(versions, {})[case.name] = phases
            RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


def _kept() -> dict[str, dict[str, dict[str, int]]]:
    found: dict[str, dict[str, dict[str, int]]] = json.loads(RESULTS.read_text())
    return found


def _rehearsed(case: Case) -> dict[str, int] | None:
    """Return the peak of each phase, None if the rehearsal failed: its last words are printed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "memagent", "rehearse", "--gpu", _CARD]
        command += ["--report", str(report), str(_SCRIPT), json.dumps(asdict(case))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        if not report.exists():
            print(done.stdout[-1000:], done.stderr[-1000:])
            return None
        found = json.loads(report.read_text())
    return found["phases"] if found["fits"] else None
