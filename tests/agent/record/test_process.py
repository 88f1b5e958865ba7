"""Metadata of a run: configs of any type as plain JSON, code, command, variables, no secrets."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import enum
import importlib
import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from memagent import record
from memagent.errors import SettingError
from memagent.record import DirtyCheck, describe_process, mask_arguments, mask_text, plain_config
from memagent.record import config as config_module
from memagent.record.git import describe_code
from memagent.record.process import relevant_variables
from memagent.wire.codec import encode

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


def real(library: str) -> Any:
    """Import a library; if it's missing, skip the test, or fail it under CI."""
    try:
        return importlib.import_module(library)
    except ImportError as error:
        if os.environ.get("CI"):
            pytest.fail(f"{library} is missing: {error}")
        pytest.skip(f"{library} is not installed: pip install 'memagent[dev]'")


# Secrets


@pytest.mark.parametrize(
    "name",
    ["token", "hf_token", "HF_TOKEN", "hub-token", "apiKey", "api_key", "OPENAI_API_KEY", "aws_secret_access_key", "password", "dbPassword",
     "client_secret", "credentials", "private_key", "slack_webhook", "authToken", "accessKey"],
)  # fmt: skip
def test_values_under_a_secret_s_name_are_masked(name):
    assert plain_config({name: "value"}) == {name: MASK}


@pytest.mark.parametrize(
    "name",
    ["tokenizer", "tokens", "max_tokens", "num_tokens", "eos_token", "pad_token_id", "token_type_ids", "tokens_per_batch", "key",
     "num_key_value_heads", "monkey", "author", "image_token", "secretary", "token_dropout"],
)  # fmt: skip
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


def test_switches_and_empty_values_stay():
    assert plain_config({"token": True, "password": None, "api_key": ""}) == {
        "token": True,
        "password": None,
        "api_key": "",
    }
    assert plain_config({"password": 1234}) == {"password": MASK}


@pytest.mark.parametrize(
    ("given", "masked"),
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
def test_secrets_on_the_command_line_are_masked(given, masked):
    assert mask_arguments(given) == masked


# Config


class Colour(enum.Enum):
    RED = "red"
    ODD = object()


@dataclasses.dataclass
class Inner:
    lr: float = 0.1
    api_key: str = "abc"


@dataclasses.dataclass
class Outer:
    inner: Inner = dataclasses.field(default_factory=Inner)
    layers: tuple[int, ...] = (1, 2)
    missing: int = dataclasses.field(init=False)


class Arguments:
    """Arguments with more attributes than `to_dict` returns, as in Hugging Face."""

    def __init__(self) -> None:
        self._device = object()

    def to_dict(self) -> dict[str, Any]:
        return {"learning_rate": 1e-4, "hub_token": "<HUB_TOKEN>"}


@pytest.mark.parametrize(
    ("config", "plain"),
    [
        (None, {}),
        ({"a": 1}, {"a": 1}),
        (argparse.Namespace(lr=0.1, token="abc"), {"lr": 0.1, "token": MASK}),
        (types.SimpleNamespace(lr=0.1), {"lr": 0.1}),
        (Outer(), {"inner": {"lr": 0.1, "api_key": MASK}, "layers": [1, 2]}),
        (Arguments(), {"learning_rate": 1e-4, "hub_token": MASK}),
        (collections.OrderedDict(a={"b": [Inner()]}), {"a": {"b": [{"lr": 0.1, "api_key": MASK}]}}),
        (collections.namedtuple("Pair", "lr wd")(1, 2), {"lr": 1, "wd": 2}),
        ({Colour.RED: Colour.RED, "odd": Colour.ODD}, {"RED": "red", "odd": "ODD"}),
        ({"path": Path("a/b"), "day": datetime.date(2026, 1, 2)}, {"path": "a/b", "day": "2026-01-02"}),
        ({"dtype": torch.bfloat16, "device": torch.device("cuda", 1)}, {"dtype": "torch.bfloat16", "device": "cuda:1"}),
        ({"nan": float("nan"), "inf": float("-inf")}, {"nan": "nan", "inf": "-inf"}),
        ({"set": {3, 1, 2}, "big": 2**70}, {"set": [1, 2, 3], "big": str(2**70)}),
        ({"np": np.float64(0.5), "np32": np.float32(0.5), "array": np.zeros((2, 3))},
         {"np": 0.5, "np32": 0.5, "array": "(ndarray [2, 3] float64)"}),
        ({"tensor": torch.zeros(2), "model": torch.nn.Linear(2, 2), "act": torch.relu_},
         {"tensor": "(Tensor [2] torch.float32)", "model": "(torch.nn.modules.linear.Linear)", "act": str(torch.relu_)}),
        ({"loss": torch.nn.functional.mse_loss, "kind": dict, "raw": b"123"},
         {"loss": "torch.nn.functional.mse_loss", "kind": "builtins.dict", "raw": "(3 bytes)"}),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_config_becomes_plain_json(config, plain):
    found = plain_config(config)
    assert found == plain
    assert json.loads(json.dumps(found, allow_nan=False)) == plain
    encode(found)


def test_omegaconf_is_resolved_but_for_the_environment(monkeypatch):
    omegaconf = real("omegaconf")
    monkeypatch.setenv("SECRET_PLACE", "hidden")
    config = omegaconf.OmegaConf.create(
        {
            "lr": 0.1,
            "twice": "${lr}",
            "model": {"name": "gpt", "layers": [1, "${lr}"]},
            "place": "${oc.env:SECRET_PLACE}",
            "need": "???",
        }
    )
    assert plain_config(config) == {
        "lr": 0.1, "twice": 0.1, "model": {"name": "gpt", "layers": [1, 0.1]}, "place": "${oc.env:SECRET_PLACE}", "need": "???",
    }  # fmt: skip
    assert plain_config({"cfg": config.model}) == {"cfg": {"name": "gpt", "layers": [1, 0.1]}}
    assert plain_config(omegaconf.OmegaConf.create({"a": "${nowhere}"})) == {"a": "${nowhere}"}


def test_pydantic_models_keep_their_secrets():
    pydantic = real("pydantic")

    class Model(pydantic.BaseModel):
        lr: float = 0.1
        key_of_mine: pydantic.SecretStr = pydantic.SecretStr("abc")
        inner: Inner = Inner()

    found = plain_config(Model())
    assert found["lr"] == 0.1
    assert found["inner"] == {"lr": 0.1, "api_key": MASK}
    assert "abc" not in json.dumps(found)


def test_a_tensor_in_a_config_is_never_read(monkeypatch):
    def refuse(*_: Any) -> None:
        raise AssertionError("reading a tensor waits for its device")

    for name in ("__repr__", "__str__", "item", "tolist", "numpy", "__format__"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    assert plain_config({"scale": torch.tensor(1.0)}) == {"scale": "(Tensor [] torch.float32)"}


def test_cycles_end():
    config: dict[str, Any] = {"a": 1}
    config["me"] = config
    config["list"] = [config]
    assert plain_config(config) == {"a": 1, "me": "(itself)", "list": ["(itself)"]}


def test_deep_nesting_is_cut():
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"down": deep}
    assert "too deep" in json.dumps(plain_config(deep))


def test_huge_values_are_cut_with_a_note():
    found = plain_config({"text": "x" * 10_000, "list": list(range(1000))})
    assert found["text"].endswith("... (8000 characters more)")
    assert len(found["list"]) == 201
    assert found["list"][-1] == "... (800 more)"
    many = plain_config({f"name{number}": number for number in range(9000)})
    assert many["..."] == "4000 more left out"
    texts = plain_config({str(number): "y" * 2000 for number in range(1000)})
    assert len(json.dumps(texts)) < 2 * config_module._MAX_TOTAL_CHARACTERS


def test_a_secret_beyond_the_cut_stays_out_when_masks_shorten_the_text():
    text = f"{HF} " * 110 + "z" * 2000 + HF
    assert HF not in plain_config({"notes": text})["notes"]


def test_a_config_class_that_prints_itself_is_still_a_config():
    class Config:
        def __init__(self) -> None:
            self.lr, self.where = 0.1, self.__class__

        def __repr__(self) -> str:
            return "Config()"

    assert plain_config(Config())["lr"] == 0.1
    assert plain_config({"config": Config()}) == {"config": "Config()"}


def test_a_config_with_failing_methods_is_read_another_way():
    class Broken:
        def __init__(self) -> None:
            self.lr = 0.1

        def to_dict(self) -> dict[str, Any]:
            raise RuntimeError("not today")

    assert plain_config(Broken()) == {"lr": 0.1}


def test_a_value_that_cannot_be_shown_costs_only_itself():
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("not today")

    assert plain_config({"lr": 0.1, "broken": Broken()}) == {
        "lr": 0.1,
        "broken": "(Broken, cannot be read: RuntimeError)",
    }


@pytest.mark.parametrize("config", ["text", 3, [1, 2], dict], ids=repr)
def test_a_value_without_names_is_rejected(config):
    with pytest.raises(SettingError, match="give a dict"):
        plain_config(config)


# The process


def git(*arguments: str, at: Path) -> str:
    identity = [
        "-c",
        "user.name=me",
        "-c",
        "user.email=me@example.org",
        "-c",
        "init.defaultBranch=main",
    ]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=at, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Path:
    tree = tmp_path / "repository"
    tree.mkdir()
    git("init", "-q", at=tree)
    (tree / "train.py").write_text("print(1)\n")
    git("add", ".", at=tree)
    git("commit", "-q", "-m", "first", at=tree)
    monkeypatch.chdir(tree)
    monkeypatch.setattr(sys, "argv", ["-c"])
    return tree


def test_commit_branch_and_changes_are_recorded(repository):
    facts = describe_process({})
    assert facts["git_commit"] == git("rev-parse", "HEAD", at=repository)
    assert (facts["git_branch"], facts["git_dirty"]) == ("main", False)
    (repository / "new.py").write_text("untracked")
    assert describe_process({})["git_dirty"] is False
    (repository / "train.py").write_text("print(2)\n")
    assert describe_process({})["git_dirty"] is True


def test_the_scripts_repository_counts_before_the_current_folders(
    repository, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert "git_commit" not in describe_process({})
    monkeypatch.setattr(sys, "argv", [str(repository / "train.py")])
    assert describe_process({})["git_branch"] == "main"


def test_a_commit_is_found_packed_detached_and_in_a_linked_tree(repository, tmp_path):
    commit = git("rev-parse", "HEAD", at=repository)
    git("pack-refs", "--all", at=repository)
    assert describe_code(repository) == {"git_commit": commit, "git_branch": "main"}
    git("worktree", "add", "-q", "-b", "feature/x", str(tmp_path / "linked"), at=repository)
    assert describe_code(tmp_path / "linked") == {"git_commit": commit, "git_branch": "feature/x"}
    git("checkout", "-q", "--detach", at=repository)
    assert describe_code(repository) == {"git_commit": commit}


def test_a_remote_is_recorded_without_its_password(repository):
    git("remote", "add", "origin", "https://me:pass@example.org/x.git", at=repository)
    assert describe_code(repository)["git_remote"] == "https://***@example.org/x.git"


def test_an_empty_repository_has_no_commit(tmp_path):
    git("init", "-q", at=tmp_path)
    assert describe_code(tmp_path) == {}


def test_a_slow_git_is_not_waited_for(repository, tmp_path, monkeypatch):
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nwhile [ ! -e ready ]; do sleep 0.02; done\nexit 1\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(record.process, "DIRTY_WAIT_S", 0.01)
    check = DirtyCheck(repository)
    facts = describe_process({}, dirty=check)
    assert "git_commit" in facts
    assert "git_dirty" not in facts
    assert not check.is_over
    (repository / "ready").touch()
    assert check.result(30.0) is True
    assert check.is_over


def test_a_closed_check_leaves_no_process(repository, tmp_path, monkeypatch):
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    check = DirtyCheck(repository)
    process = check._process
    check.close()
    assert process is not None
    assert process.returncode == -9
    assert check.result() is None


def test_without_git_the_rest_is_recorded(repository, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    facts = describe_process({})
    assert "git_dirty" not in facts
    assert facts["git_branch"] == "main"


def test_versions_and_command_are_recorded(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", "--hf_token", "abc", "--lr=3"])
    facts = describe_process({})
    assert facts["command"] == "python train.py --hf_token '***' --lr=3"
    assert facts["torch"] == torch.__version__
    assert facts["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}")
    encode(facts)


def test_describing_the_process_initialises_no_device(monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("describing must not do this")

    monkeypatch.setattr(torch.cuda, "_lazy_init", refuse)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    facts = describe_process({})
    assert facts["cuda"] == "12.8"
    assert "gpu" not in facts


def test_variables_that_matter_are_recorded_and_others_are_not():
    environ = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTORCH_ALLOC_CONF": "x:1", "NCCL_DEBUG": "INFO", "WORLD_SIZE": "8",
        "SLURM_JOB_ID": "7", "OMP_NUM_THREADS": "4", "LD_PRELOAD": "/lib/jemalloc.so", "CUDA_VISIBLE_DEVICES": "0,1",
    }  # fmt: skip
    others = {"HOME": "/root", "HF_TOKEN": HF, "WANDB_API_KEY": "abc", "EDITOR": "vi"}
    assert relevant_variables(environ | others) == environ
    assert relevant_variables({"ACCELERATE_TOKEN": "abc"}) == {"ACCELERATE_TOKEN": MASK}
    assert len(relevant_variables({f"NCCL_{number}": "x" * 5000 for number in range(500)})) == 100


def test_an_empty_config_is_a_config():
    assert plain_config({}) == {}
