"""Image classifiers of torchvision and timm by name, built without weights by the tracer."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal


@dataclass(frozen=True)
class VisionModel:
    """Factory of a classifier; `name` is the library's own."""

    library: Literal["torchvision", "timm"]
    name: str
    dtype: str = "float32"

    def __call__(self) -> Any:
        """Build the model in training mode."""
        if self.library == "torchvision":
            from torchvision.models import get_model

            model = get_model(self.name, weights=None)
        else:
            import timm

            model = timm.create_model(self.name, pretrained=False)
        return model.to(getattr(sys.modules["torch"], self.dtype)).train()

    def image_size(self) -> tuple[int, int, int]:
        """Return channels, height and width of the images that the model was published with."""
        if self.library == "timm":
            import timm

            channels, height, width = timm.get_pretrained_cfg(self.name).input_size
            return channels, height, width
        return (3, 299, 299) if self.name == "inception_v3" else (3, 224, 224)


def vision_model(name: str) -> VisionModel | None:
    """Return the model that an installed library knows by this name, torchvision's first."""
    key = name.lower().rpartition("/")[2]
    if find_spec("torchvision") is not None:
        import torchvision

        # the other lists are of detection, segmentation, optical flow and video
        if key in torchvision.models.list_models(module=torchvision.models):
            return VisionModel("torchvision", key)
    if find_spec("timm") is not None:
        import timm

        if timm.is_model(key.partition(".")[0]):
            return VisionModel("timm", key)
    return None


def classification_loss(output: Any, targets: Any) -> Any:
    """Return the cross-entropy of the logits, of all outputs if there are auxiliary ones."""
    cross_entropy = sys.modules["torch"].nn.functional.cross_entropy
    outputs = output if isinstance(output, tuple) else (output,)
    return sum(cross_entropy(logits, targets) for logits in outputs if logits is not None)
