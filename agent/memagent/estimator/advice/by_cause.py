"""What to change, by cause: words for Slack, the run page and the terminal.

Words about a cause are here; the changes that help against it are the catalogue's, with what they save in this run where its prediction
was advised about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memagent.estimator.advice.catalog import BY_KEY, NAMES, SMALLER_BATCH, smaller_batch
from memagent.estimator.advice.script_facts import Script
from memagent.units import format_bytes
from memagent.wire.messages import AdviceItem


@dataclass(frozen=True)
class CauseAdvice:
    """`summary`: what the cause means. `change`: what to do about it. `code`: lines that do it, or show where to look."""

    summary: str
    change: str
    code: str


@dataclass(frozen=True)
class _Cause:
    """A cause in words, its own lines of code, and keys of the catalogue's changes that help, the first being the usual one."""

    summary: str
    change: str
    code: str = ""
    helped_by: tuple[str, ...] = ()


_CAUSES = {
    "leak": _Cause(
        "Memory held after each step grows: something keeps tensors alive from one step to the next.",
        "Look for outputs or losses that are kept with their graph; keep numbers instead, or detach and move to the CPU.",
        "total_loss += loss.item()  # not: total_loss += loss\noutputs.append(logits.detach().cpu())  # not: outputs.append(logits)",
    ),
    "fragmentation": _Cause(
        "Free memory is cut into pieces that are too small for what is asked next.",
        "Let the allocator grow its segments, and keep tensor sizes alike from step to step (pad or bucket lengths).",
        helped_by=("expandable_segments",),
    ),
    "tail": _Cause(
        "Most batches fit with room, but the largest ones of this data come close to the limit.",
        "Cap the size of a batch by tokens instead of by samples, or drop the longest samples.",
        "batch_sampler = TokenBudgetSampler(lengths, max_tokens=16_384)",
        helped_by=("checkpointing", "chunked_loss", "attention", SMALLER_BATCH),
    ),
    "input": _Cause(
        "Activations follow the size of the input, and inputs are still getting larger.",
        "Limit the sequence length or the tokens in a batch, or recompute activations by checkpointing.",
        helped_by=("checkpointing", "attention", "chunked_loss", SMALLER_BATCH),
    ),
    "optimizer_state": _Cause(
        "The optimizer has not allocated its state yet; with it the next step does not fit.",
        "Use an optimizer with smaller state (8-bit Adam, Adafactor), or shard the state over ranks (ZeRO, FSDP).",
        helped_by=("eight_bit", "paged", "adafactor", "offload_optimizer", "zero_1", "zero_3"),
    ),
    "eval": _Cause(
        "Evaluation or saving a checkpoint needs more memory than a training step.",
        "Evaluate under torch.inference_mode() with a smaller batch, and move results to the CPU as they come.",
        "with torch.inference_mode():\n    predictions.append(model(batch).argmax(-1).cpu())",
    ),
    "other_processes": _Cause(
        "Other processes on this device take memory that the run will need.",
        "Find them with nvidia-smi and stop or move them, or give this run a device of its own.",
        "nvidia-smi --query-compute-apps=pid,used_memory --format=csv",
    ),
    "host_memory": _Cause(
        "Host memory of the process and its data-loader workers grows toward the machine's limit.",
        "Look for lists that grow in the Dataset or in the loop, keep arrays instead of Python objects, and use fewer workers.",
        "loader = DataLoader(dataset, num_workers=2, persistent_workers=True)",
    ),
    "compile": _Cause(
        "torch.compile or CUDA graphs keep memory for each new input shape.",
        "Mark the changing dimension as dynamic, or pad inputs to a few fixed shapes.",
        "torch._dynamo.mark_dynamic(batch, 1)",
    ),
}
_UNKNOWN = _Cause(
    "Memory grows, and the readings do not say why.",
    "Compare the components on the run page: the one that grows shows where to look.",
)

CAUSES = tuple(_CAUSES)


def advice_for_cause(
    cause: str | None, predicted: Sequence[AdviceItem | Mapping[str, Any]] = ()
) -> CauseAdvice:
    """Words for a forecast's cause; for one that is not known, words that say so.

    `predicted` is the advice of the run's prediction, as messages or as the store's dictionaries. What in it helps against the cause is
    named with its saving in this run, the largest first, and its lines stand for the usual ones.
    """
    found = _CAUSES.get(cause or "", _UNKNOWN)
    usual = CauseAdvice(found.summary, found.change, found.code or _usual_lines(found))
    items = [_item(one) for one in predicted]
    helping = [one for one in items if NAMES.get(one.change) in found.helped_by]
    if not helping:
        return usual
    helping.sort(key=lambda one: -one.saving_bytes)
    savings = ", ".join(
        f"{one.change} saves {format_bytes(one.saving_bytes)}" for one in helping[:3]
    )
    return replace(usual, change=f"{found.change} In this run: {savings}.", code=helping[0].code)


def _usual_lines(cause: _Cause) -> str:
    """The code of the first change that helps, for a script of which nothing is known."""
    if not cause.helped_by:
        return ""
    key = cause.helped_by[0]
    change = smaller_batch(2, 2) if key == SMALLER_BATCH else BY_KEY[key]
    return change.code(Script(transformers=True, blocks="model.layers"))


def _item(one: AdviceItem | Mapping[str, Any]) -> AdviceItem:
    if isinstance(one, AdviceItem):
        return one
    return AdviceItem(
        change=one["change"], saving_bytes=one["saving_bytes"], code=one.get("code", "")
    )
