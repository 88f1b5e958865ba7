"""What the bytes of a model and its optimizer are for: exact, by walking each storage once.

1. Parameters are the models' and those that only the optimizers hold (fp32 master copies); what hangs on a parameter belongs to it
   (bitsandbytes' `quant_state`, DeepSpeed's `ds_tensor`), but attributes named `...grad...` are gradients (Megatron's `main_grad`).
2. Gradients are `.grad` of these. Buffers are the modules' own.
3. Optimizer state is every other tensor that an optimizer reaches: `.state` of any nesting, tensors in its groups, its own attributes,
   the optimizers it wraps.
4. A storage counts once, whole, on the device where it lies now, for the first of parameters, gradients, buffers and optimizer state
   that holds it. docs/components.md says what this means for each library, and what is not seen.

Reads no tensor's data, never synchronises and never initialises a device: only sizes and addresses of storages are asked for.
"""

from memagent.components.measure import (
    EMPTY,
    Components,
    by_device,
    distinct,
    measure,
    parameters_of,
)
from memagent.components.state_fingerprint import state_mark

__all__ = ["EMPTY", "Components", "by_device", "distinct", "measure", "parameters_of", "state_mark"]
