"""The result of a preflight, as plain values and as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from memagent.units import format_bytes

TaskName = Literal["eval", "checkpoint"]


@dataclass(frozen=True)
class TaskResult:
    """One task that was tried.

    more_bytes: the peak above what was held, by device id; a lower bound if it `ran_out`.
    error: why the task could not be tried or failed; None if it succeeded.
    """

    name: TaskName
    more_bytes: dict[str, int]
    ran_out: bool = False
    error: str | None = None

    @property
    def is_conclusive(self) -> bool:
        """True if `more_bytes` says how much will be needed."""
        return self.ran_out or self.error is None


@dataclass(frozen=True)
class DeviceNeed:
    """One device: what was held at the preflight, and what is still to come, in bytes.

    others_bytes: held by other processes and the CUDA context.
    step_bytes: what a training step takes above what will be held, by the estimator.
    step_is_least: gradients only, since its activations are not known (yet).
    gradients_bytes: not allocated yet; they stay during an evaluation if the script keeps them.
    """

    device: str
    held_bytes: int
    limit_bytes: int | None
    others_bytes: int = 0
    optimizer_state_bytes: int = 0
    gradients_bytes: int = 0
    eval_bytes: int | None = None
    checkpoint_bytes: int | None = None
    step_bytes: int | None = None
    step_is_least: bool = False

    @property
    def needed_bytes(self) -> int:
        """The peak: what will be held, and the largest of what comes on top."""
        top = max(self.eval_bytes or 0, self.checkpoint_bytes or 0, self.step_bytes or 0)
        return self._held_later_bytes + top

    @property
    def fits(self) -> bool | None:
        """None if there is no known limit."""
        return None if self.limit_bytes is None else self.needed_bytes <= self.limit_bytes

    @property
    def fits_with_gradients(self) -> bool | None:
        """The same if the script still holds gradients when it evaluates."""
        if self.limit_bytes is None or not self.eval_bytes:
            return self.fits
        needed = self._held_later_bytes + self.gradients_bytes + self.eval_bytes
        return bool(self.fits) and needed <= self.limit_bytes

    @property
    def _held_later_bytes(self) -> int:
        return self.held_bytes + self.others_bytes + self.optimizer_state_bytes


@dataclass(frozen=True)
class Preflight:
    """`needs` begins with the device that the model trains on; `trials` are in order of time."""

    step: int
    needs: tuple[DeviceNeed, ...]
    trials: tuple[TaskResult, ...] = ()

    @property
    def fits(self) -> bool | None:
        """True if all that was tried and all that is known to come fits; None if unknown."""
        by_device = [need.fits for need in self.needs]
        if any(trial.ran_out for trial in self.trials) or False in by_device:
            return False
        return None if None in by_device else True

    def verdict(self) -> str:
        """Return a line for the first device, and one for each other that won't fit."""
        lines = [self._line(self.needs[0], is_first=True)]
        lines += [self._line(need, is_first=False) for need in self.needs[1:] if need.fits is False]
        lines += [
            f"  {trial.name} could not be tried: {trial.error}"
            for trial in self.trials
            if not trial.is_conclusive
        ]
        return "\n".join(lines)

    def to_data(self) -> dict[str, Any]:
        """Return JSON-ready data for the event.

        `memagent.forecast.Hints` reads `eval_bytes` and `optimizer_state_bytes`.
        """
        return {
            "fits": self.fits,
            "verdict": self.verdict(),
            "eval_bytes": {
                need.device: max(need.eval_bytes or 0, need.checkpoint_bytes or 0)
                for need in self.needs
                if need.eval_bytes is not None or need.checkpoint_bytes is not None
            },
            "optimizer_state_bytes": {
                need.device: need.optimizer_state_bytes for need in self.needs
            },
            "needs": [
                {**asdict(need), "needed_bytes": need.needed_bytes, "fits": need.fits}
                for need in self.needs
            ],
            "trials": [asdict(trial) for trial in self.trials],
        }

    def _line(self, need: DeviceNeed, *, is_first: bool) -> str:
        ran_out = {trial.name for trial in self.trials if trial.ran_out}
        lower_bounds = {*ran_out, *(["a step"] if need.step_is_least else [])}
        sizes = (
            ("eval", need.eval_bytes),
            ("checkpoint", need.checkpoint_bytes),
            ("a step", need.step_bytes),
        )
        parts = [
            f"{name} needs {'at least ' * (name in lower_bounds)}{format_bytes(size)} more"
            for name, size in sizes
            if size is not None
        ]
        if need.optimizer_state_bytes:
            parts.append(f"optimizer state {format_bytes(need.optimizer_state_bytes)}")
        at_least = "at least " * bool(ran_out and is_first)
        line = ", ".join(parts) or "nothing more is expected"
        line += f": {at_least}{format_bytes(need.needed_bytes)}"
        if need.limit_bytes is not None:
            line += f" of {format_bytes(need.limit_bytes)}"
        subject = "preflight" if is_first else f"preflight: {need.device}"
        if need.fits is False or (is_first and ran_out):
            return f"WARNING: {subject}: this will not fit: {line}"
        if need.fits_with_gradients is False:
            gradients = format_bytes(need.gradients_bytes)
            line += f"; if gradients ({gradients}) are kept during evaluation, it will not fit"
        return f"{subject}: {line}"
