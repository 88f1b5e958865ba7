"""Choose the cheapest changes with which a step fits: what `memagent.fit` applies.

1. First those are tried that need no change of the training loop: blocks that run again in
   backward, and the optimizer's loop where its step needs the most. Then the batch is divided, then
   states wait on the host, then comes autocast, which changes results. Last, what forward keeps
   waits on the host, which is the slowest. Each keeps what came before it, and the batch is divided
   into as few parts as fit.
2. A trace of a step has each block's bytes and operations, from which blocks are chosen
   (`choice`). They are applied to the live objects and traced again, which is the proof. If it
   doesn't fit, or leaves room for fewer blocks, the difference to the profile's peak is counted in,
   and they are chosen again. Larger blocks are then tried, if these would cost less, and last
   some choices whose predicted peak is slightly too high.
3. The live objects are as before after each attempt.
4. All traces and choices have one budget of processor time. When it is spent, the cheapest changes
   that have been proved so far are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from memagent.errors import TraceError
from memagent.estimator import engine
from memagent.estimator.advice.catalog import batch_divisors, is_enough
from memagent.estimator.estimate import Estimate
from memagent.estimator.request import TraceRequest
from memagent.estimator.trace.events import Trace
from memagent.estimator.trace.tracing import TimeoutSpentError
from memagent.fitting.blocks import MAX_SHARES, blocks_of
from memagent.fitting.budget import BudgetSpentError, TraceBudget
from memagent.fitting.changes import Changes
from memagent.fitting.choice import Choice, challengers, cheapest
from memagent.fitting.optimizer_changes import can_loop, keep_states_on_host, step_in_a_loop
from memagent.fitting.profile import StepProfile, saved_by_module, step_profile
from memagent.fitting.recompute import norms_in, recompute
from memagent.fitting.saved_tensors import keep_saved_on_host

MAX_PROOFS = 5
"""Traces of chosen blocks; the second is nearly always the last."""
MAX_CHALLENGERS = 4
"""Traces of choices that cost less than the one that was proved, for each size of blocks."""
SLACK_RATIO = 0.02
"""How much less than predicted these may need, as a ratio of the limit: blocks of other sizes leave
other holes. Fitted to a U-Net; `benchmarks.estimator.recomputation` has nine other models."""
TOLERANCE = 1.05
"""A choice that costs less by a twentieth isn't looked for."""
_STEADY_FORWARDS = 2
"""Forwards to trace of an accumulated step: from the second on they are all the same."""

Fitted = tuple[Changes, Estimate]
"""Changes, and the estimate of the step with them."""


def applied(changes: Changes, model: Any, optimizer: Any) -> Callable[[], None]:
    """Apply what concerns the live objects; return a function that takes it back."""
    undo = ExitStack()
    if changes.loops:
        undo.callback(step_in_a_loop(optimizer))
    if changes.states_on_host:
        undo.callback(keep_states_on_host(optimizer))
    if changes.saved_on_host:
        undo.callback(keep_saved_on_host(model))
    undo.callback(recompute(model, changes.blocks))
    return undo.close


class Search:
    """A search for a request whose model and optimizer are live, and which has a limit.

    `before` is the estimate without changes.
    """

    def __init__(self, request: TraceRequest, allow: Sequence[str], budget: TraceBudget) -> None:
        self._request = request
        self._budget = budget
        self._allow = frozenset(allow)
        self._unchanged = Changes(autocast=request.autocast)
        self._estimates: dict[Changes, Estimate] = {}
        self._profiles: dict[Changes, tuple[StepProfile, ...]] = {}
        self.before = self.estimate(self._unchanged)

    def cheapest(self) -> Fitted | None:
        """Return the cheapest changes that make it fit, else those of the least need.

        None if even their estimate exceeds the limit. Raises BudgetSpentError if the processor time
        didn't suffice for any that fit.
        """
        try:
            fitting = self._attempt(self._unchanged)
            tiers = map(self._with_fewest_parts, self._tiers())
            fitting = fitting or next(filter(None, tiers), None)
            return self._with_cheaper_blocks(fitting) if fitting else self._tightest()
        except BudgetSpentError:
            proved = [item for item in self._estimates.items() if is_enough(item[1])]
            if not proved:
                raise
            return min(proved, key=lambda item: _cost(item[0]))

    def _tightest(self) -> Fitted | None:
        changes, estimate = min(self._estimates.items(), key=lambda item: item[1].needed_bytes)
        return None if estimate.outcome == "won't fit" else (changes, estimate)

    @property
    def profiles(self) -> tuple[StepProfile, ...]:
        """Return the profiles of the step without changes, of small blocks first."""
        return self._profiles[self._unchanged]

    @property
    def smallest(self) -> Estimate:
        """Return the estimate of the least need so far."""
        return min(self._estimates.values(), key=lambda estimate: estimate.needed_bytes)

    def _tiers(self) -> Iterator[Changes]:
        changes, allow = self._unchanged, self._allow
        if "loop" in allow and can_loop(self._request.optimizer) and self._step_needs_most():
            changes = replace(changes, loops=True)
        yield changes
        if "host" in allow:
            changes = replace(changes, states_on_host=True)
            yield changes
        if "autocast" in allow and changes.autocast is None:
            changes = replace(changes, autocast="bf16")
            yield changes
        if "host" in allow:
            yield replace(changes, saved_on_host=True)

    def _step_needs_most(self) -> bool:
        """Return whether the optimizer's step alone may exceed the limit."""
        beyond = _sure_need(self.before) - self.before.peak_allocated_bytes
        return self.before.phases.get("optimizer", 0) + beyond > _limit(self._request)

    def _with_fewest_parts(self, changes: Changes) -> Fitted | None:
        """Find by bisection, since fewer samples never need more."""
        may_divide = "parts" in self._allow and not norms_in([self._request.model])
        counts = [1, *(batch_divisors(self._request.batch) if may_divide else ())]
        fitting = self._attempt(replace(changes, parts=counts[-1]))
        low, high = 0, len(counts) - 1
        while fitting is not None and low < high:
            middle = (low + high) // 2
            then = self._attempt(replace(changes, parts=counts[middle]))
            if then is None:
                low = middle + 1
            else:
                fitting, high = then, middle
        return fitting

    def _attempt(self, changes: Changes) -> Fitted | None:
        """Return the changes with the blocks that have to run again, if it then fits."""
        try:
            estimate = self.estimate(changes)
        except TraceError:  # such as a model that doesn't take a single sample
            return None
        if is_enough(estimate):
            return changes, estimate
        best: Fitted | None = None
        for profile in self._profiles[changes] if "recompute" in self._allow else ():
            best = self._with_blocks_of(profile, changes, best)
        return best

    def _with_blocks_of(
        self, profile: StepProfile, changes: Changes, best: Fitted | None
    ) -> Fitted | None:
        """Return the changes with blocks of this profile, or `best` if that is as cheap."""
        plain, limit = self._estimates[changes], _limit(self._request)
        nearest = plain if best is None else best[1]
        beyond = _sure_need(nearest) - nearest.peak_allocated_bytes
        beyond += plain.peak_allocated_bytes - profile.peak_bytes(())
        tried: set[Choice] = {frozenset()}
        for _ in range(MAX_PROOFS):
            choice = cheapest(profile, limit - beyond)
            if choice is None:  # what comes beyond the tensors may shrink with them
                choice = frozenset(range(len(profile.blocks)))
            is_cheaper = best is None or profile.share(choice) < best[0].recompute_share
            if choice in tried or profile.peak_bytes(choice) > limit or not is_cheaper:
                break
            tried.add(choice)
            then = _with_choice(changes, profile, choice)
            try:
                estimate = self.estimate(then)
            except TraceError:  # such as a block that changes its input in place
                break
            if is_enough(estimate):
                best = then, estimate
            beyond = _sure_need(estimate) - profile.peak_bytes(choice)
        return best

    def _with_cheaper_blocks(self, fitting: Fitted) -> Fitted:
        """Try choices of a little more than the predicted peak; holes decide which of them fit."""
        plain = replace(fitting[0], blocks=(), recompute_share=0.0)
        limit, tried = _limit(self._request), set[tuple[int, Choice]]()
        for number, profile in enumerate(self._profiles[plain]) if fitting[0].blocks else ():
            offset = self._estimates[plain].peak_allocated_bytes - profile.peak_bytes(())
            for _ in range(MAX_CHALLENGERS):
                changes, estimate = fitting
                room = limit - _sure_need(estimate) + round(SLACK_RATIO * limit)
                below = estimate.peak_allocated_bytes - offset + room
                choices = challengers(profile, below, changes.recompute_share / TOLERANCE)
                choice = next((c for c in choices if (number, c) not in tried), None)
                if choice is None:
                    break
                tried.add((number, choice))
                then = _with_choice(plain, profile, choice)
                with suppress(TraceError):  # such as a block that changes its input in place
                    if is_enough(self.estimate(then)):
                        fitting = then, self.estimate(then)
        return fitting

    def estimate(self, changes: Changes) -> Estimate:
        """Trace the live objects with the changes applied, once."""
        if changes in self._estimates:
            return self._estimates[changes]
        timeout_s = self._budget.begin_trace()
        request = replace(_changed(self._request, changes), timeout_s=timeout_s)
        undo = applied(changes, request.model, request.optimizer)
        try:
            trace = engine.record(request)
        except TimeoutSpentError:
            self._budget.add(timeout_s)
            raise
        finally:
            undo()
        self._budget.add(trace.processor_s)
        if not changes.blocks:
            self._profiles[changes] = _profiles(trace, request.model)
        self._estimates[changes] = engine.estimate_trace(request, trace)
        return self._estimates[changes]


def _with_choice(changes: Changes, profile: StepProfile, choice: Choice) -> Changes:
    blocks = tuple(profile.blocks[index].block for index in sorted(choice))
    return replace(changes, blocks=blocks, recompute_share=profile.share(choice))


def _cost(changes: Changes) -> tuple[bool, bool, bool, int, float]:
    """Return a key by which cheaper changes come first: the order in which they are tried."""
    is_cast = changes.autocast is not None
    states = changes.states_on_host
    return changes.saved_on_host, is_cast, states, changes.parts, changes.recompute_share


def _changed(request: TraceRequest, changes: Changes) -> TraceRequest:
    request = replace(request, autocast=changes.autocast)
    if changes.parts == 1:
        return request
    part = request.resized(request.batch // changes.parts, request.sequence)
    return replace(part, accumulation=_STEADY_FORWARDS)


def _profiles(trace: Trace, model: Any) -> tuple[StepProfile, ...]:
    """Profile the model's blocks, and larger ones if it has any."""
    saved = saved_by_module(trace)

    def saved_inside(path: str) -> int:
        inside = f"{path}." if path else ""
        return sum(size for own, size in saved.items() if own == path or own.startswith(inside))

    divisions = dict.fromkeys(tuple(blocks_of(model, saved_inside, share)) for share in MAX_SHARES)
    return tuple(step_profile(trace, blocks) for blocks in divisions)


def _limit(request: TraceRequest) -> int:
    return request.limit_bytes or 0


def _sure_need(estimate: Estimate) -> int:
    """Return the limit with which it would fit, and not by releasing the allocator's cache."""
    limit, margin = estimate.limit_bytes or 0, estimate.sure_margin_bytes or 0
    if is_enough(estimate):
        return limit - margin
    _, high = estimate.intervals.get("device", (0, 0))
    return max(limit - margin, limit + 1, high)
