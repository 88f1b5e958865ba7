"""Classifiers of torchvision by name, with a small library in its place."""

from __future__ import annotations

import json
import sys

import pytest

from memagent.cli import main
from memagent.errors import OptionError
from memagent.estimator.huggingface import request_for_config
from memagent.estimator.trace.isolation import can_fork
from memagent.estimator.vision_models import is_classifier_name, vision_model

LIBRARY = '''
import torch


class ResNet(torch.nn.Sequential):
    def __init__(self):
        pool, head = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Linear(4, 10)
        super().__init__(torch.nn.Conv2d(3, 4, 8), pool, torch.nn.Flatten(), head)


class Transformer(torch.nn.Sequential):
    """Its positions are for one size of images."""

    def __init__(self, image_size=224):
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(3 * image_size**2, 10))


_MODELS = {"resnet50": ResNet, "vit_b_16": Transformer}


def list_models(module=None):
    return list(_MODELS)


def get_model(name, weights=None, **options):
    return _MODELS[name](**options)
'''
traced = pytest.mark.skipif(not can_fork(), reason="this system cannot fork a tracing process")


@pytest.fixture
def torchvision(tmp_path, monkeypatch):
    """A library of two models."""
    package = tmp_path / "torchvision"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").write_text("from torchvision import models\n")
    (package / "models" / "__init__.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("torchvision", "torchvision.models"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in ("torchvision", "torchvision.models"):
        sys.modules.pop(name, None)


@pytest.fixture
def estimate(capsys):
    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(["estimate", *arguments])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


@traced
@pytest.mark.usefixtures("torchvision")
@pytest.mark.parametrize("name", ["resnet50", "vit_b_16"])
@pytest.mark.parametrize("pixels", [None, 32])
def test_a_name_as_the_library_spells_it_is_its_model_on_images_of_any_size(estimate, name, pixels):
    size = ("--image-size", str(pixels)) if pixels else ()
    status, out, err = estimate("--model", name, "--batch", "2", *size)
    classes = {"resnet50": "ResNet", "vit_b_16": "Transformer"}
    assert (status, err) == (0, "")
    heading, options, *_ = out.splitlines()
    assert heading == f"{name}, batch 2 x {pixels or 224} x {pixels or 224} pixels"
    assert options.startswith(f"model class {classes[name]}, ")


@pytest.mark.usefixtures("torchvision")
def test_an_option_of_text_models_is_refused_with_a_classifier(estimate):
    status, _, err = estimate("--model", "resnet50", "--sequence", "8", "--lora-rank", "4")
    assert status == 2
    assert "--sequence, --lora-rank: resnet50 is a classifier of torchvision" in err


@traced
def test_without_the_library_the_first_line_says_whose_model_was_chosen(estimate):
    pytest.importorskip("transformers", reason="transformers is not installed")
    if vision_model("resnet18") is not None:
        pytest.skip("torchvision or timm is installed")
    words = ("--model", "resnet18", "--batch", "2", "--image-size", "64")
    status, out, _ = estimate(*words, "--json")
    (choice,) = json.loads(out)["assumptions"]["remarks"]
    assert status == 0 and choice.startswith("The hub's resnet-18 was chosen: torchvision")


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"model_type": "vit"}, "pixel_values"),
        ({"model_type": "resnet"}, "pixel_values"),
        ({"model_type": "clip", "architectures": ["CLIPModel"]}, "pixel_values"),
    ],
)
def test_the_model_of_a_config_is_made_for_images_of_any_size(config, name):
    pytest.importorskip("transformers", reason="transformers is not installed")
    request = request_for_config(config, batch=2, image_size=96)
    assert request.inputs[name][0] == (2, 3, 96, 96)
    assert request.resized(4, None).inputs[name][0] == (4, 3, 96, 96)


def test_a_model_of_texts_takes_no_images(estimate):
    pytest.importorskip("transformers", reason="transformers is not installed")
    with pytest.raises(OptionError, match="image_size is 96: GPT2LMHeadModel takes no images"):
        request_for_config({"model_type": "gpt2"}, image_size=96)
    for method in ("trace", "formula"):
        words = ("--model", "gpt2", "--image-size", "96", "--method", method)
        assert "takes no images" in estimate(*words)[2]


def test_the_formula_takes_images_of_any_size(estimate):
    words = ("--model", "vit-b-16", "--method", "formula", "--image-size")
    assert estimate(*words, "384")[1].startswith("vit-b-16, batch 1 x 384 x 384 pixels")
    assert "a patch of vit-b-16 has 16 pixels" in estimate(*words, "8")[2]
    peaks = [json.loads(estimate(*words, s, "--json")[1])["phases"] for s in ("224", "384")]
    assert peaks[0]["backward"] < peaks[1]["backward"]


@pytest.mark.parametrize(
    ("name", "is_classifier"),
    [
        ("resnet50", True),
        ("vit_b_16", True),
        ("vgg16", True),
        ("timm/resnet50.a1_in1k", True),
        ("microsoft/resnet-50", False),
        ("resnet-50", False),
        ("gpt2", False),
        ("Qwen/Qwen3-8B", False),
    ],
)
def test_classifiers_are_spelled_without_hyphens(name, is_classifier):
    assert is_classifier_name(name) == is_classifier
