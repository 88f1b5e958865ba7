"""Image classifiers of torchvision and timm by name, built without weights by the tracer."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

from memagent.estimator.huggingface import traced_dtypes
from memagent.estimator.request import TraceRequest

_SPELLING = re.compile(r"(torchvision/|timm/)?(\w*_\w*|vgg\d+|\w*net\d*)(\.\w+)?")
"""These libraries spell names with underscores, or as vgg16 and resnet50; the hub with hyphens."""


@dataclass(frozen=True)
class VisionModel:
    """Factory of a classifier; `name` is the library's own.

    `pixels` are the height and width of its images, None for those it was published with.
    """

    library: Literal["torchvision", "timm"]
    name: str
    dtype: str = "float32"
    pixels: int | None = None

    def __call__(self) -> Any:
        """Build the model in training mode."""
        return self._built().to(getattr(sys.modules["torch"], self.dtype)).train()

    def _built(self) -> Any:
        """Build it for images of its size: transformers have positions for one size."""
        if self.pixels is not None:
            square = (self.pixels, self.pixels)
            # torchvision's ViT and MaxViT, then timm's; convolutional nets take none
            names = {"image_size": self.pixels, "input_size": square, "img_size": square}
            for name, size in names.items():
                with suppress(TypeError):  # a class without this argument
                    return self._create(**{name: size})
        return self._create()

    def _create(self, **options: Any) -> Any:
        if self.library == "torchvision":
            from torchvision.models import get_model

            return get_model(self.name, weights=None, **options)
        import timm

        return timm.create_model(self.name, pretrained=False, **options)

    def image_shape(self) -> tuple[int, int, int]:
        """Return channels, height and width of its images."""
        channels, height, width = self._published_shape()
        return channels, self.pixels or height, self.pixels or width

    def _published_shape(self) -> tuple[int, int, int]:
        if self.library == "timm":
            import timm

            channels, height, width = timm.get_pretrained_cfg(self.name).input_size
            return channels, height, width
        return (3, 299, 299) if self.name == "inception_v3" else (3, 224, 224)


def is_classifier_name(name: str) -> bool:
    """Return whether a name is spelled as those of torchvision and timm are."""
    return _SPELLING.fullmatch(name.lower()) is not None


def vision_model(name: str) -> VisionModel | None:
    """Return the model that an installed library knows by this name, torchvision's first."""
    owner, _, key = name.lower().rpartition("/")
    if owner != "timm" and find_spec("torchvision") is not None:
        import torchvision

        # the other lists are of detection, segmentation, optical flow and video
        if key in torchvision.models.list_models(module=torchvision.models):
            return VisionModel("torchvision", key)
    if owner != "torchvision" and find_spec("timm") is not None:
        import timm

        if timm.is_model(key.partition(".")[0]):
            return VisionModel("timm", key)
    return None


def request_for_classifier(
    model: VisionModel, *, batch: int, precision: str, **options: Any
) -> TraceRequest:
    """Return the request to trace a classifier on its images; `options` are of `TraceRequest`."""
    dtype, autocast = traced_dtypes(precision)
    return TraceRequest(
        model=VisionModel(model.library, model.name, dtype, model.pixels),
        inputs=((batch, *model.image_shape()), dtype),
        targets=((batch,), "int64"),
        loss=classification_loss,
        autocast=autocast,
        **options,
    )


def classification_loss(output: Any, targets: Any) -> Any:
    """Return the cross-entropy of the logits, of all outputs if there are auxiliary ones."""
    cross_entropy = sys.modules["torch"].nn.functional.cross_entropy
    outputs = output if isinstance(output, tuple) else (output,)
    return sum(cross_entropy(logits, targets) for logits in outputs if logits is not None)
