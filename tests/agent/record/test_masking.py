"""Secrets by name and by form, in values, texts and command lines."""

from __future__ import annotations

import json

import pytest

from memagent.record import mask_arguments, mask_text, plain_config
from memagent.record.masking import mask_line
from memagent.record.process import relevant_variables

MASK = "***"
HF = "hf_" + "a1B2c3D4" * 4
SECRETS = [
    HF,
    "sk-proj-" + "a1B2c3D4" * 4,
    "ghp_" + "a1B2c3D4" * 4,
    "github_pat_" + "a1B2c3D4" * 4,
    "AKIA" + "ABCD1234" * 2,
    "xoxb-1234567890-abcdefgh",
    "glpat-" + "a1B2c3D4" * 3,
    "AIza" + "a1B2c3D4" * 4,
    "https://hooks.slack.com/services/T000/B000/" + "x" * 24,
    "mag_" + "a1B2c3D4" * 4,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "Bearer " + "a1B2c3D4" * 4,
]


@pytest.mark.parametrize(
    "name",
    [
        "token",
        "hf_token",
        "HF_TOKEN",
        "hub-token",
        "apiKey",
        "api_key",
        "OPENAI_API_KEY",
        "aws_secret_access_key",
        "password",
        "dbPassword",
        "client_secret",
        "credentials",
        "private_key",
        "slack_webhook",
        "authToken",
        "accessKey",
    ],
)
def test_values_under_a_secret_s_name_are_masked(name):
    assert plain_config({name: "value"}) == {name: MASK}


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer",
        "tokens",
        "max_tokens",
        "num_tokens",
        "eos_token",
        "pad_token_id",
        "token_type_ids",
        "tokens_per_batch",
        "key",
        "num_key_value_heads",
        "monkey",
        "author",
        "image_token",
        "secretary",
        "token_dropout",
    ],
)
def test_names_that_only_sound_secret_stay(name):
    assert plain_config({name: "value"}) == {name: "value"}


@pytest.mark.parametrize("secret", SECRETS, ids=lambda secret: secret[:8])
def test_a_secret_is_recognized_by_its_form_in_any_place(secret):
    core = secret.split()[-1]
    assert core not in mask_text(f"login({secret!r}) and more")
    assert core not in json.dumps(plain_config({"notes": [f"use {secret}"], secret: 1}))
    assert core not in " ".join(
        mask_arguments(["train.py", secret, f"--note={secret}", "-c", f"login('{secret}')"])
    )
    assert core not in json.dumps(relevant_variables({"NCCL_DEBUG_FILE": secret}))


@pytest.mark.parametrize(
    "text",
    [
        "a ski-slope-that-is-quite-long-indeed",
        "gpt2-xl",
        "s3://bucket/key",
        "https://host/path@v2",
        "d" * 40,
        "hf_hub",
    ],
)
def test_ordinary_text_is_left_alone(text):
    assert mask_text(text) == text


def test_user_and_password_of_an_address_are_masked():
    assert mask_text("postgresql://me:pass@db/runs") == "postgresql://***@db/runs"


@pytest.mark.parametrize(
    ("line", "masked"),
    [
        ("Authorization: Bearer abc123", "Authorization: ***"),
        ("authorization=Basic dXNlcjpwYXNz", "authorization=***"),
        ("got basic dXNlcjpwYXNz1", "got basic ***"),
        ('curl -H "Authorization: Bearer abc" x', 'curl -H "Authorization: ***" x'),
        ("password=b'abc', lr=3", "password=***, lr=3"),
        ("api_key=SecretStr('abc')", "api_key=***"),
        ("passwords: ['a', 'b'], lr: 3", "passwords: ***, lr: 3"),
        (r"{\"api_key\": \"abc\", \"lr\": 3}", r"{\"api_key\": \"***\", \"lr\": 3}"),
        (r'"password": "ab\"cd", "lr": 3', '"password": "***", "lr": 3'),
        ("password := abc", "password := ***"),
        ("api_key => abc", "api_key => ***"),
        ("api_key -> abc", "api_key -> ***"),
        ("train.py --hf-token abc --lr 3", "train.py --hf-token *** --lr 3"),
        ("['train.py', '--hf-token', 'abc']", "['train.py', '--hf-token', '***']"),
        ("postgres://me:p@ss@host/db", "postgres://***@host/db"),
        ("https://host/a?b=1&X-Amz-Signature=abc&c=2", "https://host/a?b=1&***&c=2"),
        ("https://host/a?sig=abc%3D", "https://host/a?***"),
    ],
)
def test_secrets_in_a_line_are_masked(line, masked):
    assert mask_line(line) == masked


@pytest.mark.parametrize(
    "line",
    [
        "Basic training started with the basic tokenizer",
        "loss per token: 2.31, ms/token: 0.31",
        "next token: 'the'",
        "Loading token: 100%|###| 5/5",
        "auth_token: None, use_auth_token=False",
        "commit 3f786850e387550fdab836ed7e6dc881de23001b",
        "step 10 | loss 2.3e-2 | lr 1e-4 | 512 tokens: 3 ms",
        "(embed_tokens): Embedding(32000, 4096, padding_idx=0)",
    ],
)
def test_a_line_of_a_training_is_left_alone(line):
    assert mask_line(line) == line


def test_switches_and_empty_values_stay():
    assert plain_config({"token": True, "password": None, "api_key": ""}) == {
        "token": True,
        "password": None,
        "api_key": "",
    }
    assert plain_config({"password": 1234}) == {"password": MASK}


@pytest.mark.parametrize(
    ("arguments", "masked"),
    [
        (["--token=abc", "x"], ["--token=***", "x"]),
        (["--hf_token", "abc", "x"], ["--hf_token", "***", "x"]),
        (["--hub-token", "--lr", "3"], ["--hub-token", "--lr", "3"]),
        (["--password", "-dash"], ["--password", "***"]),
        (
            ["wandb.api_key=abc", "+hf_token=abc", "lr=3"],
            ["wandb.api_key=***", "+hf_token=***", "lr=3"],
        ),
        (["--tokenizer", "gpt2", "--max-tokens=5"], ["--tokenizer", "gpt2", "--max-tokens=5"]),
        (["-c", "login(token='abc', user='me')"], ["-c", "login(token='***', user='me')"]),
        (["--env", "HF_TOKEN=abc"], ["--env", "HF_TOKEN=***"]),
        (['{"api_key": "abc", "lr": 3}'], ['{"api_key": "***", "lr": 3}']),
        (["--url=http://me:pass@host/x"], ["--url=http://***@host/x"]),
        (["--config-file=conf/a:b.yaml"], ["--config-file=conf/a:b.yaml"]),
    ],
)
def test_secrets_on_the_command_line_are_masked(arguments, masked):
    assert mask_arguments(arguments) == masked


@pytest.mark.parametrize("text", ["a" * 4_000, "a=b" * 1_300, "k=" + "a" * 4_000, 'k="' * 1_300])
def test_long_words_and_nested_assignments_are_read_once(text):
    assert mask_line(text + " token=x") == text + " token=***"
