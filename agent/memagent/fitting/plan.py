"""The result of `memagent.fit`, for a training loop and for a person to read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from memagent.estimator.estimate import Estimate
from memagent.fitting.batches import batch_size, divided, weights_of
from memagent.fitting.changes import Changes
from memagent.fitting.pasted_code import code_of
from memagent.units import format_bytes


@dataclass(frozen=True)
class FitPlan:
    """The changes that were applied, and the estimate that proves that the step fits with them.

    `before` is the estimate without them; `undo()` takes them back.
    """

    model: Any = field(repr=False)
    changes: Changes
    estimate: Estimate
    before: Estimate
    undo: Callable[[], None] = field(repr=False)
    loss: Callable[..., Any] | None = field(default=None, repr=False)
    is_transformers: bool = False
    device: str = "cuda"

    def backward(self, batch: Any, targets: Any = None) -> Any:
        """Run forward and backward of one batch, in its parts; return its loss, detached.

        The loss is the one given to `fit`, else the model's own. A loss has to be a mean over
        samples: the parts are weighted by theirs (by labels, for labels of transformers).
        """
        from memagent.estimator.trace.steps import call_model, compute_loss

        total: Any = 0.0
        for part, of_part, weight in self.parts_of(batch, targets):
            with self.autocast():
                output = call_model(self.model, part)
                loss = compute_loss(output, part if of_part is None else of_part, self.loss, [])
            (loss * weight).backward()  # type: ignore[no-untyped-call]
            total = total + loss.detach() * weight
        return total

    def parts_of(self, batch: Any, targets: Any = None) -> Iterator[tuple[Any, Any, float]]:
        """Iterate over (inputs, targets, weight of the loss) for one optimizer step.

        A part without a label that counts is left out: its mean is not a number.
        """
        size = batch_size(batch) or 1
        parts = min(self.changes.parts, size)
        batches = divided(batch, parts, size)
        loss = getattr(self.model, "loss_function", None)
        is_shifted = getattr(loss, "__name__", "") == "ForCausalLMLoss"
        weights = weights_of(batches, is_shifted=is_shifted)
        of_batches = divided(targets, parts, size)
        yield from (part for part in zip(batches, of_batches, weights, strict=True) if part[2] > 0)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context for forward and the loss."""
        from memagent.estimator.trace.steps import autocast_context

        return autocast_context(self.device, self.changes.autocast)

    @property
    def code(self) -> str:
        """Return the changes as lines to paste into a script with `model` and `optimizer`."""
        return code_of(self.changes, self.model, is_transformers=self.is_transformers)

    def __str__(self) -> str:
        need, limit = self.estimate.needed_bytes, self.estimate.limit_bytes or 0
        head = f"{self.estimate.outcome}: needs {format_bytes(need)} of {format_bytes(limit)}"
        if self.estimate is self.before:
            return f"{head} as it is"
        was = format_bytes(self.before.needed_bytes)
        return "\n".join([f"{head}, {was} before", *map("- {}".format, self._sentences())])

    def _sentences(self) -> Iterator[str]:
        changes = self.changes
        if changes.blocks:
            yield (
                f"{len(changes.blocks)} blocks run again in backward: "
                f"{changes.recompute_share:.0%} more operations a step"
            )
        if changes.parts > 1:
            yield f"each batch in {changes.parts} parts, whose gradients add up"
        if changes.loops:
            yield "the optimizer updates one parameter at a time"
        if changes.states_on_host:
            yield "the optimizer's states wait on the host between steps"
        if changes.saved_on_host:
            yield "what forward keeps waits on the host for backward"
        if changes.autocast and self.before.assumptions["autocast"] == "none":
            yield f"forward under autocast to {changes.autocast}"
