"""`memagent estimate` as people call it."""

from __future__ import annotations

import json

import pytest

from memagent.cli import main


@pytest.fixture
def estimate(capsys):
    """Call it with arguments: exit status, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(["estimate", *arguments])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


def test_a_model_by_name_is_a_table_with_bars_and_a_verdict(estimate):
    status, out, _ = estimate("--model", "gpt2-xl", "--batch", "4", "--gpu", "24GiB")
    assert status == 0
    rows = {line.split("  ")[0].strip(): line for line in out.splitlines()}
    assert "5.80 GiB" in rows["parameters"] and "█" in rows["parameters"]
    assert "will not fit: needs " in out and " of 24.00 GiB (predicted by formula)" in out


def test_json_is_the_estimate(estimate):
    status, out, _ = estimate("--model", "llama-7b", "--dtype", "mixed", "--json")
    found = json.loads(out)
    assert status == 0 and found["method"] == "formula"
    held = sum(found["components"][name] for name in ("parameters", "gradients", "optimizer_state"))
    assert held == pytest.approx(16 * 6_738_415_616, rel=0.01)  # 16 bytes a parameter


def test_lora_on_quantised_weights(estimate):
    _, out, _ = estimate("--model", "llama-7b", "--lora", "16", "--quantised", "nf4", "--json")
    assert 3.2e9 < json.loads(out)["components"]["parameters"] < 4.5e9


def test_the_largest_batch_fits_and_one_more_does_not(estimate):
    _, out, _ = estimate("--model", "gpt2", "--gpu", "a100", "--max-batch", "--json")
    batch = json.loads(out)["batch"]
    fits = [
        json.loads(estimate("--model", "gpt2", "--gpu", "a100", "--batch", str(size), "--json")[1])["fits"]
        for size in (batch, batch + 1)
    ]
    assert fits == [True, False]
    status, out, _ = estimate("--model", "llama-7b", "--gpu", "1GiB", "--max-batch")
    assert (status, out) == (1, "not even a batch of 1 fits in 1.00 GiB\n")


def test_a_sweep_is_a_table_that_marks_what_does_not_fit(estimate):
    _, out, _ = estimate("--model", "gpt2", "--gpu", "8GiB", "--sweep", "1,64x128,1024")
    head, short, long = out.splitlines()
    assert head.split() == ["sequence", "batch", "1", "batch", "64"]
    assert short.split()[0] == "128" and long.split()[0] == "1024"
    assert long.count("!") == 1 and long.rstrip().endswith("!") and "!" not in short.split("GiB")[0]


def test_a_config_of_hugging_face_is_read_without_its_hub(estimate, tmp_path):
    config = {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 12, "n_embd": 768, "n_head": 12,
        "vocab_size": 50257, "n_positions": 1024,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    _, by_config, _ = estimate("--model", str(tmp_path / "config.json"), "--json")
    _, by_name, _ = estimate("--model", "gpt2", "--json")
    assert json.loads(by_config)["components"]["parameters"] == json.loads(by_name)["components"]["parameters"]


def test_advice_is_ranked_and_has_code(estimate):
    _, out, _ = estimate("--model", "gpt2-xl", "--gpu", "24GiB", "--advice")
    assert (
        "- A fused optimizer step: saves " in out
        and "    torch.optim.AdamW(model.parameters(), lr=lr, fused=True)" in out
    )


def test_a_factory_is_traced(estimate, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("import torch\ndef make():\n    return torch.nn.Linear(1024, 1024)\n")
    status, out, _ = estimate("--model", f"{path}:make", "--input", "8x1024", "--gpu", "a100", "--json")
    found = json.loads(out)
    assert status == 0 and found["method"] == "trace" and found["fits"]
    assert found["components"]["parameters"] == (1024 * 1024 + 1024) * 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "gpt9"], "'gpt9' is not known"),
        (["--model", "gpt2", "--gpu", "lots"], "'lots' is not a size"),
        (["--model", "gpt2", "--max-batch"], "--max-batch needs --gpu"),
        (["--model", "gpt2", "--sweep", "a,b"], "--sweep a,b is not"),
        (["--model", "gpt2", "--input", "8"], "--input is for path.py:factory"),
        (["--model", "gpt2", "--quantised", "nf4"], "go with --lora"),
        (["--model", "gpt2", "--dtype", "fp3"], "fp3"),
        (["--model", "missing/config.json"], "cannot be read"),
        (["--model", "x.py:make"], "what is x.py:make called with?"),
        (["--model", "x.py:make", "--input", "8x"], "--input 8x is not"),
    ],
)
def test_mistakes_are_one_line_that_says_what_to_do(estimate, arguments, words):
    status, out, err = estimate(*arguments)
    assert status in (1, 2) and out == ""
    assert words in err and err.count("\n") == 1 and err.startswith("memagent: ")
