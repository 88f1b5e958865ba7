"""One way to look for growth over some steps. The finder calls its methods at step boundaries, on the training thread."""

from __future__ import annotations

from collections.abc import Sequence

from memagent.leaks.stack_allocations import StackAllocation
from memagent.leaks.time_budget import TimeBudget
from memagent.wire.messages import DiagnosisMethod, Suspect


class Detector:
    """Looks at the beginning, in the middle, one step before the end, and at the end; does nothing where a method is not its own."""

    method: DiagnosisMethod = "census"
    grown: Sequence[StackAllocation] = ()
    """After the end: what each stack holds more than in the middle, most bytes first; only where stacks are recorded."""
    growth_bytes_per_step: int | None = None
    """After the end: by how much memory in use grew, tensors or not; only where that is measured."""

    def begin(self, step: int) -> None:
        """The window opens after `step`."""

    def middle(self, step: int) -> None:
        """Half of it is over."""

    def before(self, step: int) -> None:
        """The next step will be the last."""

    def end(self, step: int, deadline: TimeBudget) -> list[Suspect]:
        """What grew, and who is to blame, as far as it is found in time."""
        return []

    def close(self) -> None:
        """Always called after the end, or instead of it: let go of everything, switch everything off."""
