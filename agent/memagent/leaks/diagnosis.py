"""From two censuses to suspects.

1. Tensors that survived and became more: a sample of each kind is climbed up to the container that holds them (climb), which is named,
   and the line that fills it is looked up in the source (lines).
2. Those that nothing holds: the attribute of a custom autograd function's context, gradients with a graph, reference cycles.
3. A graph of autograd that grew, and is not kept by what was found already: the largest root that is carried from step to step.
4. A tensor that is made anew each step, longer each time: `buffer = torch.cat([buffer, x])`.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memagent.leaks import autograd_graphs, census, source_lines
from memagent.leaks.census import Census, Growth, Longer
from memagent.leaks.detectors.base import TimeBudget
from memagent.leaks.object_names import Name, file_of
from memagent.leaks.referrers import Place, ReferrerSearch, closing, is_telling
from memagent.leaks.suspect import (
    Kind,
    build_suspect,
    can_grow,
    is_module,
    is_module_class,
    kind_of,
    scale_confidence,
    what_is,
)
from memagent.leaks.user_code import Scopes, is_script, is_script_class, namespace
from memagent.wire.messages import Suspect

LONGEST_S = 0.6
"""Of the thread's own time."""
_COLLECTION_S = 0.3
"""What a run of the garbage collector may take."""
_CUT_SHORT = 0.7
"""How much surer who had time for everything is."""
_SAMPLE = 8
_MOST_GROWTHS = 4
_MOST_SUSPECTS = 3


def diagnose(
    first: Census,
    before: Census,
    step: int,
    deadline: TimeBudget,
    *,
    measured_bytes_per_step: int | None = None,
) -> list[Suspect]:
    """Who holds what came between `first` and now, after `step`; `before` was taken a step ago. Most likely first; empty where nothing
    grew. Leaves no references behind. `measured_bytes_per_step` is what the device or the host say the growth is. What is not found by the
    `deadline` stays unfound, and who was found is less sure."""
    tensors = census.live_tensors()
    last = census.take(step, tensors, autograd_graphs.count(tensors))
    growths = census.grown(first, before, last, tensors)[:_MOST_GROWTHS]
    longer = census.lengthened(first, before, last, tensors)[:_MOST_GROWTHS]
    more_nodes = last.nodes - first.nodes
    steps = max(1, last.step - first.step)
    if not growths and not longer and more_nodes < steps // 2:
        return []
    scopes = Scopes()
    ours = [tensors, growths, longer, *(growth.survivors for growth in growths)]
    climber = ReferrerSearch(scopes, {id(ours), *map(id, ours)}, deadline)
    old = {entry.storage for entry in first.entries.values()}
    case = _Case(climber, scopes, deadline, steps, measured_bytes_per_step, old)
    try:
        found = [
            suspect for growth in growths if not deadline.is_over() for suspect in case.held(growth)
        ]
        found += [
            suspect for item in longer if not deadline.is_over() and (suspect := case.longer(item))
        ]
        if more_nodes >= max(2, steps // 2) and not any(
            suspect.kind != "cycle" for suspect in found
        ):
            found += case.graph(tensors, more_nodes)
        if not found and case.unheld:
            tensors.clear()
            found += case.unreachable(growths)
        return _ranked(
            [scale_confidence(suspect, _CUT_SHORT) for suspect in found]
            if deadline.was_hit
            else found
        )
    finally:
        climber.close()


def _ranked(found: Sequence[Suspect]) -> list[Suspect]:
    """One suspect a line, surest and largest first."""
    places: dict[tuple[str, int], Suspect] = {}
    for suspect in sorted(found, key=lambda each: (-each.confidence, -(each.bytes_per_step or 0))):
        places.setdefault((suspect.file, suspect.line), suspect)
    best = sorted(places.values(), key=lambda each: -(each.bytes_per_step or 0) * each.confidence)
    return best[:_MOST_SUSPECTS]


@dataclass
class _Case:
    """One diagnosis at work. `old`: storages that were there before it. `unheld`: growth that nothing in Python refers to."""

    climber: ReferrerSearch
    scopes: Scopes
    deadline: TimeBudget
    steps: int
    measured: int | None
    old: set[int]
    unheld: int = 0

    # -- 1. what a container holds ----------------------------------------------------------------------------------------

    def held(self, growth: Growth) -> list[Suspect]:
        place = self._common(growth)
        if place is None or place.name is None:
            return self._unheld(growth)
        if not can_grow(place):
            return []
        kind = kind_of(place, growth)
        line = _container_line(self.scopes, place, kind)
        if line is None and not place.name.is_good:
            return []
        if (
            line is not None
            and kind in ("list", "dict", "deque", "set")
            and source_lines.is_hook(line.file, line.function)
        ):
            kind = "hook"
        holder = f"{place.name.expression}: {what_is(place.container, kind)}"
        confidence = place.coverage * (
            1.0 if line and line.strength == source_lines.GROWS else 0.8 if line else 0.5
        )
        return [_suspect(place.name, line, holder, kind, self._with_graphs(growth), confidence)]

    def _common(self, growth: Growth) -> Place | None:
        """Of those that hang in no other one's graph, if that tells: an output that keeps its graph keeps activations as well, and
        nothing in Python holds those."""
        heads = autograd_graphs.heads(growth.survivors)
        self.climber.overlook(heads)
        found = self.climber.common(_sample(heads))
        if found is None and len(heads) < len(growth.survivors):
            found = self.climber.common(_sample(growth.survivors))
        return found

    def _with_graphs(self, growth: Growth) -> int:
        """Bytes a step, with what the graphs of the survivors keep; not more than was measured, as graphs may reach far back."""
        own, saved = autograd_graphs.kept_storages(growth.survivors)
        total = sum(size for storage, size in {**saved, **own}.items() if storage not in self.old)
        size = growth.bytes_per_step * total // sum(own.values()) if own else growth.bytes_per_step
        most = size if self.measured is None else self.measured
        return max(growth.bytes_per_step, min(size, most))

    # -- 2. what nothing holds --------------------------------------------------------------------------------------------

    def _unheld(self, growth: Growth) -> list[Suspect]:
        """The context of an autograd function, or the cycle of a gradient with its parameter: C++ holds these."""
        for item in self.climber.met:
            forward = getattr(type(item), "_forward_cls", None)
            if forward is not None and (found := self._context(forward, item, growth)):
                return [found]
        if any(
            t.grad is not None and t.grad.grad_fn is not None
            for t in growth.survivors
            if t.is_leaf and t.requires_grad
        ):
            return self._gradient(None, growth.bytes_per_step)
        self.unheld += growth.bytes_per_step
        return []

    def _context(self, function: type, context: Any, growth: Growth) -> Suspect | None:
        attribute = next(iter(namespace(context) or ()), None)
        code = getattr(getattr(function, "forward", None), "__code__", None)
        if attribute is None or code is None or not is_script(code.co_filename):
            return None
        sets = source_lines.attribute_sets(code.co_filename, function.__name__, attribute)
        line = sets[0] if sets else None
        name = Name(
            f"{function.__name__}: ctx.{attribute}",
            (attribute,),
            code.co_filename,
            function.__name__,
            code=code,
        )
        return _suspect(
            name,
            line,
            f"{name.expression}: tensor",
            "autograd_function",
            growth.bytes_per_step,
            0.8,
        )

    def unreachable(self, growths: Sequence[Growth]) -> list[Suspect]:
        """A cycle: named while it is there, then the collector is run to see whether it frees it."""
        for growth in growths:
            if len(growth.survivors) < 0.8 * self.steps:
                continue  # the collector has been at it meanwhile, and will be again
            if not self.deadline.leaves(_COLLECTION_S):
                break
            found = closing(self.climber.climb(growth.survivors[-1], LONGEST_S / 2, is_telling))
            self.climber.close()
            if found is None:
                continue
            if not self.deadline.leaves(_COLLECTION_S):
                break
            alive = [weakref.ref(tensor) for tensor in growth.survivors]
            for each in growths:
                each.survivors.clear()
            gc.collect()
            freed = sum(reference() is None for reference in alive)
            name, line = found
            holder = f"{name.expression}: reference cycle"
            return (
                [_suspect(name, line, holder, "cycle", self.unheld, 0.7)]
                if freed * 2 >= len(alive)
                else []
            )
        return []

    # -- 3. what a graph keeps --------------------------------------------------------------------------------------------

    def graph(self, tensors: Sequence[Any], more_nodes: int) -> list[Suspect]:
        """The root that is carried from step to step, of those with the largest graphs; else the largest."""
        roots = autograd_graphs.largest(tensors)
        large = [
            root
            for root in roots
            if root.nodes >= min(more_nodes, autograd_graphs.MOST_NODES // 4) // 2
        ]
        best: tuple[tuple[int, int], Suspect] | None = None
        for root in large[:8]:
            if self.deadline.is_over():
                break
            for score, suspect in self._rooted(root):
                if best is None or score > best[0]:
                    best = score, suspect
            if best is not None and best[0][0] > 0:
                break
        return [best[1]] if best else []

    def _rooted(self, root: autograd_graphs.Root) -> list[tuple[tuple[int, int], Suspect]]:
        """With how sure the line is, and how large the graph."""
        size = self._graph_bytes(root)
        if root.parameter is not None:
            return [((3, root.nodes), suspect) for suspect in self._gradient(root.parameter, size)]
        place = self.climber.name(root.tensor)
        if place.name is None or not place.name.is_good:
            return []
        line = next(iter(lines_of(self.scopes, place.name)), None)
        is_carried = line is not None and line.strength == source_lines.GROWS
        kind: Kind = "graph" if root.tensor.numel() == 1 else "hidden_state"
        holder = f"{place.name.expression}: graph of {root.nodes:,} nodes"
        suspect = _suspect(place.name, line, holder, kind, size, 0.9 if is_carried else 0.4)
        return [((2 * is_carried, root.nodes), suspect)]

    def _gradient(self, parameter: Any, size: int | None) -> list[Suspect]:
        """Gradients that have a graph themselves, by the line that asks for it."""
        name = self.climber.name(parameter).name if parameter is not None else None
        holder = (
            f"{name.expression}.grad: gradient with a graph"
            if name
            else "gradients that keep their graph"
        )
        found = [
            line
            for file in self.scopes.files
            for line in source_lines.calls_with(file, "create_graph")
        ]
        return [
            _suspect(
                Name(holder, (), line.file, line.function), line, holder, "gradient", size, 0.8
            )
            for line in found[:1]
        ]

    def _graph_bytes(self, root: autograd_graphs.Root) -> int | None:
        return (
            max(self.measured or 0, self.unheld)
            or autograd_graphs.saved_bytes(root.tensor) // self.steps
        )

    # -- 4. what is made longer -------------------------------------------------------------------------------------------

    def longer(self, item: Longer) -> Suspect | None:
        """Only with a line that makes it from its former self: batches of random lengths look alike."""
        place = self.climber.name(item.tensor)
        if place.name is None:
            return None
        found = lines_of(self.scopes, place.name)
        if not found or found[0].strength != source_lines.GROWS:
            return None
        owner = place.name.owner
        is_buffer = any(map(is_module, place.above)) or (
            owner is not None and is_module_class(owner)
        )
        holder = f"{place.name.expression}: tensor of {' x '.join(map(str, item.tensor.shape))}"
        return _suspect(
            place.name,
            found[0],
            holder,
            "buffer" if is_buffer else "variable",
            item.bytes_per_step,
            0.9,
        )


# -- lines --------------------------------------------------------------------------------------------------------------------


def _container_line(scopes: Scopes, place: Place, kind: Kind) -> source_lines.Line | None:
    name = place.name
    if name is None:
        return None
    if kind == "cache" and name.code is not None:
        first = name.code.co_firstlineno
        return source_lines.Line(
            name.file, first, name.function, source_lines.GROWS, in_loop=False, text=""
        )
    if kind == "hook":
        return next((line for file in scopes.files for line in source_lines.hook_calls(file)), None)
    return next(iter(lines_of(scopes, name)), None)


def lines_of(scopes: Scopes, name: Name) -> list[source_lines.Line]:
    """The owner first, then the rest of its file, then the script's other files."""
    where: list[source_lines.Scope] = []
    if name.owner is not None:
        where += [
            source_lines.Scope(_file(kind, name), None, kind.__name__)
            for kind in name.owner.__mro__
            if is_script_class(kind)
        ]
    elif name.code is not None and is_script(name.file):
        where.append(source_lines.Scope(name.file, name.code.co_firstlineno))
    where += [
        source_lines.Scope(file)
        for file in dict.fromkeys([name.file, *scopes.files])
        if is_script(file)
    ]
    found = source_lines.growing(where[:1], name.identifiers[:1]) if where else []
    if not any(line.strength == source_lines.GROWS for line in found):
        found = source_lines.growing(where[:12], name.identifiers)
    return found


def _file(kind: type, name: Name) -> str:
    return file_of(kind) or name.file


def _suspect(
    name: Name,
    line: source_lines.Line | None,
    holder: str,
    kind: Kind,
    size: int | None,
    confidence: float,
) -> Suspect:
    if line is None:
        first = name.code.co_firstlineno if name.code else 0
        return build_suspect(
            name.file, first, name.function, holder, kind, size, round(confidence * 0.7, 2)
        )
    return build_suspect(
        line.file, line.line, line.function, holder, kind, size, round(confidence, 2)
    )


def _sample(survivors: Sequence[Any]) -> list[Any]:
    """Spread over all, so that what is filled in turn is seen as one."""
    stride = max(1, len(survivors) // _SAMPLE)
    return list(survivors[::stride][:_SAMPLE])
