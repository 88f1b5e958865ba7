"""Every snippet runs unchanged on a small model of each kind.

Without a GPU, WITHOUT_GPU replaces what needs one, and torchao's offloading optimizer is only looked
up.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from memagent.estimator import engine
from memagent.estimator.advice import by_formula
from memagent.estimator.advice.catalog import CHANGES
from memagent.estimator.advice.program_changes import SmallerBatch
from memagent.estimator.advice.script_profile import (
    ScriptProfile,
    checkpointing_method,
    profile_of_spec,
    profile_of_trace,
)
from memagent.estimator.formula.presets import preset
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.training import estimate_formula
from memagent.estimator.request import FormulaRequest, TraceRequest
from memagent.wire.messages import AdviceItem

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
ROOT = Path(__file__).parents[4]
BY_KEY = {change.key: change for change in (*CHANGES, SmallerBatch(4, 2))}
WITHOUT_GPU = {'"cuda"': '"cpu"', "CPUOffloadPolicy()": "CPUOffloadPolicy(pin_memory=False)"}
SHARDED = ("zero_1", "zero_2", "zero_3", "offload_parameters")
TRANSFORMERS = ScriptProfile(
    True, "AdamW", "model.model.layers", ("q_proj", "k_proj", "v_proj", "o_proj")
)
PLAIN = ScriptProfile(False, "AdamW", "model.blocks", ("up", "down"))


def advise(spec: TrainingSpec, limit_bytes: int | None = None) -> tuple[AdviceItem, ...]:
    request = FormulaRequest(spec, limit_bytes)
    return by_formula.advise(request, estimate_formula(request))


class Plain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(50, 64)
        self.head = torch.nn.Linear(64, 50)
        self.blocks = torch.nn.ModuleList(torch.nn.Sequential() for _ in range(2))
        for block in self.blocks:
            block.add_module("up", torch.nn.Linear(64, 128))
            block.add_module("down", torch.nn.Linear(128, 64))

    def features(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(inputs)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return hidden

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(inputs))


def llama():
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=50,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        attn_implementation="eager",
    )
    return transformers.LlamaForCausalLM(config)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder that `from_pretrained` takes for a model's name."""
    folder = tmp_path_factory.mktemp("tiny")
    llama().save_pretrained(folder)
    return str(folder)


def names_for(script: ScriptProfile, name: str = "") -> dict[str, object]:
    torch.manual_seed(0)
    ids = torch.randint(0, 50, (4, 16))
    model = llama() if script.transformers else Plain()
    heads = torch.randn(3, 4, 16, 8).unbind(0)
    return {
        "torch": torch,
        "model": model,
        "lr": 1e-3,
        "name": name,
        "batch": {"input_ids": ids, "labels": ids},
        "inputs": ids,
        "targets": ids,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3),
        "loss_of": lambda output, targets: torch.nn.functional.cross_entropy(
            output.flatten(0, 1), targets.flatten()
        ),
        **dict(zip(("query", "key", "value"), heads, strict=True)),
    }


def run(key: str, script: ScriptProfile, name: str = "") -> dict[str, object]:
    names = names_for(script, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft and torch itself call what is deprecated
        lines = BY_KEY[key].snippet(script)
        for with_gpu, without in WITHOUT_GPU.items():
            lines = lines.replace(with_gpu, without)
        exec(compile(lines, key, "exec"), names)
    return names


def train(names: dict[str, object]) -> torch.Tensor:
    """One step with what the lines made."""
    model, batch = names["model"], names["batch"]
    is_transformers = isinstance(model, transformers.PreTrainedModel) or hasattr(
        model, "peft_config"
    )
    takes_batch = is_transformers and hasattr(model, "config")
    loss = (
        model(**batch).loss
        if takes_batch
        else names["loss_of"](model(names["inputs"]).float(), names["targets"])
    )
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize("script", [PLAIN, TRANSFORMERS], ids=["torch", "transformers"])
@pytest.mark.parametrize(
    "key",
    [
        "zero_grad",
        "attention",
        "optimizer_step",
        "autocast",
        "in_bf16",
        "chunked_loss",
        "adafactor",
        "checkpointing",
        SmallerBatch.key,
    ],
)
def test_a_snippet_runs_unchanged(key, script):
    assert train(run(key, script)).isfinite()


def test_the_snippet_for_a_key_value_cache_runs_unchanged():
    assert train(run("no_cache", TRANSFORMERS)).isfinite()


@pytest.mark.parametrize("script", [PLAIN, TRANSFORMERS], ids=["torch", "transformers"])
def test_the_chunked_loss_is_the_same_loss(script):
    names = run("chunked_loss", script)
    model, batch = names["model"], names["batch"]
    right = (
        model(**batch).loss
        if script.transformers
        else names["loss_of"](model(names["inputs"]), names["targets"])
    )
    assert torch.allclose(names["loss"], right, rtol=1e-4)


@pytest.mark.parametrize("script", [PLAIN, TRANSFORMERS], ids=["torch", "transformers"])
def test_checkpointing_recomputes_every_block_with_the_same_gradients(script):
    with_it, without = run("checkpointing", script), names_for(script)
    calls = []
    modules = with_it["model"].model.layers if script.transformers else with_it["model"].blocks
    for block in modules:
        next(block.children()).register_forward_hook(lambda *_: calls.append(1))
    with_it["model"].train()
    without["model"].train()
    assert train(with_it) == train(without)
    assert len(calls) == 2 * len(modules)
    for actual, right in zip(
        with_it["model"].parameters(), without["model"].parameters(), strict=True
    ):
        assert torch.allclose(actual.grad, right.grad, atol=1e-6)


def test_snippets_call_nothing_that_transformers_deprecates():
    assert hasattr(transformers.PreTrainedModel, checkpointing_method())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(BY_KEY["checkpointing"].snippet(TRANSFORMERS), {"model": llama()})


@pytest.mark.parametrize("script", [PLAIN, TRANSFORMERS], ids=["torch", "transformers"])
def test_a_batch_in_parts_has_the_gradients_of_the_whole(script):
    parts, whole = names_for(script), names_for(script)
    parts["optimizer"] = whole["optimizer"] = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    exec(BY_KEY[SmallerBatch.key].snippet(script), parts)
    train(whole)
    for actual, right in zip(parts["model"].parameters(), whole["model"].parameters(), strict=True):
        assert torch.allclose(actual.grad, right.grad, atol=1e-5)


def train_sharded(folder: str) -> None:
    """Run the snippets that shard, in a subprocess: the process group leaves threads behind."""
    warnings.simplefilter("ignore")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/group", rank=0, world_size=1
    )
    for key in SHARDED:
        for script in (PLAIN, TRANSFORMERS):
            assert train(run(key, script)).isfinite()
            print(key)
    torch.distributed.destroy_process_group()


def test_sharding_snippets_run_on_one_rank(tmp_path):
    here = ".".join(Path(__file__).relative_to(ROOT).with_suffix("").parts)
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from {here} import train_sharded; "
        f"train_sharded({str(tmp_path)!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == [key for key in SHARDED for _ in range(2)], done.stderr


@pytest.mark.parametrize("key", ["eight_bit", "paged"])
def test_bitsandbytes_has_the_optimizers(key):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    assert type(run(key, TRANSFORMERS)["optimizer"]).__name__.endswith("8bit")


@pytest.mark.parametrize("script", [PLAIN, TRANSFORMERS], ids=["torch", "transformers"])
def test_lora_trains_adapters_only(script):
    pytest.importorskip("peft", reason="peft is not installed")
    names = run("lora", script)
    train(names)
    trained = [
        name for name, parameter in names["model"].named_parameters() if parameter.grad is not None
    ]
    assert trained and all("lora_" in name for name in trained)


def test_qlora_loads_in_four_bits(saved):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    names = run("qlora", TRANSFORMERS, saved)
    kinds = {type(module).__name__ for module in names["model"].modules()}
    assert "Linear4bit" in kinds and any(
        "lora" in name for name, _ in names["model"].named_parameters()
    )


def test_the_offloading_optimizer_accepts_the_arguments():
    torchao = pytest.importorskip("torchao.optim", reason="torchao is not installed")
    inspect.signature(torchao.CPUOffloadOptimizer).bind(
        [], torch.optim.AdamW, lr=1e-3
    )  # it is made on a GPU only
    compile(BY_KEY["offload_optimizer"].snippet(PLAIN), "offload", "exec")


def test_the_allocators_setting_is_exported():
    line = BY_KEY["expandable_segments"].snippet(PLAIN)
    code = "import os; print(os.environ['PYTORCH_CUDA_ALLOC_CONF'])"
    finished = subprocess.run(
        ["sh", "-c", f'{line}; exec "$0" -c "{code}"', sys.executable],
        capture_output=True,
        text=True,
        check=True,
    )
    assert finished.stdout == "expandable_segments:True\n"


def test_every_snippet_has_a_test():
    here = {
        "zero_grad",
        "attention",
        "no_cache",
        "optimizer_step",
        "autocast",
        "in_bf16",
        "chunked_loss",
        "adafactor",
        "checkpointing",
    }
    here |= {
        SmallerBatch.key,
        *SHARDED,
        "eight_bit",
        "paged",
        "lora",
        "qlora",
        "offload_optimizer",
        "expandable_segments",
    }
    assert here == set(BY_KEY)


def test_snippets_fit_the_script():
    assert profile_of_spec(TrainingSpec(preset("gpt2"), optimizer="sgd")) == ScriptProfile(
        True, "SGD", "model.transformer.h", ("c_attn", "c_proj")
    )
    lines = {
        item.change: item.code for item in advise(TrainingSpec(preset("gpt2"), 8, optimizer="adam"))
    }
    assert (
        "bitsandbytes.optim.Adam8bit(" in lines["8-bit Adam"]
        and "model.transformer.h" in lines["FSDP (ZeRO-3)"]
    )


def test_it_reads_the_profile_from_a_trace():
    ids = ((2, 8), "int64")
    plain = profile_of_trace(engine.record(TraceRequest(Plain, ids, optimizer="sgd")))
    assert plain == ScriptProfile(False, "SGD", "model.blocks", ("up", "down"))
    large = ((16, 512), "int64")  # small tensors have no source line
    traced = profile_of_trace(
        engine.record(TraceRequest(llama, {"input_ids": large, "labels": large}))
    )
    assert traced == TRANSFORMERS


def test_a_sequence_of_blocks_is_the_model_itself():
    def stack():
        return torch.nn.Sequential(
            *(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(3))
        )

    request = TraceRequest(stack, ((2, 8), "float32"), loss=lambda output: output.mean())
    script = profile_of_trace(engine.record(request))
    assert script == ScriptProfile(False, "AdamW", "model", ())
    names = {"model": stack()}
    exec(BY_KEY["checkpointing"].snippet(script), names)
    names["model"](torch.ones(2, 8)).sum().backward()
