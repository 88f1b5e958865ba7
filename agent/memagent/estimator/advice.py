"""What to change, by cause: words for Slack, the run page and the terminal."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CauseAdvice:
    """`summary`: what the cause means. `change`: what to do about it. `code`: lines that do it, or show where to look."""

    summary: str
    change: str
    code: str


_ADVICE = {
    "leak": CauseAdvice(
        "Memory held after each step grows: something keeps tensors alive from one step to the next.",
        "Look for outputs or losses that are kept with their graph; keep numbers instead, or detach and move to the CPU.",
        "total_loss += loss.item()  # not: total_loss += loss\noutputs.append(logits.detach().cpu())  # not: outputs.append(logits)",
    ),
    "fragmentation": CauseAdvice(
        "Free memory is cut into pieces that are too small for what is asked next.",
        "Let the allocator grow its segments, and keep tensor sizes alike from step to step (pad or bucket lengths).",
        "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    ),
    "tail": CauseAdvice(
        "Most batches fit with room, but the largest ones of this data come close to the limit.",
        "Cap the size of a batch by tokens instead of by samples, or drop the longest samples.",
        "batch_sampler = TokenBudgetSampler(lengths, max_tokens=16_384)",
    ),
    "input": CauseAdvice(
        "Activations follow the size of the input, and inputs are still getting larger.",
        "Limit the sequence length or the tokens in a batch, or recompute activations by checkpointing.",
        "model.gradient_checkpointing_enable()",
    ),
    "optimizer_state": CauseAdvice(
        "The optimizer has not allocated its state yet; with it the next step does not fit.",
        "Use an optimizer with smaller state (8-bit Adam, Adafactor), or shard the state over ranks (ZeRO, FSDP).",
        "optimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=lr)",
    ),
    "eval": CauseAdvice(
        "Evaluation or saving a checkpoint needs more memory than a training step.",
        "Evaluate under torch.inference_mode() with a smaller batch, and move results to the CPU as they come.",
        "with torch.inference_mode():\n    predictions.append(model(batch).argmax(-1).cpu())",
    ),
    "other_processes": CauseAdvice(
        "Other processes on this device take memory that the run will need.",
        "Find them with nvidia-smi and stop or move them, or give this run a device of its own.",
        "nvidia-smi --query-compute-apps=pid,used_memory --format=csv",
    ),
    "host_memory": CauseAdvice(
        "Host memory of the process and its data-loader workers grows toward the machine's limit.",
        "Look for lists that grow in the Dataset or in the loop, keep arrays instead of Python objects, and use fewer workers.",
        "loader = DataLoader(dataset, num_workers=2, persistent_workers=True)",
    ),
    "compile": CauseAdvice(
        "torch.compile or CUDA graphs keep memory for each new input shape.",
        "Mark the changing dimension as dynamic, or pad inputs to a few fixed shapes.",
        "torch._dynamo.mark_dynamic(batch, 1)",
    ),
}
_UNKNOWN = CauseAdvice(
    "Memory grows, and the readings do not say why.",
    "Compare the components on the run page: the one that grows shows where to look.",
    "",
)

CAUSES = tuple(_ADVICE)


def advice_for_cause(cause: str | None) -> CauseAdvice:
    """Words for a forecast's cause; for one that is not known, words that say so."""
    return _ADVICE.get(cause or "", _UNKNOWN)
