"""Errors of options: one sentence that names the option and the nearest choice."""

from __future__ import annotations

import pytest

from memagent.cli import main

CASES = {
    "--loop trainers": "--loop 'trainers' is not known (did you mean trainer?): use trainer, plain, step",
    "--zero 5": "--zero 5 is not known: use 0, 1, 2, 3",
    "--batch x": "--batch is 'x': give a whole number",
    "--timeout soon": "--timeout is 'soon': give a number",
    "--batch": "--batch has no value: give one",
    "--gpu -a100": "--gpu is '-a100': a value doesn't begin with a dash",
    "--seq -x": "--seq is '-x': a value doesn't begin with a dash",
    "--bacth 4": "--bacth is not known (did you mean --batch?): see memagent estimate --help",
}  # fmt: skip


@pytest.mark.parametrize("words", CASES)
def test_a_wrong_option_is_one_sentence(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["estimate", "--model", "gpt2", *words.split()])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"memagent estimate: {CASES[words]}\n"


def test_a_missing_option_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["estimate"])
    expected = "the following arguments are required: --model: see memagent estimate --help"
    assert capsys.readouterr().err == f"memagent estimate: {expected}\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "--precision bf61",
            "--precision 'bf61' is not known (did you mean bf16?): use one of fp32,",
        ),
        (
            "--optimizer adamww",
            "--optimizer 'adamww' is not known (did you mean adamw?): use one of",
        ),
        ("--ranks 0", "--ranks is 0: give 1 or more"),
        ("--checkpoint-every 0", "--checkpoint-every is 0: give 1 or more"),
    ],
)
def test_a_wrong_value_names_the_option_and_the_nearest(
    words: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["estimate", "--model", "gpt2", "--method", "formula", *words.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"memagent: {expected}") and error.count("\n") == 1
