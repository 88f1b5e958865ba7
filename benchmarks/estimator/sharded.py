"""The formula beside rehearsals of FSDP: `python -m benchmarks.estimator sharded`.

Each case is trained by transformers' Trainer on rehearsed GPUs (`sharded_training.py`). A rehearsal
needs a CUDA build of torch, so the results of one are kept in `sharded.json` with its libraries'
versions; `--rehearse` adds those of the libraries at hand. The model families are split: the
formula's rules for FSDP were written beside `SEEN`, the others were rehearsed afterwards.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.estimator.corpus import Measured
from benchmarks.estimator.estimators import prediction_of
from memagent.estimator.formula.from_config import from_config
from memagent.estimator.formula.parallel import Parallel
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.training import estimate_training

SOURCE = "sharded"
RESULTS = Path(__file__).parent / "sharded.json"
_SCRIPT = Path(__file__).parent / "sharded_training.py"
_LIBRARIES = ("torch", "transformers", "accelerate", "peft")
_CARD = "h200"
_GIB = 2**30

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
    "gpt2": {
        "model_type": "gpt2", "vocab_size": 50257, "n_embd": 1600, "n_layer": 24, "n_head": 25,
        "n_positions": 1024,
    },
    "qwen2": {
        "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584,
        "intermediate_size": 18944, "num_hidden_layers": 6, "num_attention_heads": 28,
        "num_key_value_heads": 4, "max_position_embeddings": 8192, "tie_word_embeddings": False,
    },
    "gpt_bigcode": {
        "model_type": "gpt_bigcode", "vocab_size": 49280, "n_embd": 2048, "n_layer": 24,
        "n_head": 16, "n_inner": 8192, "n_positions": 2048,
    },
    "gemma": {
        "model_type": "gemma", "vocab_size": 256000, "hidden_size": 2048,
        "intermediate_size": 16384, "num_hidden_layers": 10, "num_attention_heads": 8,
        "num_key_value_heads": 1, "head_dim": 256, "max_position_embeddings": 8192,
    },
    "opt": {
        "model_type": "opt", "vocab_size": 50272, "hidden_size": 2048, "ffn_dim": 8192,
        "num_hidden_layers": 24, "num_attention_heads": 32, "max_position_embeddings": 2048,
        "word_embed_proj_dim": 2048,
    },
}  # fmt: skip
SEEN = ("mistral", "llama", "gpt2", "opt")
"""The families that the rules were written beside. OPT showed what losses before 4.50 do."""


@dataclass(frozen=True)
class Case:
    """A model and its training.

    - precision: `amp` is the Trainer's bf16=True, `bf16` without it.
    - peft_policy: the Trainer's own wrapping of adapted models, each adapter in a unit of its own.
      Without it, a layer is one unit, and its adapters are in bf16.
    """

    family: str
    batch: int
    length: int
    ranks: int = 2
    precision: str = "amp"
    checkpointing: str = "full"
    accumulation: int = 1
    lora_rank: int = 0
    peft_policy: bool = True
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        parts = [self.family, f"{self.batch} x {self.length}", f"{self.ranks} ranks"]
        parts += [self.precision] if self.precision != "amp" else []
        parts += ["stored"] if self.checkpointing == "none" else []
        parts += [f"accumulated {self.accumulation}"] if self.accumulation > 1 else []
        parts += [f"lora {self.lora_rank}"] if self.lora_rank else []
        parts += [] if self.peft_policy else ["layers as units"]
        return ", ".join(parts)


_PLANS: tuple[tuple[int, int, dict[str, Any]], ...] = (
    (2, 1024, {}),
    (8, 1024, {}),
    (4, 1024, {"precision": "bf16"}),
    (2, 1024, {"ranks": 8}),
    (1, 256, {}),
    (2, 1024, {"checkpointing": "none"}),
    (1, 512, {"checkpointing": "none", "ranks": 4}),
    (2, 512, {"checkpointing": "none", "precision": "bf16"}),
)
_ADAPTED = ("mistral", "llama", "qwen2")
"""Families whose attention has the layers that `sharded_training` adapts."""
_ADAPTED_PLANS: tuple[tuple[int, int, dict[str, Any]], ...] = (
    (2, 1024, {}),
    (8, 1024, {"ranks": 4}),
    (4, 1024, {"precision": "bf16"}),
    (2, 1024, {"checkpointing": "none"}),
    (1, 512, {"ranks": 8, "checkpointing": "none", "precision": "bf16"}),
    (2, 1024, {"peft_policy": False}),
    (4, 1024, {"peft_policy": False, "ranks": 4}),
    (4, 1024, {"peft_policy": False, "precision": "bf16"}),
)
CASES = tuple(
    Case(family, batch, length, config=config, **options)
    for family, config in _CONFIGS.items()
    for batch, length, options in _PLANS
) + tuple(
    Case(family, batch, length, config=_CONFIGS[family], lora_rank=16, **options)
    for family in _ADAPTED
    for batch, length, options in _ADAPTED_PLANS
)


@dataclass(frozen=True)
class ShardedRow:
    """Bytes of the tensors' peak on one rank, as rehearsed and by formula; is it in the interval?"""

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
            f"| {self.case.name} | {self.versions} | {seen} | {self.rehearsed / _GIB:.2f} "
            f"| {phase} | {100 * self.error_ratio:+.1f} % |"
        )


def rows() -> Iterator[ShardedRow]:
    """Return all kept rehearsals beside the formula."""
    cases = {case.name: case for case in CASES}
    for versions, peaks in _kept().items():
        for name, phases in peaks.items():
            if name in cases:
                yield _row(cases[name], versions, phases)


def _row(case: Case, versions: str, phases: Mapping[str, int]) -> ShardedRow:
    estimate = estimate_training(spec_of(case, _release_of(versions)))
    during = {name: size for name, size in phases.items() if name != "data"}
    peak = max(during.values())
    low, high = estimate.intervals["allocated"]
    return ShardedRow(
        case,
        versions,
        peak,
        during,
        estimate.peak_allocated_bytes,
        estimate.phases,
        is_held=low <= peak <= high,
    )


def read() -> list[Measured]:
    """Return the kept rehearsals with the formula's predictions."""
    cases = {case.name: case for case in CASES}
    return [
        _measured(cases[name], versions, phases)
        for versions, peaks in _kept().items()
        for name, phases in peaks.items()
        if name in cases
    ]


def _measured(case: Case, versions: str, phases: Mapping[str, int]) -> Measured:
    spec = spec_of(case, _release_of(versions))
    peak = max(size for name, size in phases.items() if name != "data")
    predicted = prediction_of(estimate_training(replace(spec, gpu=None)))
    return Measured(
        SOURCE,
        f"{case.name}, {versions}",
        case.family,
        {"allocated": peak},
        predictions={"formula": predicted},
    )


def _release_of(versions: str) -> str:
    return versions.split("transformers ")[1].split(",", maxsplit=1)[0]


def spec_of(case: Case, transformers: str) -> TrainingSpec:
    """Return the case as its Trainer runs it."""
    shape = from_config(dict(case.config))
    return TrainingSpec(
        shape,
        batch=case.batch,
        sequence=case.length,
        precision=case.precision,
        checkpointing="full" if case.checkpointing == "full" else "none",
        accumulation=case.accumulation,
        transformers=transformers,
        lora_rank=case.lora_rank or None,
        lora_bytes=4.0 if case.peft_policy else 2.0,
        fsdp_wrap="peft" if case.peft_policy else "layers",
        loop="trainer",
        use_cache=False,
        gpu=_CARD,
        parallel=Parallel(data=case.ranks, zero=3),
    )


def main(*, rehearse: bool, only: str = "") -> int:
    """Print the table and its medians; rehearse the cases with `only` in their names if asked to."""
    if rehearse:
        _rehearse_all(only)
    found = [row for row in rows() if only in row.case.name]
    print("| | libraries | | rehearsed GiB | peak in | formula |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in found:
        print(row.line())
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
        command += ["--ranks", str(case.ranks), "--report", str(report), str(_SCRIPT)]
        done = subprocess.run(
            [*command, json.dumps(asdict(case))],
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        if not report.exists():
            print(done.stdout[-1000:], done.stderr[-1000:])
            return None
        found = json.loads(report.read_text())
    return found["phases"] if found["fits"] else None
