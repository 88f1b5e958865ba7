"""The changes of a `FitPlan` as lines of code for a script that doesn't use memagent."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from memagent.fitting.recompute import norms_in

if TYPE_CHECKING:
    from memagent.fitting.blocks import ModelBlock
    from memagent.fitting.changes import Changes

_MODULES = """\
for path in {paths}:
    block = model.get_submodule(path)
    block.forward = partial(checkpoint, block.forward, use_reentrant=False)"""
_RUNS = """\
def forward_{name}(value, layers=list({module})):
    position, ends = 0, {ends}  # runs of layers that run again
    while position < len(layers):
        end = ends.get(position, position + 1)
        run = torch.nn.Sequential(*layers[position:end])
        value = checkpoint(run, value, use_reentrant=False) if position in ends else run(value)
        position = end
    return value

{module}.forward = forward_{name}"""
_NORMS_NOTE = (
    "# batch norms in these blocks update their statistics twice a step; with memagent once"
)
_LOOP = 'for group in optimizer.param_groups:\n    group["foreach"] = False'
_STATES = """\
def move_states(to_host):
    for parameter, states in optimizer.state.items():
        for name, value in states.items():
            if torch.is_tensor(value) and value.numel() > 1:
                states[name] = value.to("cpu" if to_host else parameter.device)

optimizer.register_step_pre_hook(lambda *_: move_states(to_host=False))
optimizer.register_step_post_hook(lambda *_: move_states(to_host=True))"""
_PARTS_OF_DICT = """\
for part in zip(*(value.chunk({parts}) for value in batch.values())):{context}
    {indent}loss = model(**dict(zip(batch, part))).loss / {parts}
    loss.backward()"""
_PARTS = """\
for part, part_targets in zip(inputs.chunk({parts}), targets.chunk({parts})):{context}
    {indent}loss = loss_of(model(part), part_targets) / {parts}
    loss.backward()"""
_SAVED = """\
kept = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}

def to_host(value):
    is_kept = value.untyped_storage().data_ptr() in kept
    return value.device, value if is_kept else value.cpu()

def to_device(saved):
    return saved[1].to(saved[0])"""
_SAVED_HOOKS = "torch.autograd.graph.saved_tensors_hooks(to_host, to_device)"
_AUTOCAST = 'torch.autocast("cuda", dtype=torch.{dtype})'
_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


def code_of(changes: Changes, model: Any, *, is_transformers: bool) -> str:
    """Return the lines, "" if nothing changed."""
    return "\n\n".join(_sections(changes, model, is_transformers))


def _sections(changes: Changes, model: Any, is_transformers: bool) -> Iterator[str]:
    if changes.blocks:
        yield from _recomputation(changes.blocks, model)
    if changes.loops:
        yield _LOOP
    if changes.states_on_host:
        yield _STATES
    if changes.saved_on_host:
        yield _SAVED
    context = ", ".join(_contexts(changes))
    if changes.parts > 1:
        yield (_PARTS_OF_DICT if is_transformers else _PARTS).format(
            parts=changes.parts,
            context=f"\n    with {context}:" if context else "",
            indent="    " if context else "",
        )
    elif context:
        loss = "model(**batch).loss" if is_transformers else "loss_of(model(inputs), targets)"
        yield f"with {context}:\n    loss = {loss}"


def _contexts(changes: Changes) -> Iterator[str]:
    if changes.autocast:
        yield _AUTOCAST.format(dtype=_DTYPES.get(changes.autocast, changes.autocast))
    if changes.saved_on_host:
        yield _SAVED_HOOKS


def _recomputation(blocks: tuple[ModelBlock, ...], model: Any) -> Iterator[str]:
    modules = tuple(block.path for block in blocks if not block.is_run)
    runs = [block for block in blocks if block.is_run]
    yield "from functools import partial\n\nfrom torch.utils.checkpoint import checkpoint"
    if hasattr(model, "config"):
        yield "model.config.use_cache = False"
    if modules:
        yield _MODULES.format(paths=_tuple_of(modules))
    for path, parts in groupby(runs, key=lambda block: block.path):
        name = path.replace(".", "_") or "model"
        ends = {block.first: block.last + 1 for block in parts}
        module = f'model.get_submodule("{path}")' if path else "model"
        yield _RUNS.format(name=name, module=module, ends=ends)
    if norms_in([model.get_submodule(block.path) for block in blocks]):
        yield _NORMS_NOTE


def _tuple_of(paths: tuple[str, ...]) -> str:
    inner = "".join(f'    "{path}",\n' for path in paths)
    return f"(\n{inner})"
