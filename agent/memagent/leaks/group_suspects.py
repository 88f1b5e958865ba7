"""Suspects of one group of tensors that survived and became more.

1. Search upwards from a sample of the group to the container that holds them (`referrers`), name
   it, and find the line that fills it (`growth`).
2. For those that nothing in Python holds: look for an attribute of a custom autograd function's
   context, and gradients with a graph.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import FunctionType, MethodType
from typing import Any

from msgspec.structs import replace

from memagent.components import live_objects, safe_reads
from memagent.leaks import autograd_graphs, limits, origins, source_lines
from memagent.leaks.autograd_graphs import is_leaf
from memagent.leaks.bounds import bound_of
from memagent.leaks.carried_tensors import suspect_gradient
from memagent.leaks.census import GroupGrowth
from memagent.leaks.detectors.base import CodePosition, Work
from memagent.leaks.free_memory import BoundCheck
from memagent.leaks.loop_iterators import loop_of
from memagent.leaks.object_names import ObjectName
from memagent.leaks.pattern_fixes import with_call_fix, with_chain_fix, with_pattern_fix
from memagent.leaks.reachability import holders_from_variables, ids_below
from memagent.leaks.referrers import HolderPath, ReferrerSearch
from memagent.leaks.registrations import passing_call, receiver_of, registering_line
from memagent.leaks.source_lines import GROWS, PASSES, SETS, SourceLine
from memagent.leaks.stored_values import Traits
from memagent.leaks.suspect import CERTAINTIES, classify, describe_container, suspect_at
from memagent.leaks.suspension import present
from memagent.leaks.time_budgets import TimeBudget
from memagent.leaks.user_code import UserScopes, is_script, namespace
from memagent.wire.messages import Suspect

_SAMPLE_SIZE = 8
_MAX_SITE_RATIO = 1.5
_MAX_TEXT = 120
_MAX_NEW = 8
"""New containers that are left out until a lasting one is found."""
_MIN_REST_SHARE = 0.25
"""Share of a group, and of one tensor a step, from which what else grows in it is looked for."""
_MIN_REGISTERED_SHARE = 0.5
"""Share of the survivors that one line registered, or their gradients, for it to be a suspect."""
_MIN_HELD_SHARE = 0.1
"""Share of the survivors that variables lead to, below which these keep only the newest ones."""
_MIN_REMAINING_SHARE = 0.5
"""Share of the survivors that a leak still holds at the end of the search."""

_FIX_PASSED = (
    "Take back what `{0}` gets once it isn't needed any more, or give it a function that holds its "
    "object weakly: code outside of Python keeps it."
)


@dataclass
class GroupSearch:
    """One diagnosis in progress."""

    search: ReferrerSearch
    budget: TimeBudget
    steps: int
    measured_bytes_per_step: int | None
    old_storages: set[int]
    """Storages that existed before the first census."""
    sites: Mapping[CodePosition, float]
    """The tensors per step that remain of each line of the script, as far as that was traced."""
    bounds: BoundCheck = field(default_factory=BoundCheck)
    registered: Mapping[int, CodePosition] = field(default_factory=dict)
    """The lines that registered parameters and buffers, by the id of each."""
    unheld_bytes_per_step: int = 0
    """Growth that nothing in Python refers to."""

    @property
    def scopes(self) -> UserScopes:
        return self.search.scopes

    # -- 1. containers ----------------------------------------------------------------------

    def suspects_of_group(self, growth: GroupGrowth) -> Work[list[Suspect]]:
        count = len(growth.survivors)
        holder = yield from self._common_holder(growth)
        growth.survivors[:] = present(growth.survivors)
        if holder and holder.coverage < _MIN_REMAINING_SHARE and bound_of(holder) is not None:
            holder = None  # a ring with the newest ones: what leaves it stays elsewhere
        if not self._is_lasting(growth, count, holder):
            rest = None if holder is None else self._rest(growth, holder)
            holder = None  # a frame that yields holds nothing of the script
            return [] if rest is None else (yield from self.suspects_of_group(rest))
        if holder is None or holder.name is None:
            return self._suspects_without_holder(growth)
        return self._suspects_of_holder(growth, holder, holder.name)

    def _suspects_of_holder(
        self, growth: GroupGrowth, holder: HolderPath, holder_name: ObjectName
    ) -> list[Suspect]:
        kind = classify(holder, growth)
        line = origins.line_of_holder(self.scopes, holder, kind)
        if line is None or line.strength < PASSES:
            for inner in origins.holders_below(holder):
                if inner.name and self._strength(inner, growth) == GROWS:
                    return self._suspects_of_holder(growth, inner, inner.name)
        is_weak = line is None or line.strength < PASSES
        if is_weak and (registering := self._suspect_registering(growth, holder)) is not None:
            return [registering]
        if line is None and (attribute := origins.attribute_below(holder)) is not None:
            name, line = attribute
            text, rate = f"{name.expression}: tensor", self._rate_with_graphs(growth)
            return [
                suspect_at(
                    name, line, text, "object", rate, holder.coverage, _traits(growth, holder)
                )
            ]
        if growth.is_renewed and (line is None or line.strength < PASSES):
            return []  # an input that has more parts each time
        line = line or self._site_line(growth) or origins.creating_line(holder, self.scopes.files)
        if line is None and not holder_name.is_in_script:
            return []
        is_plain_container = kind in ("list", "dict", "deque", "set")
        if line and is_plain_container and source_lines.is_hook(line.file, line.function):
            kind = "hook"
        text = (
            f"{holder_name.expression}: {describe_container(holder.container, kind, holder.below)}"
        )
        certainty = 0.5 if line is None else CERTAINTIES[line.strength]
        confidence = holder.coverage * certainty
        rate = self._rate_with_graphs(growth)
        suspect = suspect_at(
            holder_name, line, text, kind, rate, confidence, _traits(growth, holder)
        )
        suspect = with_chain_fix(with_pattern_fix(suspect, holder.objects), holder)
        suspect = self.bounds.with_fix(suspect, holder)
        # numbers that vary may rise by chance
        return [] if growth.is_rare and limits.may_stop_growing(suspect) else [suspect]

    def _suspect_registering(self, growth: GroupGrowth, holder: HolderPath) -> Suspect | None:
        """Return the call of the script in which a library's modules get most of the tensors."""
        position, share = registering_line(growth.survivors, self.registered)
        line = origins.site_line(position) if share >= _MIN_REGISTERED_SHARE else None
        if position is None or line is None:
            return None
        owner, call = receiver_of(position)
        text = f"{owner}: modules of {call}()"
        name = ObjectName(owner, (), line.file, line.function)
        rate, certainty = self._rate_with_graphs(growth), CERTAINTIES[line.strength]
        kind, sure = classify(holder, growth), share * certainty
        suspect = suspect_at(name, line, text, kind, rate, sure, _traits(growth, holder))
        return self.bounds.with_fix(with_pattern_fix(suspect, holder.objects), holder)

    def _rest(self, growth: GroupGrowth, holder: HolderPath) -> GroupGrowth | None:
        """Return what grows beside a container that doesn't: a list beside a pool that fills."""
        inner_ids = ids_below(holder.container)
        rest = [item for item in growth.survivors if id(item) not in inner_ids]
        least = max(_MIN_REST_SHARE * len(growth.survivors), _MIN_REST_SHARE * self.steps)
        if not inner_ids or len(rest) < least or len(rest) == len(growth.survivors):
            return None
        own, _ = autograd_graphs.held_storages(rest)
        rate = sum(size for key, size in own.items() if key not in self.old_storages) // self.steps
        return growth.part(self.search.hold(rest), rate)

    def _is_lasting(self, growth: GroupGrowth, count: int, holder: HolderPath | None) -> bool:
        """Return False for tensors that come and go. `count`: survivors at the window's end."""
        present_count = len(growth.survivors)
        remaining = present_count * (1.0 if holder is None else holder.coverage)
        # freed during pauses: what is left may be a ring's, or that of a list which is flushed
        if present_count < count and remaining <= _MIN_REMAINING_SHARE * count:
            return False
        if holder is None or holder.name is None:
            return True
        # the input of this step alone
        if growth.is_renewed and id(holder.container) in live_objects.young_ids():
            return False
        rate = self._rate_with_graphs(growth)
        entry_bytes = rate * self.steps / max(1, count)
        return self.bounds.can_grow(holder, entry_bytes, rate, growth.group[0])

    def _common_holder(self, growth: GroupGrowth) -> Work[HolderPath | None]:
        """Return the holder of the outermost tensors, if there is one, else of all survivors.

        An output that keeps its graph also keeps activations, which nothing in Python holds.
        """
        survivors = growth.survivors
        survivors[:] = present(survivors)
        outermost = self.search.hold(autograd_graphs.outermost(survivors))
        holders = self._holders_from_variables(outermost)
        if any(item.coverage >= _MIN_HELD_SHARE for item in holders):
            return self._likeliest(holders, growth)
        holder = yield from self.search.common_holder(_sample(outermost))
        if holder is None and len(outermost) < len(survivors):
            holder = yield from self.search.common_holder(_sample(present(survivors)))
        if holder is not None and not _is_connected(holder):
            # replaced during a pause: `memory = memory + [x]`
            sample = _sample(present(outermost))
            holder = self.search.at_once(self.search.common_holder(sample))
        return holder

    def _likeliest(self, holders: Sequence[HolderPath], growth: GroupGrowth) -> HolderPath:
        """Return the first one with a line, else the first one."""
        strengths = ((item, self._strength(item, growth)) for item in holders)
        with_line = (item for item, line in strengths if line >= (GROWS if item.is_link else SETS))
        return next(with_line, None) or next(item for item in holders if not item.is_link)

    def _holders_from_variables(self, outermost: Sequence[Any]) -> list[HolderPath]:
        """Return what holds the tensors, rather than what was made of it: `sample(memory, 64)`."""
        holders = holders_from_variables(self.scopes, outermost, self.budget)
        lasting, new = holders, set[int]()
        while lasting and len(new) < _MAX_NEW:
            young = _plain_containers(lasting) & live_objects.young_ids()
            if not young:
                return lasting
            new |= young
            lasting = holders_from_variables(self.scopes, outermost, self.budget, new)
        return holders

    def _strength(self, holder: HolderPath, growth: GroupGrowth) -> int:
        """Return that of the line that fills a holder, 0 without one."""
        line = origins.line_of_holder(self.scopes, holder, classify(holder, growth))
        return 0 if line is None else line.strength

    def _rate_with_graphs(self, growth: GroupGrowth) -> int:
        """Return bytes per step, including what the survivors' graphs keep.

        The measured growth is the maximum, since graphs may reach far back.
        """
        own, saved = autograd_graphs.held_storages(growth.survivors)
        storages = {**saved, **own}
        total = sum(size for key, size in storages.items() if key not in self.old_storages)
        rate = growth.bytes_per_step * total // sum(own.values()) if own else growth.bytes_per_step
        limit = rate if self.measured_bytes_per_step is None else self.measured_bytes_per_step
        return max(growth.bytes_per_step, min(rate, limit))

    # -- 2. tensors without a holder in Python ----------------------------------------------

    def _suspects_without_holder(self, growth: GroupGrowth) -> list[Suspect]:
        """Return what neither a variable nor an object of the script holds.

        C++ holds the context of an autograd function, and a gradient's cycle with its parameter. A
        running function holds the iterator of its loop.
        """
        for item in self.search.visited:
            function = getattr(type(item), "_forward_cls", None)
            suspect = None if function is None else self._suspect_context(function, item, growth)
            if suspect is not None:
                return [suspect]
        if (loop := loop_of(self.search.visited)) is not None:
            name, line = loop
            text = f"{name.expression}: iterator of a loop"
            return [suspect_at(name, line, text, "object", growth.bytes_per_step, 0.8)]
        leaves = (item for item in growth.survivors if item.requires_grad and is_leaf(item))
        if any(autograd_graphs.node_of(leaf.grad) is not None for leaf in leaves):
            return suspect_gradient(self.search, None, growth.bytes_per_step)
        if (passing := self._suspect_passing(growth)) is not None:
            return [passing]
        self.unheld_bytes_per_step += growth.bytes_per_step
        return self._suspect_site(growth)

    def _suspect_passing(self, growth: GroupGrowth) -> Suspect | None:
        """Return the call that gets the functions which lead to the tensors, held by code in C."""
        names = Counter(filter(None, map(_function_of, self.search.visited)))
        for name, count in names.most_common(1):
            match = passing_call(name, self.scopes.files)
            if match is not None and 2 * count >= min(_SAMPLE_SIZE, len(growth.survivors)):
                call, line = match
                text = f"{ast.unparse(call)[:_MAX_TEXT]}: functions"
                place = ObjectName(text, (), line.file, line.function)
                suspect = suspect_at(place, line, text, "closure", growth.bytes_per_step, 0.6)
                return replace(suspect, fix=_FIX_PASSED.format(ast.unparse(call.func)))
        return None

    def _site_line(self, growth: GroupGrowth) -> SourceLine | None:
        """Return the line that makes about as many tensors as remain each step."""
        rate = len(growth.survivors) / self.steps
        ratios = {line: max(count, rate) / min(count, rate) for line, count in self.sites.items()}
        closest = min(ratios, key=ratios.__getitem__, default=None)
        if closest is None or ratios[closest] > _MAX_SITE_RATIO:
            return None
        return origins.site_line(closest)

    def _suspect_site(self, growth: GroupGrowth) -> list[Suspect]:
        line = self._site_line(growth)
        if line is None:
            return []
        text = f"unknown holder of what is made by {line.text[:_MAX_TEXT]}"
        uses = source_lines.lines_of_later_uses(line.file, line.line)
        if (call := next((item for item in uses if item.keeps), None)) is not None:
            line, text = call, call.text[:_MAX_TEXT]
        site = ObjectName(text, (), line.file, line.function)
        suspect = suspect_at(site, line, text, "allocation", growth.bytes_per_step, 0.5)
        return [with_call_fix(suspect, line.text)]

    def _suspect_context(self, function: type, context: Any, growth: GroupGrowth) -> Suspect | None:
        attribute = _context_attribute(context)
        code = getattr(getattr(function, "forward", None), "__code__", None)
        if attribute is None or code is None or not is_script(code.co_filename):
            return None
        file, name = code.co_filename, function.__name__
        line = next(iter(source_lines.attribute_assignments(file, name, attribute)), None)
        text = f"{name}: ctx.{attribute}"
        context_name = ObjectName(text, (attribute,), file, name, code=code)
        rate = growth.bytes_per_step
        return suspect_at(context_name, line, f"{text}: tensor", "autograd_function", rate, 0.8)


def _traits(growth: GroupGrowth, holder: HolderPath) -> Traits:
    """Return what is known of the stored items: the tensors, or what leads to them."""
    kind = sys.modules["torch"].Tensor
    stored = holder.below[:1] or present(growth.survivors)[:1]
    are_tensors = [issubclass(type(item), kind) for item in stored]
    tensors = [item for item in (*stored, *growth.survivors) if issubclass(type(item), kind)]
    has_graph = any(tensor.requires_grad and not is_leaf(tensor) for tensor in tensors)
    return Traits(growth.group[0] == "cpu", has_graph, all(are_tensors))


def _function_of(item: Any) -> str:
    """Return the name of a function or bound method of the script, "" for other objects."""
    function = item.__func__ if type(item) is MethodType else item
    is_own = type(function) is FunctionType and is_script(function.__code__.co_filename)
    return function.__name__ if is_own else ""


def _context_attribute(context: Any) -> str | None:
    """Return an attribute of a function's context: an output that closes a cycle, if there is one.

    Else the first one.
    """
    space = namespace(context) or {}
    # a subclass or mode of the script must not see these calls
    with sys.modules["torch"]._C.DisableTorchFunction():
        nodes = ((name, autograd_graphs.node_of(value)) for name, value in space.items())
        outputs = (name for name, node in nodes if node is context)
        return next(outputs, next(iter(space), None))


def _plain_containers(holders: Sequence[HolderPath]) -> set[int]:
    containers = [holder.container for holder in holders]
    return {id(item) for item in containers if type(item) in (list, tuple, set)}


def _is_connected(holder: HolderPath) -> bool:
    """Return True if the container still leads to the tensors."""
    way = (holder.container, *holder.below)
    return all(
        any(part is inner for part in safe_reads.parts_of(outer).others)
        for outer, inner in pairwise(way)
    )


def _sample(survivors: Sequence[Any]) -> list[Any]:
    """Return a sample spread over all, so that containers filled in turn are found as one."""
    stride = max(1, len(survivors) // _SAMPLE_SIZE)
    return list(survivors[::stride][:_SAMPLE_SIZE])
