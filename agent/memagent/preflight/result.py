"""What a preflight found, as plain values and as a line for people."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from memagent.units import format_bytes

Name = Literal["eval", "checkpoint"]


@dataclass(frozen=True)
class TaskResult:
    """One thing that was tried. `more_bytes` is how far it went above what was held, by device id; where it `ran_out`, at least so far.

    `error` says why it could not be tried or did not end; None where all went well.
    """

    name: Name
    more_bytes: dict[str, int]
    ran_out: bool = False
    error: str | None = None

    @property
    def tells(self) -> bool:
        """Whether `more_bytes` says anything of what will be needed."""
        return self.ran_out or self.error is None


@dataclass(frozen=True)
class Need:
    """One device: what was held when it was tried, what is still to come. All bytes.

    `others_bytes` are not ours: other processes, the CUDA context. `step_bytes` is what a training step takes above what will be held,
    as the estimator sees it; `step_is_least`: without its activations, since no input was seen. `gradients_bytes` are not there yet,
    and stay during an evaluation where the script keeps them.
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
        """The most at once: what will be held, and the largest of what comes on top."""
        top = max(self.eval_bytes or 0, self.checkpoint_bytes or 0, self.step_bytes or 0)
        return self.held_bytes + self.others_bytes + self.optimizer_state_bytes + top

    @property
    def fits(self) -> bool | None:
        """None where no limit is known."""
        return None if self.limit_bytes is None else self.needed_bytes <= self.limit_bytes

    @property
    def fits_with_gradients(self) -> bool | None:
        """The same where the script still holds gradients when it evaluates."""
        if self.limit_bytes is None or not self.eval_bytes:
            return self.fits
        held = (
            self.held_bytes + self.others_bytes + self.optimizer_state_bytes + self.gradients_bytes
        )
        return bool(self.fits) and held + self.eval_bytes <= self.limit_bytes


@dataclass(frozen=True)
class Preflight:
    """`needs` begins with the device trained on; `trials` are in the order in which they were made."""

    step: int
    needs: tuple[Need, ...]
    trials: tuple[TaskResult, ...] = ()

    @property
    def fits(self) -> bool | None:
        """Whether all that was tried and all that is known to come fits everywhere; None where that is not known."""
        found = [need.fits for need in self.needs]
        if any(trial.ran_out for trial in self.trials) or False in found:
            return False
        return None if None in found else True

    def verdict(self) -> str:
        """For people: a line for the device trained on, and one for each other that will not fit."""
        lines = [self._line(self.needs[0], first=True)]
        lines += [self._line(need, first=False) for need in self.needs[1:] if need.fits is False]
        lines += [
            f"  {trial.name} could not be tried: {trial.error}"
            for trial in self.trials
            if not trial.tells
        ]
        return "\n".join(lines)

    def to_data(self) -> dict[str, Any]:
        """JSON-ready, for the event; `eval_bytes` and `optimizer_state_bytes` are what `memagent.forecast.Hints` take from it."""
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

    def _line(self, need: Need, *, first: bool) -> str:
        ran_out = {trial.name for trial in self.trials if trial.ran_out}
        least = {*ran_out, *(["a step"] if need.step_is_least else [])}
        parts = [
            f"{name} needs {'at least ' * (name in least)}{format_bytes(size)} more"
            for name, size in (
                ("eval", need.eval_bytes),
                ("checkpoint", need.checkpoint_bytes),
                ("a step", need.step_bytes),
            )
            if size is not None
        ]
        if need.optimizer_state_bytes:
            parts.append(f"optimizer state {format_bytes(need.optimizer_state_bytes)}")
        of = f" of {format_bytes(need.limit_bytes)}" if need.limit_bytes is not None else ""
        at_least = "at least " * bool(ran_out and first)
        line = f"{', '.join(parts) or 'nothing more is known to come'}: {at_least}{format_bytes(need.needed_bytes)}{of}"
        where = "preflight" if first else f"preflight: {need.device}"
        if need.fits is False or (first and ran_out):
            return f"WARNING: {where}: this will not fit: {line}"
        if need.fits_with_gradients is False:
            kept = format_bytes(need.gradients_bytes)
            return f"{where}: {line}; with gradients kept during the evaluation ({kept}) it will not fit"
        return f"{where}: {line}"
