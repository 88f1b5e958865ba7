"""`memagent estimate` from the command line."""

from __future__ import annotations

import json
import sys

import pytest

from memagent.cli import main
from memagent.estimator.trace.isolation import can_fork

CONFIG = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_layer": 12,
    "n_embd": 768,
    "n_head": 12,
    "vocab_size": 50257,
    "n_positions": 1024,
}
SMALL = {
    **CONFIG,
    "n_layer": 2,
    "n_embd": 64,
    "n_head": 2,
    "vocab_size": 512,
    "n_positions": 128,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
traced = pytest.mark.skipif(not can_fork(), reason="this system cannot fork a tracing process")


@pytest.fixture
def estimate(capsys):
    """Call it with arguments: exit status, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(["estimate", *arguments])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


@pytest.fixture
def by_formula(estimate):
    """Call it without a trace."""

    def call(*arguments: str) -> tuple[int, str, str]:
        return estimate(*arguments, "--method", "formula")

    return call


@pytest.fixture
def factory(tmp_path):
    """A file with a model in it."""
    path = tmp_path / "mine.py"
    path.write_text(
        "import torch\n\n\ndef make():\n    layers = [torch.nn.Linear(512, 512) for _ in range(8)]\n"
        "    return torch.nn.Sequential(*layers)\n"
    )
    return f"{path}:make"


@pytest.fixture
def config(tmp_path):
    """A folder with a config.json."""

    def write(content: object) -> str:
        (tmp_path / "config.json").write_text(json.dumps(content))
        return str(tmp_path)

    return write


def rows(out: str) -> dict[str, str]:
    return {line[:18].strip(): line[18:] for line in out.splitlines()}


def test_it_prints_bars_levels_and_a_verdict_for_a_model_by_name(by_formula):
    status, out, err = by_formula("--model", "gpt2-xl", "--batch", "4", "--gpu", "24GiB")
    lines = rows(out)
    assert (status, err) == (0, "")
    assert out.startswith("gpt2-xl, batch 4, on 24GiB (1.56 billion parameters)\n")
    assert "5.80 GiB" in lines["parameters"] and "█" in lines["parameters"]
    assert all(
        " between " in lines[level]
        for level in ("tensors' peak", "reserved by torch", "on the device")
    )
    assert "optimizer" in lines["in each phase"]
    assert "won't fit: needs " in out and " of 24.00 GiB (predicted by formula)" in out
    assert "\033[" not in out


def test_color_is_for_terminals_only(by_formula, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\033[31m" in by_formula("--model", "gpt2-xl", "--gpu", "8GiB")[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033[" not in by_formula("--model", "gpt2-xl", "--gpu", "8GiB")[1]


def test_json_is_the_estimate_with_its_advice(by_formula):
    status, out, _ = by_formula("--model", "llama-7b", "--dtype", "mixed", "--json")
    output = json.loads(out)
    assert status == 0 and output["method"] == "formula"
    total = sum(
        output["components"][name] for name in ("parameters", "gradients", "optimizer_state")
    )
    assert total == pytest.approx(16 * 6_738_415_616, rel=0.01)  # 16 bytes a parameter
    assert output["advice"][0].keys() == {"change", "saving_bytes", "cost", "code"}


def test_lora_on_quantised_weights(by_formula):
    _, out, _ = by_formula("--model", "llama-7b", "--lora", "16", "--quantised", "nf4", "--json")
    output = json.loads(out)
    assert (
        3.2e9 < output["components"]["parameters"] < 4.5e9
        and output["assumptions"]["precision"] == "bf16"
    )
    _, out, _ = by_formula(
        "--model", "gpt2", "--lora", "8", "--json"
    )  # targets by the family's own names
    assert "c_attn" in json.loads(out)["assumptions"]["lora"]


def test_a_quantised_model_prepared_for_training(by_formula):
    command = ("--model", "llama-7b", "--lora", "16", "--quantised", "nf4")
    _, out, _ = by_formula(*command, "--kbit-training", "trl")
    assert "precision bf16-amp" in out and "kbit training trl" in out
    assert "enables checkpointing by default: choose full" in out


@pytest.mark.parametrize("option", ["--quantised nf4", "--lora-targets q_proj"])
def test_options_of_adapters_need_a_rank(estimate, config, option):
    for model in ("gpt2", config(SMALL)):
        status, _, err = estimate("--model", model, *option.split())
        assert status == 2 and f"{option.split()[0]} needs --lora-rank RANK" in err


def test_a_preparation_needs_quantised_weights(estimate, config):
    for model in ("gpt2", config(SMALL)):
        status, _, err = estimate("--model", model, "--lora", "8", "--kbit-training", "peft")
        assert status == 2 and "--kbit-training needs --quantised" in err


@traced
def test_quantised_weights_are_traced(estimate, config):
    pytest.importorskip("bitsandbytes")
    step = ("--model", config(SMALL), "--lora", "8", "--quantised", "nf4", "--json")
    output = json.loads(estimate(*step)[1])
    assert output["method"] == "trace" and output["assumptions"]["quantised"] == "nf4"


def test_trace_and_formula_train_the_same_adapters(estimate, config):
    command = ("--model", config(SMALL), "--lora", "8", "--json")
    traced, by_formula = (
        json.loads(estimate(*command, "--method", method)[1]) for method in ("trace", "formula")
    )
    assert traced["assumptions"]["lora"] == by_formula["assumptions"]["lora"]
    state = [item["components"]["optimizer_state"] for item in (traced, by_formula)]
    assert state[0] == pytest.approx(state[1], rel=0.01)


def state_bytes(out: str) -> list[float]:
    components = json.loads(out)["components"]
    return [components[name] for name in ("parameters", "gradients", "optimizer_state")]


@pytest.mark.parametrize(
    ("options", "shares"),
    [
        (["--zero", "1", "--ranks", "8"], (1, 1, 1 / 8)),
        (["--zero", "2", "--ranks", "8"], (1, 1 / 8, 1 / 8)),
        (["--zero", "3", "--ranks", "8"], (1 / 8, 1 / 8, 1 / 8)),
        (["--offload", "optimizer"], (1, 1, 0)),
        (["--tensor", "4"], (1 / 4, 1 / 4, 1 / 4)),
    ],
)
def test_each_gpu_holds_its_share(by_formula, options, shares):
    whole = state_bytes(by_formula("--model", "llama-7b", "--dtype", "bf16", "--json")[1])
    part = state_bytes(by_formula("--model", "llama-7b", "--dtype", "bf16", *options, "--json")[1])
    assert [b / a for a, b in zip(whole, part, strict=True)] == pytest.approx(shares, rel=0.01)


@pytest.mark.parametrize(
    "options",
    [
        ["--checkpointing", "full"],
        ["--checkpointing", "full", "--checkpoint-every", "4"],
        ["--loss", "fused"],
        ["--dtype", "bf16"],
        ["--optimizer", "adamw8bit"],
        ["--offload", "parameters"],
        ["--pipeline", "4"],
        ["--tensor", "2", "--sequence-parallel"],
    ],
)
def test_each_option_that_saves_memory_lowers_the_peak(by_formula, options):
    usual = json.loads(by_formula("--model", "llama-7b", "--batch", "4", "--json")[1])
    saving = json.loads(by_formula("--model", "llama-7b", "--batch", "4", *options, "--json")[1])
    assert saving["peak_allocated_bytes"] < usual["peak_allocated_bytes"]


def test_the_largest_batch_fits_and_one_more_does_not(by_formula):
    _, out, _ = by_formula("--model", "gpt2", "--gpu", "a100", "--max-batch", "--json")
    output = json.loads(out)
    fits = [
        json.loads(
            by_formula("--model", "gpt2", "--gpu", "a100", "--batch", str(size), "--json")[1]
        )["fits"]
        for size in (output["batch"], output["batch"] + 1)
    ]
    assert fits == [True, None] and output["estimate"]["assumptions"]["batch"] == output["batch"]
    _, text, _ = by_formula("--model", "gpt2", "--gpu", "a100", "--max-batch")
    assert text.endswith(
        f"batch {output['batch']} fits in 79.15 GiB, {output['batch'] + 1} is tight\n"
    )
    assert output["estimate"]["intervals"]["device"][1] <= 79.15 * 2**30
    status, out, _ = by_formula("--model", "llama-7b", "--gpu", "1GiB", "--max-batch")
    assert status == 1 and out.startswith("A batch of 1 won't fit in 1.00 GiB.")


@pytest.mark.parametrize(
    "sizes", [["1,64x128,1024"], ["batch=1,64", "seq=128,1024"], ["seq=128,1024", "batch=1,64"]]
)
def test_a_sweep_is_a_table_that_marks_what_does_not_fit(by_formula, sizes):
    _, out, _ = by_formula("--model", "gpt2", "--gpu", "8GiB", "--sweep", *sizes)
    head, short, long, foot = out.splitlines()
    assert head.split() == ["sequence", "batch", "1", "batch", "64"]
    assert short.split()[0] == "128" and long.split()[0] == "1024"
    assert long.count("!") == 1 and long.endswith("!") and "!" not in short.split("GiB")[0]
    assert foot == "! won't fit in 8.00 GiB, ~ is tight"


def test_a_sweep_in_json_has_an_estimate_for_each_cell(by_formula):
    _, out, _ = by_formula("--model", "gpt2", "--sweep", "batch=1,2", "--json")
    assert [(row["batch"], row["method"]) for row in json.loads(out)] == [
        (1, "formula"),
        (2, "formula"),
    ]


def test_a_sweep_without_values_uses_the_usual_batches(by_formula):
    _, out, _ = by_formula("--model", "gpt2", "--seq", "512", "--sweep", "--json")
    assert [(row["batch"], row["sequence"]) for row in json.loads(out)] == [
        (size, 512) for size in (1, 2, 4, 8, 16)
    ]


def test_it_reads_a_config_without_the_hub(by_formula, config):
    by_config = json.loads(by_formula("--model", config(CONFIG), "--json")[1])
    by_name = json.loads(by_formula("--model", "gpt2", "--json")[1])
    assert by_config["components"] == by_name["components"]


@traced
def test_a_config_is_traced_with_the_class_of_the_installed_transformers(estimate, config):
    pytest.importorskip("transformers", reason="transformers is not installed")
    status, out, _ = estimate("--model", config(SMALL), "--batch", "2", "--gpu", "a100", "--json")
    output = json.loads(out)
    assert status == 0 and output["method"] == "trace" and output["fits"]
    formula = json.loads(
        estimate(
            "--model", config(SMALL), "--batch", "2", "--dtype", "amp", "--ranks", "2", "--json"
        )[1]
    )
    assert formula["method"] == "formula"
    assert formula["fallback"] == "a trace does not support --ranks"
    assert formula["components"]["parameters"] == output["components"]["parameters"]


def test_a_config_unknown_to_transformers_is_estimated_by_formula(estimate, config):
    content = {
        **CONFIG,
        "model_type": "starcoder",
        "architectures": ["GPTBigCodeForCausalLM"],
    }  # the formula's own word for it
    status, out, _ = estimate("--model", config(content), "--json")
    assert status == 0 and json.loads(out)["method"] == "formula"
    status, _, err = estimate("--model", config(content), "--method", "trace")
    assert status == 1 and "starcoder" in err


def test_advice_lists_all_changes_with_code(by_formula):
    short = by_formula("--model", "gpt2-xl", "--gpu", "24GiB", "--optimizer", "adam")[1]
    assert (
        "What would save memory" in short
        and "bitsandbytes" not in short
        and "--advice shows" in short
    )
    out = by_formula("--model", "gpt2-xl", "--gpu", "24GiB", "--optimizer", "adam", "--advice")[1]
    assert "    optimizer = bitsandbytes.optim.Adam8bit(model.parameters(), lr=lr)" in out


def test_it_names_the_cheapest_change_that_fits(by_formula):
    out = by_formula("--model", "llama-7b", "--gpu", "a100", "--batch", "2", "--dtype", "mixed")[1]
    assert "The cheapest change that makes it fit: Weights, gradients and states in bf16." in out


def test_it_lists_changes_that_fit_only_together(by_formula):
    out = by_formula("--model", "llama-7b", "--gpu", "rtx4090", "--batch", "8")[1]
    named = out.partition("No change alone makes it fit on this GPU.")[2].splitlines()
    assert sum(line.startswith("  + ") for line in named) == 2


@traced
def test_a_factory_is_traced(estimate, factory):
    status, out, _ = estimate("--model", factory, "--input", "8x512", "--gpu", "a100", "--json")
    output = json.loads(out)
    assert status == 0 and output["method"] == "trace" and output["fits"]
    assert output["components"]["parameters"] == 8 * (512 * 512 + 512) * 4


@traced
def test_a_factory_that_cannot_be_traced_gets_no_estimate(estimate, tmp_path):
    path = tmp_path / "asks.py"
    path.write_text(
        "import torch\nclass Asks(torch.nn.Linear):\n"
        "    def forward(self, inputs):\n        return super().forward(inputs) * inputs.sum().item()"
        "\ndef make():\n    return Asks(512, 512)\n"
    )
    command = ("--model", f"{path}:make", "--input", "8x512", "--gpu", "a100")
    status, out, _ = estimate(*command)
    first, *lines = out.splitlines()
    answer = next(line for line in lines if line.startswith("unknown"))
    assert status == 1
    assert first.startswith("No estimate, but the least that it needs in place of a trace: not")
    assert answer.startswith("unknown: needs at least") and "activations are not known" in answer
    assert "activations      " not in out and "between" not in out
    status, out, _ = estimate(*command, "--json")
    output = json.loads(out)
    assert status == 1 and output["method"] == "bound" and "aten::sum" in output["fallback"]
    assert (output["verdict"], output["fits"], output["intervals"]) == ("unknown", None, {})
    status, out, _ = estimate(*command[:-1], "256MiB")
    assert status == 0 and "won't fit: needs at least" in out
    status, out, _ = estimate(*command, "--sweep", "batch=8")
    assert status == 1 and out.splitlines()[-1] == "? at least: activations are not known"


@traced
def test_it_lists_the_largest_tensors_and_advice_of_a_factory(estimate, factory):
    _, out, _ = estimate("--model", factory, "--input", "16384x512", "--gpu", "512MiB")
    assert "Largest tensors at the peak" in out and "reserved by torch" in out
    advice, command = out.splitlines()[-2:]
    assert advice == "--advice tries changes that would make it fit."
    step = f"--model {factory} --input 16384x512 --gpu 512MiB"
    assert command == f"To make it fit: memagent fit {step}"
    _, out, _ = estimate("--model", factory, "--input", "16384x512", "--gpu", "1GiB", "--advice")
    assert "Autocast to bf16" in out and "Smaller batch, accumulated" in out


@traced
@pytest.mark.long
def test_a_factorys_largest_batch_is_found_by_tracing(estimate, factory):
    status, out, _ = estimate(
        "--model", factory, "--input", "64x512", "--gpu", "2GiB", "--max-batch", "--json"
    )
    batch = json.loads(out)["batch"]
    assert status == 0 and batch > 64

    def fits(size: int) -> bool:
        return json.loads(
            estimate("--model", factory, "--input", f"{size}x512", "--gpu", "2GiB", "--json")[1]
        )["fits"]

    assert fits(batch) and not fits(batch + batch // 32)


@traced
def test_a_factory_is_swept_over_its_batch(estimate, factory):
    _, out, _ = estimate(
        "--model", factory, "--input", "64x512", "--sweep", "batch=64,128", "--json"
    )
    assert [row["batch"] for row in json.loads(out)] == [64, 128]
    status, _, err = estimate(
        "--model", factory, "--input", "64x512", "--sweep", "batch=64", "seq=3"
    )
    assert status == 2 and "--input" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "gpt2", "--gpu", "lots"], "--gpu 'lots' is not known"),
        (["--model", "gpt2", "--gpu", "a6001"], "did you mean a6000, "),
        (["--model", "gpt2", "--gpu", "24"], "a memory needs a unit: write 24GiB, or a card"),
        (["--model", "gpt2", "--gpu", "a100 60gb"], "is sold with 80GB or 40GB"),
        (["--model", "gpt2", "--max-batch"], "--max-batch needs --gpu"),
        (["--model", "gpt2", "--sweep", "a,b"], "--sweep a,b is not"),
        (["--model", "gpt2", "--sweep", "batch=0"], "--sweep batch=0 is not"),
        (["--model", "gpt2", "--sweep", "heads=2"], "write --sweep batch=1,2,4 sequence=512,1024"),
        (["--model", "gpt2", "--input", "8"], "--input is for path.py:factory"),
        (["--model", "gpt2", "--batch", "0"], "--batch is 0: give 1 or more"),
        (["--model", "gpt2", "--seq", "-5"], "--sequence is -5"),
        (["--model", "llama-3-8b", "--seq", "99999999999"], "give at most 16777216"),
        (["--model", "gpt2", "--sweep", "batch=1,99999999999"], "batch of --sweep is 99999999999"),
        (["--model", "gpt2", "--lora-rank", "99999999"], "--lora-rank is 99999999: give at most"),
        (["--model", "gpt2", "--lora-rank", "8", "--lora-targets", ""], "--lora-targets is empty"),
        (["--model", "gpt2", "--ranks", "99999999999"], "--ranks is 99999999999: give at most"),
        (["--model", "gpt2", "--pipeline", "13"], "--pipeline is 13: gpt2 has 12 layers"),
        (["--model", "gpt2", "--tensor", "16"], "--tensor is 16: give a divisor of gpt2's 12"),
        (["--model", "gpt2", "--tensor", "5"], "a divisor of gpt2's 12 attention heads"),
        (["--model", "gpt2", "--fsdp-wrap", "peft"], "with --lora-rank and --zero 3 only"),
        (["--model", "gpt2", "--context", "300"], "--context 300 has no unit: write 300MiB"),
        (["--model", "gpt2", "--context", "9TiB"], "--context is 9TiB: give at most 16"),
        (["--model", ""], "--model is empty"),
        (["--model", "gpt2", "--seq", "2048"], "--sequence is 2,048: gpt2 has 1,024 positions"),
        (["--model", "gpt2", "--timeout", "0"], "--timeout is 0: give more than 0 seconds"),
        (["--model", "gpt2", "--timeout", "nan"], "--timeout is nan: give more than 0 seconds"),
        (["--model", "gpt2", "--transformers", "new"], "--transformers is 'new'"),
        (["--model", "gpt2", "--quantised", "nf4"], "needs --lora-rank"),
        (
            ["--model", "gpt2", "--lora", "8", "--lora-targets", "q_proj"],
            "--lora-targets q_proj match",
        ),
        (["--model", "gpt2", "--dtype", "fp3"], "fp3"),
        (["--model", "gpt2", "--optimizer", "adamm"], "adamm"),
        (["--model", "missing/config.json"], "missing/config.json does not exist"),
        (["--model", "train.py"], "--model train.py names no function: train.py:FACTORY is one"),
        (["--model", "x.py:make", "--input", "8x8"], "x.py does not exist"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(estimate, arguments, words):
    status, out, err = estimate(*arguments)
    assert (status, out) == (2, "")
    assert words in err and err.count("\n") == 1 and err.startswith("memagent: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lora-rank", "8"], "--lora-rank: a factory is traced as it is"),
        (["--zero", "3", "--ranks", "8"], "--zero, --ranks: a factory is traced as it is"),
        (["--attention", "eager"], "--attention: a factory is traced"),
        (["--checkpointing", "selective"], "--checkpointing selective: a factory"),
        (["--precision", "mixed"], "--precision mixed: a factory is traced with one of fp32, amp"),
        (["--input", "0x8"], "--input 0x8: give 1 to 1099511627776 values"),
        (["--input", "99999999999999x8"], "--input 99999999999999x8: give 1 to"),
        (["--input", "4x8:float33"], "dtype float33 is not known (did you mean float32?)"),
    ],
)
def test_a_factory_gets_no_number_that_leaves_an_option_out(estimate, tmp_path, arguments, words):
    path = tmp_path / "net.py"
    path.write_text("import torch\ndef net(): return torch.nn.Linear(8, 8)\n")
    status, out, err = estimate("--model", f"{path}:net", "--input", "4x8", *arguments)
    assert (status, out) == (2, "") and words in err and err.count("\n") == 1


def test_a_name_longer_than_a_file_can_have_is_an_unknown_model(estimate):
    status, out, err = estimate("--model", "a" * 5000)
    assert (status, out) == (1, "") and "is not known" in err and err.count("\n") == 1


@pytest.mark.parametrize("name", ["gpt9", "some/unknown-model"])
def test_an_unknown_model_gets_no_number_and_exit_status_1(estimate, name):
    status, out, err = estimate("--model", name, "--batch", "256", "--gpu", "a10")
    assert (status, out) == (1, "") and err.count("\n") == 1
    assert (
        "did you mean" in err
        and "give its config.json (--hub fetches it), or path.py:factory" in err
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Qwen/Qwen2.5-VL-7B-Instruct", "images within a text are traced only by path.py:factory"),
        ("meta-llama/Llama-4-Scout-17B-16E", "images within a text"),
        ("stabilityai/stable-diffusion-xl-base-1.0", "a diffusion pipeline"),
        ("facebook/detr-resnet-50", "detectors are traced only by path.py:factory"),
    ],
)
def test_a_model_whose_inputs_no_config_describes_is_not_taken_for_its_text_model(
    estimate, name, words
):
    status, out, err = estimate("--model", name, "--gpu", "a10")
    assert (status, out) == (1, "") and words in err and "did you mean" not in err


@traced
def test_adapters_without_a_default_of_peft_name_the_models_layers(estimate):
    pytest.importorskip("peft", reason="peft is not installed")
    command = ["--lora", "8", "--gpu", "a10"]
    status, out, err = estimate("--model", "microsoft/resnet-18", *command)
    assert (status, out) == (2, "") and err.count("\n") == 1
    assert "--lora-targets is missing, and peft has no default for resnet: give some of conv" in err


@traced
def test_a_name_that_the_formula_does_not_know_is_traced(estimate):
    pytest.importorskip("transformers", reason="transformers is not installed")
    command = ["--model", "microsoft/resnet-50", "--dtype", "fp32", "--gpu", "a10", "--json"]
    output = json.loads(estimate(*command, "--batch", "256")[1])
    assert output["method"] == "trace" and output["verdict"] in ("tight", "won't fit")
    assert output["components"]["activations"] > 20 * 2**30
    assert output["assumptions"]["versions"].keys() >= {"torch", "transformers"}
    status, out, err = estimate(*command, "--method", "formula")
    assert (status, out) == (1, "") and "pip install torch transformers" in err


@traced
def test_a_name_and_its_config_get_the_same_trace(estimate, config):
    pytest.importorskip("transformers", reason="transformers is not installed")
    by_config, by_name = (
        json.loads(estimate("--model", model, "--json")[1]) for model in (config(CONFIG), "gpt2")
    )
    assert by_name["method"] == "trace" and by_name["fallback"] is None
    assert by_name["components"] == by_config["components"]


def test_it_says_first_why_a_name_is_not_traced(estimate):
    pytest.importorskip("transformers", reason="transformers is not installed")
    out = estimate("--model", "gpt2", "--optimizer", "adamw8bit", "--zero", "3", "--ranks", "2")[1]
    words = "By formula in place of a trace: a trace does not support --optimizer, --ranks, --zero"
    assert out.startswith(words + "\n")


@traced
def test_a_trace_that_runs_out_of_time_says_so_in_its_first_line(estimate, config):
    pytest.importorskip("transformers", reason="transformers is not installed")
    command = ["--model", config(SMALL), "--batch", "2", "--timeout", "0.000001"]
    output = json.loads(estimate(*command, "--json")[1])
    assert output["method"] == "formula" and "of processor time" in output["fallback"]
    by_formula = json.loads(
        estimate("--model", config(SMALL), "--batch", "2", "--method", "formula", "--json")[1]
    )
    assert output["peak_allocated_bytes"] == by_formula["peak_allocated_bytes"]
    assert by_formula["fallback"] is None
    first = estimate(*command)[1].splitlines()[0]
    assert first.startswith("By formula in place of a trace: not traced: the trace was aborted")


@traced
def test_no_number_without_activations_replaces_a_trace_that_fails(estimate):
    pytest.importorskip("transformers", reason="transformers is not installed")
    status, out, err = estimate("--model", "facebook/hubert-base-ls960", "--timeout", "0.000001")
    assert (status, out) == (1, "")
    assert "--timeout" in err and "the formula, which would answer instead, doesn't know" in err


def test_an_older_transformers_copies_the_logits_of_its_loss(by_formula):
    command = ["--model", "llama-3-8b", "--lora", "8", "--checkpointing", "full", "--batch", "8"]
    needs = [
        json.loads(by_formula(*command, "--transformers", version, "--json")[1])
        for version in ("4.45.2", "4.48", "5.0")
    ]
    logits = 8 * 2048 * 128_256
    forward = [need["phases"]["forward"] for need in needs]
    assert forward[1] - forward[0] == pytest.approx(2 * logits, rel=0.01)
    assert forward[1] - forward[2] == pytest.approx(4 * logits, rel=0.01)
    assert needs[0]["assumptions"]["transformers"] == "4.45.2"


@pytest.mark.parametrize("gpu", ["4090", "RTX 4090", "rtx-4090", "NVIDIA GeForce RTX 4090"])
def test_a_card_has_the_memory_that_its_driver_offers(by_formula, gpu):
    _, out, _ = by_formula("--model", "gpt2", "--gpu", gpu, "--json")
    assert json.loads(out)["limit_bytes"] == pytest.approx(23.53 * 2**30, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "are missing: give --input"),
        (["--input", "8x"], "--input '8x' is not"),
        (["--input", "a=8x8", "--input", "8x8"], "give all inputs a name, or none"),
        (["--input", "8x8", "--batch", "4"], "a factory's are in --input"),
    ],
)
def test_a_mistake_about_a_factory_is_one_line(estimate, factory, options, words):
    status, out, err = estimate("--model", factory, *options)
    assert (status, out) == (2, "") and words in err and err.count("\n") == 1


def test_a_trace_refuses_options_of_the_formula_only(estimate, config):
    status, _, err = estimate(
        "--model", config(SMALL), "--method", "trace", "--zero", "3", "--ranks", "8"
    )
    assert status == 2 and "--ranks, --zero" in err and "--method formula" in err


def test_it_names_an_invalid_config(estimate, config):
    assert "no object" in estimate("--model", config([]))[2]
    status, _, err = estimate("--model", config({"hidden_size": 3}), "--method", "formula")
    assert status == 2 and "model_type" in err


@pytest.mark.parametrize(
    ("canonical", "alias"),
    [
        (["--sequence", "128"], ["--seq", "128"]),
        (["--precision", "bf16"], ["--dtype", "bf16"]),
        (["--implementation", "single"], ["--step", "single"]),
        (["--accumulation", "4"], ["--accumulate", "4"]),
        (["--lora-rank", "8"], ["--lora", "8"]),
        (["--offload-optimizer"], ["--offload", "optimizer"]),
        (["--offload-parameters"], ["--offload", "parameters"]),
    ],
)
def test_an_option_has_the_name_of_the_api_and_an_alias(by_formula, canonical, alias):
    plain = by_formula("--model", "gpt2", "--json")[1]
    changed = by_formula("--model", "gpt2", *canonical, "--json")[1]
    assert plain != changed == by_formula("--model", "gpt2", *alias, "--json")[1]


def test_the_loop_of_a_name_is_the_trainers(by_formula):
    _, usual, _ = by_formula("--model", "gpt2", "--json")
    _, plain, _ = by_formula("--model", "gpt2", "--loop", "plain", "--json")
    usual, plain = json.loads(usual), json.loads(plain)
    assert (usual["assumptions"]["loop"], plain["assumptions"]["loop"]) == ("trainer", "plain")
    assert usual["peak_allocated_bytes"] < plain["peak_allocated_bytes"]


@traced
def test_the_loop_of_a_factory_is_a_plain_one(estimate, factory):
    words = ("--model", factory, "--input", "4x512", "--json")
    _, printed, _ = estimate(*words)
    assert json.loads(printed)["assumptions"]["loop"] == "plain"
    _, printed, _ = estimate(*words, "--loop", "step")
    assert json.loads(printed)["assumptions"]["loop"] == "step"


def test_adapters_under_fsdp_are_counted_by_their_wrapping(by_formula):
    words = ("--model", "llama-2-7b", "--lora", "8", "--zero", "3", "--ranks", "2", "--json")
    said = [json.loads(by_formula(*words, *wrap)[1]) for wrap in ((), ("--fsdp-wrap", "peft"))]
    peaks = [answer["peak_allocated_bytes"] for answer in said]
    assert peaks[0] > peaks[1] >= said[0]["intervals"]["allocated"][0]


def test_what_will_not_fit_names_the_command_that_fits_it(by_formula):
    words = ("--model", "gpt2", "--batch", "64", "--gpu", "RTX 4090", "--loop", "plain")
    _, printed, _ = by_formula(*words)
    expected = "memagent fit --model gpt2 --batch 64 --loop plain --gpu 'RTX 4090'"
    assert printed.splitlines()[-1] == f"To make it fit: {expected}"


@pytest.mark.parametrize("option", [("--zero", "3", "--ranks", "2"), ("--optimizer", "adamw8bit")])
def test_what_fit_cannot_trace_has_no_such_command(by_formula, option):
    _, printed, _ = by_formula("--model", "gpt2-xl", "--batch", "64", "--gpu", "t4", *option)
    assert "won't fit" in printed and "memagent fit" not in printed


BERT = {
    "model_type": "bert",
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 99,
}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--gpu", "t4"), "The t4 has no bf16, which torch emulates; attention then holds"),
        (("--gpu", "v100", "--precision", "bf16", "--attention", "eager"), "torch emulates."),
        (("--gpu", "a100", "--precision", "fp8"), "The a100 has no fp8"),
        (("--gpu", "h100", "--precision", "fp8"), ""),
        (("--gpu", "t4", "--precision", "fp16"), ""),
        (("--gpu", "mi300x"), ""),
        (("--gpu", "16GiB"), ""),
    ],
)
def test_the_first_line_says_that_the_card_lacks_the_precision(by_formula, options, words):
    document = json.loads(by_formula("--model", "gpt2", *options, "--json")[1])
    remarks = document["assumptions"].get("remarks", [])
    assert words in "".join(remarks) and len(remarks) == bool(words)


@traced
def test_a_factory_on_a_card_without_bf16_gets_no_advice_on_attention(estimate, factory):
    words = ("--model", factory, "--input", "8x512", "--gpu", "t4", "--precision", "amp")
    out = estimate(*words)[1]
    assert out.splitlines()[0] == "The t4 has no bf16, which torch emulates."


@traced
def test_the_first_line_names_a_class_that_the_config_does_not_name(estimate, config):
    pytest.importorskip("transformers", reason="transformers is not installed")
    words = ("--model", config(BERT), "--sequence", "16")
    status, out, err = estimate(*words)
    choice = "BertForMaskedLM was chosen, since the config names no class."
    assert (status, err) == (0, "") and out.splitlines()[0] == choice
    assert json.loads(estimate(*words, "--json")[1])["assumptions"]["remarks"] == [choice]


def test_the_first_line_names_a_head_that_the_config_does_not_name(by_formula, config):
    _, out, _ = by_formula("--model", config(BERT))
    choice = "A head for masked tokens was chosen, since the config names no class."
    assert out.splitlines()[0] == choice


def test_the_first_line_names_a_part_of_the_model_that_is_left_out(estimate):
    _, out, _ = estimate("--model", "google/gemma-3-4b-it", "--sequence", "64")
    assert "vision tower is left out" in out.splitlines()[0]


@traced
@pytest.mark.parametrize("model_class", ["BertForMaskedLM", "BertForSequenceClassification"])
@pytest.mark.parametrize("options", [(), ("--lora", "4")], ids=["plain", "adapters"])
def test_the_heading_names_the_class_that_was_traced(estimate, config, options, model_class):
    """An encoder has many: the head decides half of the memory of a small one."""
    for package in ("transformers", *(("peft",) if options else ())):
        pytest.importorskip(package, reason=f"{package} is not installed")
    path = config({**BERT, "architectures": [model_class]})
    status, out, err = estimate("--model", path, "--batch", "2", "--sequence", "16", *options)
    assert (status, err) == (0, "")
    assert out.splitlines()[1].startswith(f"model class {model_class}, ")
