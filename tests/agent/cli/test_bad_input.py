"""A walk over the options of a step with bad values: one sentence each, and no number."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from memagent.cli import main

GPT2 = "estimate --model gpt2"
LORA = f"{GPT2} --lora-rank 8"
IMAGES = "estimate --model resnet-50"
FACTORY = "estimate --model net.py:net --input 4x8"
FIT = "fit --model gpt2 --gpu 24GiB"
WALK: dict[tuple[str, str], tuple[str, ...]] = {
    ("estimate", "--model"): ("''", "-1", "gpt9", "nope.py:net", "nan"),
    (GPT2, "--hub"): ("--hub=1",),
    (GPT2, "--batch"): ("''", "-1", "0", "99999999999", "nan", "1e9", "-1e3"),
    (GPT2, "--sequence"): ("''", "-1", "0", "99999999999", "nan", "2048"),
    (GPT2, "--input"): ("4x8", "''", "-4"),
    (GPT2, "--method"): ("''", "-1", "trac", "trace --zero 3 --ranks 2"),
    (GPT2, "--timeout"): ("''", "-1", "0", "inf", "nan", "1e30", "60s"),
    (GPT2, "--transformers"): ("''", "-1", "999", "4", "4.999", "nan", "4.48.x", "²"),
    (GPT2, "--precision"): ("''", "-1", "bf61", "nan", "16"),
    (GPT2, "--optimizer"): ("''", "-1", "adamm", "nan"),
    (GPT2, "--implementation"): ("''", "-1", "fus"),
    (GPT2, "--checkpointing"): ("''", "-1", "ful"),
    (GPT2, "--checkpoint-every"): ("0", "-1", "nan", "9999999", "2"),
    (f"{GPT2} --checkpointing full", "--checkpoint-every"): ("13",),
    (GPT2, "--attention"): ("''", "-1", "eagre"),
    (GPT2, "--loss"): ("''", "-1", "chunk"),
    (GPT2, "--accumulation"): ("0", "-1", "nan", "99999999"),
    (GPT2, "--loop"): ("''", "-1", "traner"),
    (GPT2, "--lora-rank"): ("''", "0", "-1", "nan", "99999"),
    (LORA, "--lora-targets"): ("''", ",", "-1", "c_atn", "c_attn,q_prj", "all-linear,c_attn"),
    (GPT2, "--lora-targets"): ("c_attn",),
    (LORA, "--quantised"): ("''", "-1", "nf5"),
    (GPT2, "--quantised"): ("nf4",),
    (LORA, "--kbit-training"): ("''", "-1", "trk", "peft"),
    (GPT2, "--offload"): ("''", "-1", "optimiser", "none --offload-parameters"),
    (f"{GPT2} --offload-parameters", "--offload-optimizer"): ("",),
    (GPT2, "--zero"): ("''", "-1", "4", "3"),
    (GPT2, "--ranks"): ("''", "0", "-1", "99999999"),
    (GPT2, "--fsdp-wrap"): ("''", "layer", "peft"),
    (GPT2, "--tensor"): ("0", "-1", "99999", "5"),
    (GPT2, "--sequence-parallel"): ("",),
    (GPT2, "--pipeline"): ("0", "-1", "nan", "13"),
    (GPT2, "--gpu"): ("''", "-24GiB", "24", "nan", "0GiB", "9999TiB", "4O90", "2xa100", "-a100"),
    (GPT2, "--context"): ("''", "-1GiB", "nan", "500", "24XB", "999GiB", "0"),
    (GPT2, "--max-batch"): ("",),
    (f"{GPT2} --gpu a10 --sweep", "--max-batch"): ("",),
    (f"{GPT2} --gpu a10 --advice", "--max-batch"): ("",),
    (f"{GPT2} --method formula", "--sweep"): (
        *("''", "bach=1", "batch=", "batch=-1", "batch=nan", "batch=99999999999"),
        *("batch=1 batch=2", "seq=512 sequence=512", "batch=1 --advice"),
    ),
    (f"{GPT2} --method formula --sweep seq=4096", "--sequence"): ("8",),
    (GPT2, "--json"): ("--json=1",),
    (IMAGES, "--sequence"): ("128", "-1"),
    (IMAGES, "--attention"): ("eager", "math"),
    (IMAGES, "--optimizer"): ("adamm",),
    (IMAGES, "--precision"): ("bf61",),
    (IMAGES, "--gpu"): ("24",),
    (IMAGES, "--zero"): ("3 --ranks 2",),
    ("estimate --model vit-b-16 --method formula", "--sequence"): ("12",),
    (FACTORY, "--hub"): ("",),
    (FACTORY, "--method"): ("formula",),
    (FACTORY, "--batch"): ("4",),
    ("estimate --model net.py:net", "--input"): ("''", "-4x8", "0x8", "4x8:flaot32"),
    ("estimate --model net.py:net --input x=4x8", "--input"): ("x=4x8", "4x8"),
    (FIT, "--allow"): ("''", "-1", "recomput"),
    (FIT, "--timeout"): ("inf", "-1", "nan"),
    (FIT, "--sequence"): ("4096",),
    (FIT, "--optimizer"): ("adamm",),
    (FIT, "--method"): ("formula",),
    ("fit --model gpt2", "--gpu"): ("''", "24", "-24GiB"),
    ("rehearse", "--gpu"): ("''", "-24GiB", "24GiB", "mi300x", "h100:0GiB", "h100:9999TiB"),
    ("rehearse --gpu h100", "--gpus"): ("0", "-1", "nan", "99"),
    ("rehearse --gpu h100", "--ranks"): ("0", "-1", "nan", "99999999"),
    ("rehearse --gpu h100", "--steps"): ("''", "0", "-1", "nan", "99999999"),
    ("rehearse --gpu h100", "--report"): ("''", ".", "nope/nope.json"),
    ("rehearse --gpu h100", "--fail-over"): ("''", "-1GiB", "5", "nan", "0GiB"),
    ("rehearse --gpu h100", "--baseline"): ("''", ".", "nope.json"),
    ("rehearse --gpu h100", "--tolerance"): ("''", "-2%", "5", "nan%"),
    ("rehearse --gpu h100", "--find-batch"): ("''", "nope", "5"),
    ("rehearse --gpu h100", "--what-if"): ("--what-if=1",),
    ("rehearse --gpu h100", "--held"): ("''", "-1GiB", "5", "nan", "999GiB"),
    ("rehearse --gpu h100", "--context"): ("''", "-1GiB", "5", "999GiB"),
    ("rehearse --gpu h100", "--patience"): ("''", "0", "-1", "nan", "inf"),
    ("run", "--report"): ("''", "."),
    ("run", "--fail-over"): ("''", "-1GiB", "5", "nan"),
    ("run", "--project"): ("''",),
    ("run", "--name"): ("''",),
    ("run", "--server"): ("''", "nope", "-1", "http://"),
    ("run", "--live"): ("--live=1",),
}
CASES = [
    (f"{start} {value if value.startswith('--') else f'{option} {value}'}", option)
    for (start, option), values in WALK.items()
    for value in values
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.py").write_text("import torch\ndef net(): return torch.nn.Linear(8, 8)\n")
    (tmp_path / "train.py").write_text("raise SystemExit('the script ran')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("words", "option"), CASES)
def test_a_bad_value_is_one_sentence_that_names_its_option(
    words: str, option: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if words.startswith(("rehearse", "run")):
        words += " train.py"
    try:
        status = main(shlex.split(words))
    except SystemExit as ended:
        status = ended.code  # type: ignore[assignment]
    printed = capsys.readouterr()
    assert status in (1, 2) and printed.out == ""
    assert printed.err.count("\n") == 1 and "Traceback" not in printed.err
    assert _stem(option) in _stem(printed.err)


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (f"{LORA} --lora-targets c_atn", "did you mean c_attn?"),
        ("estimate --model llama-3-8b --lora-rank 8 --lora-targets q_prj", "did you mean q_proj?"),
        (f"{GPT2} --sweep bach=1,2", "did you mean batch?"),
        (f"{GPT2} --gpu 4O90", "did you mean rtx4090"),
        (f"{GPT2} --quantised nf5 --lora-rank 8", "did you mean nf4?"),
        (f"{GPT2} --context 500", "write 500MiB"),
        ("rehearse --gpu h100 --fail-over 5 train.py", "write 5GiB"),
        ("run --fail-over 5368709120 train.py", "write 5368709120B"),
        (f"{IMAGES} --zero 3 --ranks 2", "a trace does not support --ranks, --zero: leave it out"),
    ],
)
def test_it_names_the_nearest_right_value(
    words: str, near: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(words)) in (1, 2)
    assert near in capsys.readouterr().err


def _stem(text: str) -> str:
    return re.sub(r"[^a-z]", "", text.lower().replace("quantisation", "quantised"))
