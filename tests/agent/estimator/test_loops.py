"""The loops that estimates know, beside rehearsals of transformers' Trainer and of a plain loop."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memagent.errors import EstimateError
from memagent.estimator import engine
from memagent.estimator.api import device_fields, estimate
from memagent.estimator.formula.from_config import from_config
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.training import estimate_training
from memagent.estimator.huggingface import request_for_config
from memagent.estimator.trace.isolation import can_fork
from tests.agent.estimator.loop_script import BATCH, TOKENS

SCRIPT = Path(__file__).with_name("loop_script.py")
AGENT = str(Path(__file__).parents[3] / "agent")
CONFIG = {
    "model_type": "gpt2", "n_layer": 2, "n_embd": 256, "n_head": 4, "n_positions": 512,
    "vocab_size": 50257, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
WITHOUT = {**CONFIG, "use_cache": False}
SPEC = TrainingSpec(
    from_config(CONFIG), batch=BATCH, sequence=TOKENS, transformers="5.24", gpu="h100"
)
OUTPUT = BATCH * TOKENS * CONFIG["vocab_size"] * 2
LOOPS_BY_NEED = ("trainer", "step", "plain")
traced = pytest.mark.skipif(not can_fork(), reason="this system cannot fork a tracing process")


@pytest.fixture
def rehearsed(cuda_python: Path, tmp_path: Path):
    """Rehearse one loop, and return the peaks of its phases."""

    def run(loop: str, precision: str) -> dict[str, int]:
        config, report = tmp_path / "config.json", tmp_path / "report.json"
        config.write_text(json.dumps(CONFIG))
        words = ["-m", "memagent", "rehearse", "--gpu", "h100", "--report", str(report)]
        ended = subprocess.run(
            [str(cuda_python), *words, str(SCRIPT), loop, str(config), precision],
            env={**os.environ, "PYTHONPATH": AGENT}, capture_output=True, text=True, timeout=280,
        )  # fmt: skip
        assert report.exists(), ended.stderr[-2000:]
        phases: dict[str, int] = json.loads(report.read_text())["phases"]
        return phases

    return run


@traced
@pytest.mark.parametrize("loop", ["trainer", "plain"])
def test_trace_and_formula_have_the_peaks_of_a_rehearsed_loop(rehearsed, loop: Any) -> None:
    phases = rehearsed(loop, "bf16")
    request = request_for_config(
        CONFIG, batch=BATCH, sequence=TOKENS, loop=loop, **device_fields(gpu="h100")
    )
    by_trace = engine.estimate(request).phases
    by_formula = estimate_training(replace(SPEC, loop=loop)).phases
    for phase in ("forward", "backward", "optimizer"):
        assert by_trace[phase] == pytest.approx(phases[phase], rel=0.0002)
        assert by_formula[phase] == pytest.approx(phases[phase], rel=0.02)


@traced
@pytest.mark.parametrize("precision", ["fp32", "amp"])
def test_the_trainer_drops_what_a_plain_loop_carries_into_the_next_step(precision: str) -> None:
    dropped, step, carried = (
        engine.record(
            request_for_config(
                WITHOUT, batch=BATCH, sequence=TOKENS, precision=precision, loop=loop
            )
        )
        .summary()
        .phase_peak_bytes
        for loop in LOOPS_BY_NEED
    )
    output = OUTPUT * (2 if precision == "fp32" else 1)
    assert step["backward"] - dropped["backward"] == pytest.approx(output, rel=0.01)
    assert step["backward"] == carried["backward"]
    assert carried["forward"] - step["forward"] == pytest.approx(output, rel=0.01)
    assert carried["optimizer"] - step["optimizer"] == pytest.approx(output, rel=0.01)


@traced
def test_a_loop_of_ones_own_fills_a_cache_and_the_trainer_does_not() -> None:
    """Two layers' keys and values, in fp32; transformers 5.24 is installed."""
    sizes = {"batch": BATCH, "sequence": TOKENS, "precision": "fp32"}
    cache = 2 * 2 * BATCH * TOKENS * 256 * 4
    for loop, held in (("trainer", 0), ("step", cache), ("plain", cache)):
        peaks, specs = [], []
        for config in (CONFIG, WITHOUT):
            trace = engine.record(request_for_config(config, **sizes, loop=loop)).summary()
            peaks.append(trace.phase_peak_bytes["backward"])
            spec = replace(SPEC, model=from_config(config), loop=loop, precision="fp32")
            specs.append(estimate_training(spec).phases["backward"])
        assert peaks[0] - peaks[1] == specs[0] - specs[1] == held


def test_the_formula_has_the_same_differences() -> None:
    dropped, step, carried = (
        estimate_training(
            replace(SPEC, loop=loop, implementation="foreach", use_cache=False)
        ).phases
        for loop in LOOPS_BY_NEED
    )
    assert step["backward"] - dropped["backward"] == OUTPUT
    assert carried == {
        "forward": step["forward"] + OUTPUT,
        "backward": step["backward"],
        "optimizer": step["optimizer"] + OUTPUT,
    }
    assert dropped["optimizer"] == step["optimizer"]


@pytest.mark.parametrize(("version", "kind"), [("4.57", "foreach"), ("5.0", "fused")])
def test_the_trainers_adamw_is_fused_since_transformers_5(version: str, kind: str) -> None:
    spec = replace(SPEC, loop="trainer", transformers=version)
    assert spec.step_implementation == kind
    assert replace(spec, loop="plain").step_implementation == "foreach"
    assert replace(spec, optimizer="sgd").step_implementation == "foreach"


def test_another_loop_is_refused_with_the_choices() -> None:
    expected = 'loop is \'lightning\': use "trainer", "plain", "step"'
    for ask in (
        lambda: replace(SPEC, loop="lightning"),
        lambda: request_for_config(CONFIG, loop="lightning"),
        lambda: estimate(lambda: None, ((1,), "float32"), loop="lightning"),
    ):
        with pytest.raises(EstimateError, match=expected):
            ask()
