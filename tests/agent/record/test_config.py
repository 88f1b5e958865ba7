"""Configs of any type as plain JSON, with secrets masked."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import enum
import importlib
import json
import os
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from memagent.errors import SettingError
from memagent.record import config as config_module
from memagent.record import plain_config
from memagent.wire.codec import encode

MASK = "***"
HF = "hf_" + "a1B2c3D4" * 4


def real(library: str) -> Any:
    """Import a library; if it's missing, skip the test, or fail it under CI."""
    try:
        return importlib.import_module(library)
    except ImportError as error:
        if os.environ.get("CI"):
            pytest.fail(f"{library} is missing: {error}")
        pytest.skip(f"{library} is not installed: pip install 'memagent[dev]'")


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
        (
            {"path": Path("a/b"), "day": datetime.date(2026, 1, 2)},
            {"path": "a/b", "day": "2026-01-02"},
        ),
        (
            {"dtype": torch.bfloat16, "device": torch.device("cuda", 1)},
            {"dtype": "torch.bfloat16", "device": "cuda:1"},
        ),
        ({"nan": float("nan"), "inf": float("-inf")}, {"nan": "nan", "inf": "-inf"}),
        ({"set": {3, 1, 2}, "big": 2**70}, {"set": [1, 2, 3], "big": str(2**70)}),
        (
            {"np": np.float64(0.5), "np32": np.float32(0.5), "array": np.zeros((2, 3))},
            {"np": 0.5, "np32": 0.5, "array": "(ndarray [2, 3] float64)"},
        ),
        (
            {"tensor": torch.zeros(2), "model": torch.nn.Linear(2, 2), "act": torch.relu_},
            {
                "tensor": "(Tensor [2] torch.float32)",
                "model": "(torch.nn.modules.linear.Linear)",
                "act": str(torch.relu_),
            },
        ),
        (
            {"loss": torch.nn.functional.mse_loss, "kind": dict, "raw": b"123"},
            {"loss": "torch.nn.functional.mse_loss", "kind": "builtins.dict", "raw": "(3 bytes)"},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_config_becomes_plain_json(config, plain):
    result = plain_config(config)
    assert result == plain
    assert json.loads(json.dumps(result, allow_nan=False)) == plain
    encode(result)


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
        "lr": 0.1,
        "twice": 0.1,
        "model": {"name": "gpt", "layers": [1, 0.1]},
        "place": "${oc.env:SECRET_PLACE}",
        "need": "???",
    }
    assert plain_config({"cfg": config.model}) == {"cfg": {"name": "gpt", "layers": [1, 0.1]}}
    assert plain_config(omegaconf.OmegaConf.create({"a": "${nowhere}"})) == {"a": "${nowhere}"}


def test_pydantic_models_keep_their_secrets():
    pydantic = real("pydantic")

    class Model(pydantic.BaseModel):
        lr: float = 0.1
        key_of_mine: pydantic.SecretStr = pydantic.SecretStr("abc")
        inner: Inner = Inner()

    result = plain_config(Model())
    assert result["lr"] == 0.1
    assert result["inner"] == {"lr": 0.1, "api_key": MASK}
    assert "abc" not in json.dumps(result)


def test_a_tensor_in_a_config_is_never_read(monkeypatch):
    def refuse(*_: Any) -> None:
        raise AssertionError("reading a tensor waits for its device")

    for name in ("__repr__", "__str__", "item", "tolist", "numpy", "__format__"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    assert plain_config({"scale": torch.tensor(1.0)}) == {"scale": "(Tensor [] torch.float32)"}


def test_cyclic_values_are_cut():
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
    result = plain_config({"text": "x" * 10_000, "list": list(range(1000))})
    assert result["text"].endswith("... (8000 characters more)")
    assert len(result["list"]) == 201
    assert result["list"][-1] == "... (800 more)"
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
            self.lr = 0.1
            self.where = self.__class__

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


def test_an_empty_config_is_a_config():
    assert plain_config({}) == {}
