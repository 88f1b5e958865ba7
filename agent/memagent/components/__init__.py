"""Exact bytes by component of a model and its optimizer, by walking each storage once.

1. Parameters are those of the models and those that only the optimizers have (fp32 master copies).
   Attributes of a parameter count as part of it (bitsandbytes' `quant_state`, DeepSpeed's
   `ds_tensor`), except that attributes named `...grad...` are gradients (Megatron's `main_grad`).
2. Gradients are the `.grad` of these. Buffers are the modules' own.
3. Optimizer state is every other tensor that is reachable from an optimizer: `.state` of any
   nesting, tensors in its groups, its attributes, and the optimizers it wraps.
4. A storage counts once, in full, on its current device. It counts for the first component that has
   it: parameters, gradients, buffers, optimizer state. See docs/components.md for each library, and
   for what is not counted.

Measuring reads no tensor's data, never synchronizes and never initializes a device. It only asks
for sizes and addresses of storages.
"""

from memagent.components.measure import (
    EMPTY,
    Components,
    distinct,
    measure_by_device,
    modules_of,
    named_modules_of,
    parameters_of,
    state_fingerprint,
)

__all__ = [
    "EMPTY",
    "Components",
    "distinct",
    "measure_by_device",
    "modules_of",
    "named_modules_of",
    "parameters_of",
    "state_fingerprint",
]
