"""Advice by cause: what a forecast's cause means and what to do, for Slack, the run page and
terminals.

The texts are here, and the code that fixes a leak, by the kind of its suspect. The changes that
help are the catalogue's, with their savings in this run if its prediction has advice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from memagent.estimator.advice.catalog import BY_KEY, KEYS_BY_NAME
from memagent.estimator.advice.line_fixes import diff_of, is_on_host, stored_at
from memagent.estimator.advice.program_changes import SmallerBatch
from memagent.estimator.advice.script_profile import ScriptProfile
from memagent.forecast.types import LEAK_CAUSES
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
        "detach them and clear what is used.",
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

_EXPRESSION = re.compile(r"[A-Za-z_]\w*(?:\.\w+|\[[^\[\]]+\])*")

_CODE_BY_KIND = {
    "list": ("outputs", "{0}.append({1}.detach().cpu())  # not: {0}.append({1})\n"
             "{0}.clear()  # once its values are used"),
    "dict": ("results", "{0}[key] = {1}.detach().cpu()  # not: {0}[key] = {1}\n"
             "{0}.pop(key)  # once it is used"),
    "deque": ("queue", "{0} = collections.deque(maxlen=100)\n"
              "{0}.append({1}.detach().cpu())  # not: {0}.append({1})"),
    "set": ("results", "{0}.add({1}.item())  # not: {0}.add({1})\n"
            "{0}.clear()  # once its values are used"),
    "object": ("item", "{0} = None  # once it is no longer needed"),
    "variable": ("values", "{0} = torch.empty(steps)  # once, before the loop\n"
                 "{0}[step] = {1}.detach()  # not: {0} = torch.cat([{0}, x])"),
    "graph": ("total_loss", "{0} += loss.item()  # not: {0} += loss"),
    "hidden_state": ("hidden", "{0} = {0}.detach()  # before each step"),
    "gradient": ("gradients", "{0} = torch.autograd.grad(loss, parameters, create_graph=True)\n"
                 "optimizer.zero_grad(set_to_none=True)  # after each step"),
    "buffer": ("values", "{0}[step] = {1}.detach()  # not: torch.cat([{0}, x])"),
    "hook": ("activations", "handle = module.register_forward_hook(hook)  # once\n"
             "{0}.clear()  # before each forward\n"
             "handle.remove()  # once the output is used"),
    "closure": ("callbacks", "value = x.item()\n"
                "{0}.append(lambda: value)  # not: {0}.append(lambda: x)"),
    "exception": ("errors", "{0}.append(str({1}))  # not: {0}.append({1})"),
    "autograd_function": ("ctx.x", "ctx.save_for_backward({1})  # not: {0} = {1}"),
    "cache": ("f", "@functools.lru_cache(maxsize=128)\n"
              "def f(size: int): ...  # not: f(x: torch.Tensor)"),
    "view": ("outputs", "{0}.append({1}.clone())  # not: {0}.append({1})"),
    "optimizer": ("optimizer", "# once, before the loop, and again if parameters are replaced:\n"
                  "optimizer = torch.optim.AdamW(model.parameters())"),
    "dataloader": ("batches", "for batch in loader:  # not: batches = list(loader)\n"
                   "    train_step(batch)"),
    "cycle": ("parent", "{0} = weakref.proxy(parent)  # not: {0} = parent"),
    "worker": ("samples", "def __getitem__(self, index):\n"
               "    return load(self.paths[index])  # store nothing in self"),
    "copy_on_write": ("self.samples", "{0} = np.asarray(samples)  # not: a list of objects"),
    "thread": ("queue", "while not stopped.is_set():  # an Event that the loop sets when it ends\n"
               "    {0}.put(batch, timeout=1)  # and again after queue.Full"),
    "host": ("records", "records = collections.deque(maxlen=1_000)  # not: records = []"),
}  # fmt: skip
"""An example of the holder's name, and code with the name as {0}
and what is stored as {1}. Without the holder there is no
code for what it should keep, so the kind `allocation` has none."""
_EXAMPLE_VALUES = {"view": "x[:, 0]", "exception": "error", "graph": "loss"}
"""An example of what is stored, if it isn't `x`."""


def advice_for_cause(
    cause: str | None,
    predicted: Sequence[AdviceItem | Mapping[str, Any]] = (),
    suspect: Any = None,
    *,
    on_host: bool = False,
) -> CauseAdvice:
    """Return the advice for a forecast's cause; for an unknown one, a text that says so.

    `predicted` is the advice of the run's prediction, as messages or as the store's dictionaries.
    The items that help against the cause are named with their savings, the largest first, and the
    first one's code replaces the usual code. A leak gets the code for `suspect`, if there is one.
    on_host: the memory that grows is the host's.
    """
    text = _CAUSES.get(cause or "", _UNKNOWN)
    is_named = cause in LEAK_CAUSES and suspect is not None
    code = code_for_suspect(structs.asdict(suspect), on_host=on_host) if is_named else ""
    usual = CauseAdvice(text.summary, text.change, code or text.code or _usual_code(text))
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


def helping_first(cause: str, items: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return advice as the store has it, with what helps against the cause before the rest."""
    keys = _CAUSES[cause].helped_by if cause in _CAUSES else ()
    return sorted(items, key=lambda item: KEYS_BY_NAME.get(item["change"]) not in keys)


def code_for_suspect(suspect: Mapping[str, Any], *, on_host: bool = False) -> str:
    """Return the change of the suspect's line as a diff, else the code for its kind.

    on_host: the memory that grows is the host's.
    """
    kind, holder = suspect.get("kind"), suspect.get("holder")
    if diff := diff_of(suspect, on_host=on_host):
        return diff
    parts, on_host = stored_at(suspect), is_on_host(suspect, on_host=on_host)
    code = code_for_kind(kind, holder, parts, on_host=on_host)
    if on_host and "detach" not in (suspect.get("fix") or "detach"):
        # the agent saw no graph that a detached tensor would free
        code = "\n".join(line for line in code.splitlines() if ".detach()" not in line)
    return code


def code_for_kind(
    kind: str | None,
    holder: str | None = None,
    parts: tuple[str, str] | None = None,
    *,
    on_host: bool = False,
) -> str:
    """Return code that fixes a suspect of this kind, or "" if the kind is unknown or has none.

    `holder` is the suspect's: if it begins with a name, as in `outputs: list of 412`, so does the
    code. parts: what the suspect's line fills, and with what. On a host, moving there is no fix.
    """
    example, code = _CODE_BY_KIND.get(kind or "", ("", ""))
    name = (holder or "").partition(":")[0]
    name = name if _EXPRESSION.fullmatch(name) else example
    value = _EXAMPLE_VALUES.get(kind or "", "x")
    if on_host:
        code = code.replace(".detach().cpu()", ".detach()")
    return code.format(*(parts or (name, value)))


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
