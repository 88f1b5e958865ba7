"""Advice by cause: what a forecast's cause means and what to do, for Slack, the run page and
terminals.

The texts are here. The changes that help are the catalogue's, with their savings in this run if its
prediction has advice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memagent.estimator.advice.catalog import BY_KEY, KEYS_BY_NAME
from memagent.estimator.advice.program_changes import SmallerBatch
from memagent.estimator.advice.script_profile import ScriptProfile
from memagent.units import format_bytes
from memagent.wire.messages import AdviceItem

_MAX_LISTED_SAVINGS = 3


@dataclass(frozen=True)
class CauseAdvice:
    """The meaning of a cause, what to do about it, and code for that or for a closer look."""

    summary: str
    change: str
    code: str


@dataclass(frozen=True)
class _CauseText:
    """The texts of a cause, and the keys of the changes that help, the usual one first."""

    summary: str
    change: str
    code: str = ""
    helped_by: tuple[str, ...] = ()


_CAUSES = {
    "leak": _CauseText(
        "Memory held after each step grows: something keeps tensors alive from step to step.",
        "Look for outputs or losses that are stored with their graph. Store numbers instead, or "
        "detach and move to the CPU.",
        "total_loss += loss.item()  # not: total_loss += loss\n"
        "outputs.append(logits.detach().cpu())  # not: outputs.append(logits)",
    ),
    "fragmentation": _CauseText(
        "Free memory is split into pieces that are too small for the next allocation.",
        "Let the allocator grow its segments, and use the same tensor sizes in every step (pad or "
        "bucket lengths).",
        helped_by=("expandable_segments",),
    ),
    "tail": _CauseText(
        "Most batches fit easily, but the largest ones of this data come close to the limit.",
        "Cap the size of a batch by tokens instead of by samples, or drop the longest samples.",
        "batch_sampler = TokenBudgetSampler(lengths, max_tokens=16_384)",
        helped_by=("checkpointing", "chunked_loss", "attention", SmallerBatch.key),
    ),
    "input": _CauseText(
        "Activations grow with the input, and inputs are still getting larger.",
        "Limit the sequence length or the tokens in a batch, or recompute activations by "
        "checkpointing.",
        helped_by=("checkpointing", "attention", "chunked_loss", SmallerBatch.key),
    ),
    "optimizer_state": _CauseText(
        "The optimizer has not allocated its state yet; with it the next step does not fit.",
        "Use an optimizer with smaller state (8-bit Adam, Adafactor), or shard the state over "
        "ranks (ZeRO, FSDP).",
        helped_by=("eight_bit", "paged", "adafactor", "offload_optimizer", "zero_1", "zero_3"),
    ),
    "eval": _CauseText(
        "Evaluation or saving a checkpoint needs more memory than a training step.",
        "Evaluate under torch.inference_mode() with a smaller batch, and move results to the CPU "
        "as they come.",
        "with torch.inference_mode():\n    predictions.append(model(batch).argmax(-1).cpu())",
    ),
    "other_processes": _CauseText(
        "Other processes on this device take memory that the run will need.",
        "Find them with nvidia-smi and stop or move them, or give this run its own device.",
        "nvidia-smi --query-compute-apps=pid,used_memory --format=csv",
    ),
    "host_memory": _CauseText(
        "Host memory of the process and its data-loader workers grows toward the machine's limit.",
        "Look for lists that grow in the Dataset or in the loop, store arrays instead of Python "
        "objects, and use fewer workers.",
        "loader = DataLoader(dataset, num_workers=2, persistent_workers=True)",
    ),
    "compile": _CauseText(
        "torch.compile or CUDA graphs keep memory for each new input shape.",
        "Mark the changing dimension as dynamic, or pad inputs to a few fixed shapes.",
        "torch._dynamo.mark_dynamic(batch, 1)",
    ),
}
_UNKNOWN = _CauseText(
    "Memory grows, and the readings do not say why.",
    "Compare the components on the run page: the one that grows shows where to look.",
)

CAUSES = tuple(_CAUSES)


def advice_for_cause(
    cause: str | None, predicted: Sequence[AdviceItem | Mapping[str, Any]] = ()
) -> CauseAdvice:
    """Return the advice for a forecast's cause; for an unknown one, a text that says so.

    `predicted` is the advice of the run's prediction, as messages or as the store's dictionaries.
    The items that help against the cause are named with their savings, the largest first, and the
    first one's code replaces the usual code.
    """
    text = _CAUSES.get(cause or "", _UNKNOWN)
    usual = CauseAdvice(text.summary, text.change, text.code or _usual_code(text))
    items = [item if isinstance(item, AdviceItem) else _item_from_store(item) for item in predicted]
    helping = [item for item in items if KEYS_BY_NAME.get(item.change) in text.helped_by]
    if not helping:
        return usual
    helping.sort(key=lambda item: -item.saving_bytes)
    savings = ", ".join(
        f"{item.change} saves {format_bytes(item.saving_bytes)}"
        for item in helping[:_MAX_LISTED_SAVINGS]
    )
    return replace(usual, change=f"{text.change} In this run: {savings}.", code=helping[0].code)


def _usual_code(text: _CauseText) -> str:
    """Return the code of the first change that helps, for a script that isn't known."""
    if not text.helped_by:
        return ""
    script = ScriptProfile(transformers=True, blocks="model.layers")
    return BY_KEY[text.helped_by[0]].snippet(script)


def _item_from_store(item: Mapping[str, Any]) -> AdviceItem:
    return AdviceItem(
        change=item["change"], saving_bytes=item["saving_bytes"], code=item.get("code", "")
    )
