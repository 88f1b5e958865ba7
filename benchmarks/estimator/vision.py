"""Networks of torchvision and timm as people train them, for `record`: what cuDNN's workspaces add
is known to no trace. Random weights; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.estimator.families import Built, Tensors, classified
from benchmarks.estimator.workload import Case

_CLASSES, _PIXELS, _FRAMES, _VIDEO_PIXELS, _SCENE_PIXELS = 1000, 224, 16, 112, 512
_SGD: dict[str, Any] = {"optimizer": "momentum"}
_AMP: dict[str, Any] = {"autocast": "bfloat16"}
_HALF: dict[str, Any] = {"autocast": "float16", "scaler": True}
_LAST: dict[str, Any] = {**_AMP, "channels_last": True}
_TUNED: dict[str, Any] = {"cudnn_benchmark": True}
_FAST: dict[str, Any] = {**_LAST, **_TUNED}

_IMAGE_MODELS = (
    "resnet50", "vgg16", "mobilenet_v3_large", "convnext_tiny", "efficientnet_b0", "vit_b_16",
    "densenet121", "swin_t", "regnet_y_1_6gf", "shufflenet_v2_x1_0",
)  # fmt: skip
_VIDEO_MODELS = ("r3d_18", "r2plus1d_18")
_SCENE_MODELS = ("deeplabv3_resnet50", "fcn_resnet50")
_TIMM_MODELS = (
    "resnet18", "mixer_b16_224", "efficientnetv2_rw_t", "convnextv2_tiny", "regnety_016", "coatnet_0_rw_224",
)  # fmt: skip

_SETTINGS: dict[str, tuple[tuple[int, dict[str, Any]], ...]] = {
    "resnet50": (
        (64, {}), (16, {}), (256, {}), (64, _TUNED), (64, _AMP), (64, _FAST), (64, _LAST),
        (16, _TUNED), (256, _FAST), (64, {"channels_last": True}), (64, _HALF),
    ),
    "vgg16": ((64, {}), (16, {}), (64, _TUNED), (64, _AMP), (64, _FAST)),
    "mobilenet_v3_large": ((64, {}), (16, {}), (64, _TUNED), (256, _FAST)),
    "convnext_tiny": ((64, {}), (16, {}), (64, _TUNED), (64, _FAST)),
    "efficientnet_b0": ((64, {}), (16, {}), (64, _TUNED), (256, _FAST)),
    "vit_b_16": ((64, {}), (16, {}), (64, _AMP), (256, _AMP)),
    "densenet121": ((64, {}), (64, _FAST)),
    "swin_t": ((64, {}), (64, _AMP)),
    "regnet_y_1_6gf": ((64, {}), (64, _FAST)),
    "shufflenet_v2_x1_0": ((128, {}), (128, _TUNED)),
    "r3d_18": ((8, {}), (8, _TUNED), (8, _AMP)),
    "r2plus1d_18": ((8, {}), (8, _AMP | _TUNED)),
    "deeplabv3_resnet50": ((8, {}), (8, _FAST)),
    "fcn_resnet50": ((8, {}), (8, _TUNED)),
    **{f"timm/{name}": ((64, {}), (64, _LAST)) for name in _TIMM_MODELS},
    "lstm": ((32, {}), (128, {}), (64, _AMP), (64, _HALF)),
    "volume": ((2, {}), (2, _TUNED), (4, _AMP), (4, _AMP | _TUNED)),
}  # fmt: skip


def cases() -> list[Case]:
    """Return the trainings, first one of each network."""
    depth = max(map(len, _SETTINGS.values()))
    ordered = [
        (family, *settings[place])
        for place in range(depth)
        for family, settings in _SETTINGS.items()
        if place < len(settings)
    ]
    return [_case(family, rows, settings) for family, rows, settings in ordered]


def _case(family: str, rows: int, settings: Mapping[str, Any]) -> Case:
    words = [f"{family} x {rows}"]
    words += [settings["autocast"]] if "autocast" in settings else []
    words += ["channels last"] if settings.get("channels_last") else []
    words += ["tuned"] if settings.get("cudnn_benchmark") else []
    optimizer = {} if family.startswith(("vit", "swin", "timm", "lstm")) else _SGD
    return Case(", ".join(words), family, size="large", batch=rows, **optimizer, **settings)


class ChannelsLast(nn.Module):
    """A network that gets its images, and has its weights, with the channels last."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network.to(memory_format=torch.channels_last)

    def forward(self, images: torch.Tensor) -> Any:
        return self.network(images.contiguous(memory_format=torch.channels_last))


class Volume(nn.Module):
    """Three-dimensional U-Net of two levels, as for medical images."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = _doubled(1, width), _doubled(3 * width, width)
        self.deep, self.head = _doubled(width, 2 * width), nn.Conv3d(width, 2, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        fine = self.down(images)
        coarse = self.deep(functional.max_pool3d(fine, 2))
        coarse = functional.interpolate(coarse, scale_factor=2.0, mode="trilinear")
        return self.head(self.up(torch.cat([fine, coarse], dim=1)))


def _doubled(into: int, out: int) -> nn.Module:
    pair = [(into, out), (out, out)]
    layers = [
        (nn.Conv3d(a, b, 3, padding=1), nn.InstanceNorm3d(b), nn.ReLU(inplace=True))
        for a, b in pair
    ]
    return nn.Sequential(*(layer for group in layers for layer in group))


def _image_model(case: Case) -> Built:
    from torchvision import models

    return _finished(case, models.get_model(case.family, weights=None), (3, _PIXELS, _PIXELS))


def _video_model(case: Case) -> Built:
    from torchvision import models

    network = models.get_model(case.family, weights=None, num_classes=_CLASSES)
    return _finished(case, network, (3, _FRAMES, _VIDEO_PIXELS, _VIDEO_PIXELS))


def _timm_model(case: Case) -> Built:
    import timm

    network = timm.create_model(case.family.removeprefix("timm/"), pretrained=False)
    return _finished(case, network, (3, _PIXELS, _PIXELS))


def _scene_model(case: Case) -> Built:
    from torchvision import models

    settings: dict[str, Any] = {"weights": None, "weights_backbone": None, "num_classes": 21}
    network = models.get_model(case.family, **settings)
    size = (_SCENE_PIXELS, _SCENE_PIXELS)
    return _images(case, network, (3, *size), partial(_labels, 21, size), _segmented)


def _volume(case: Case) -> Built:
    size = (96, 96, 96)
    return _images(case, Volume(32), (1, *size), partial(_labels, 2, size), classified)


def _finished(case: Case, network: nn.Module, shape: tuple[int, ...]) -> Built:
    return _images(case, network, shape, partial(_labels, _CLASSES, ()), classified)


def _images(
    case: Case,
    network: nn.Module,
    shape: tuple[int, ...],
    labels: Callable[[int], torch.Tensor],
    loss: Callable[[Any, Mapping[str, torch.Tensor]], torch.Tensor],
) -> Built:
    rows = case.batch or 1
    is_last = case.channels_last and len(shape) == 3  # 3-D has a format of its own
    model = ChannelsLast(network) if is_last else network
    name = "images" if is_last or isinstance(network, Volume) else _first_argument(network)

    def batch() -> tuple[Tensors, Tensors]:
        return {name: torch.randn(rows, *shape)}, {"labels": labels(rows)}

    return model, batch, loss


def _first_argument(network: nn.Module) -> str:
    from inspect import signature

    return next(iter(signature(network.forward).parameters))


def _labels(classes: int, shape: tuple[int, ...], rows: int) -> torch.Tensor:
    return torch.randint(classes, (rows, *shape))


def _segmented(output: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return functional.cross_entropy(output["out"], targets["labels"])


FAMILIES: dict[str, Callable[[Case], Built]] = {
    **dict.fromkeys(_IMAGE_MODELS, _image_model),
    **dict.fromkeys(_VIDEO_MODELS, _video_model),
    **dict.fromkeys(_SCENE_MODELS, _scene_model),
    **{f"timm/{name}": _timm_model for name in _TIMM_MODELS},
    "volume": _volume,
}


def needed(family: str) -> list[str]:
    """Return the packages of a family's network."""
    if family.startswith("timm/"):
        return ["timm"]
    return [] if family == "volume" else ["torchvision"]
