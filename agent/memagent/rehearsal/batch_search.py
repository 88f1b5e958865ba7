"""The largest batch that fits: where a script takes its batch from, and which batch to try next.

1. The batch is a placeholder in the script's arguments, an option of it, or a variable (`slot_of`).
2. Needs grow nearly in proportion to the batch: a line through two batches that fit gives the next
   one, and every third one halves the range (`next_batch`).
3. A rehearsal without a verdict ends the search; what was found up to there stays (`find_batch`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from memagent.errors import RehearsalError, SettingError
from memagent.estimator.search import MAX_BATCH, TRACED_TOLERANCE
from memagent.rehearsal.report import Rehearsal
from memagent.rehearsal.script import Script

_MAX_GROWTH = 16
_SAME_PEAK_GROWTH = 256
"""A batch so many times the first one with the same needs isn't the batch."""


@dataclass(frozen=True)
class BatchSlot:
    """A script with a placeholder for its batch, and the first batch to try."""

    script: Script
    placeholder: str = ""
    """Empty if the script has none."""
    first: int = 1

    def script_with(self, batch: int) -> Script:
        variables = self.script.variables.items()
        return replace(
            self.script,
            arguments=[self._filled(text, batch) for text in self.script.arguments],
            variables={name: self._filled(text, batch) for name, text in variables},
        )

    def _filled(self, text: str, batch: int) -> str:
        return text.replace(self.placeholder, str(batch)) if self.placeholder else text


@dataclass(frozen=True)
class BatchSearch:
    """Batches that were rehearsed, in order; `is_complete` if the largest that fits is known."""

    slot: BatchSlot
    tried: Mapping[int, Rehearsal] = field(default_factory=dict)
    is_complete: bool = False

    @property
    def name(self) -> str:
        return self.slot.placeholder.strip("{}")

    @property
    def script(self) -> Script:
        """Return the script with the batch of `result`."""
        return self.slot.script_with(self.largest or list(self.tried)[-1])

    @property
    def largest(self) -> int:
        """Return 0 if none fits."""
        return max((batch for batch, result in self.tried.items() if result.fits), default=0)

    @property
    def too_large(self) -> int | None:
        return min(
            (batch for batch, result in self.tried.items() if result.fits is False), default=None
        )

    @property
    def result(self) -> Rehearsal:
        """Return the rehearsal of the largest batch that fits, else the last one."""
        return self.tried[self.largest or list(self.tried)[-1]]

    def to_dict(self) -> dict[str, object]:
        tried = [
            {
                "batch": batch,
                "fits": result.fits,
                "status": result.status,
                "peak_allocated_bytes": result.peak_allocated_bytes,
                "peak_device_bytes": result.device_bytes[1],
            }
            for batch, result in self.tried.items()
        ]
        return {
            "name": self.name,
            "largest": self.largest,
            "too_large": self.too_large,
            "is_complete": self.is_complete,
            "tried": tried,
        }


def slot_of(script: Script, name: str, environment: Mapping[str, str]) -> BatchSlot:
    """Find the batch `name`: `{name}` in the arguments, an option, or a variable in capitals.

    Raises SettingError if there is none.
    """
    if not name.strip("{}-"):
        raise SettingError(f"--find-batch {name!r} is no name: give the script's option")
    placeholder = "{" + name.strip("{}") + "}"
    if any(placeholder in text for text in script.arguments):
        return BatchSlot(script, placeholder)
    arguments, value = _with_placeholder(script.arguments, name, placeholder)
    if value is None and name.isidentifier() and (name.isupper() or name in environment):
        value = environment.get(name, "1")
        script = replace(script, variables={**script.variables, name: placeholder})
    elif value is None and name.startswith("-"):
        value = "1"
        arguments = [*arguments, name, placeholder]
    if value is None:
        raise SettingError(
            f"--find-batch {name}: no argument of the script has this name. Write {placeholder} "
            "where the number belongs, or give the script's option or a variable in capitals."
        )
    if not value.isdecimal() or int(value) < 1:
        raise SettingError(f"--find-batch {name}: its value {value!r} is not a batch.")
    return BatchSlot(replace(script, arguments=arguments), placeholder, int(value))


def next_batch(needs: Mapping[int, int | None], capacity: int, first: int) -> int | None:
    """Return the next batch to try, or None when the largest that fits is known.

    `needs` are bytes on the device by batch; None if it doesn't fit.
    """
    fitting = sorted(batch for batch, need in needs.items() if need is not None)
    low = fitting[-1] if fitting else 0
    high = min((batch for batch, need in needs.items() if need is None), default=MAX_BATCH + 1)
    if high - low <= max(1, int(low * TRACED_TOLERANCE)):
        return None
    if not needs:
        return first
    if len(fitting) < 2 or (high <= MAX_BATCH and len(needs) % 3 == 0):
        return 2 * low if high > MAX_BATCH else (low + high) // 2
    previous = fitting[-2]
    growth = (needs[low] or 0) - (needs[previous] or 0)
    most = min(high - 1, _MAX_GROWTH * low)
    if growth <= 0:
        return most
    guess = low + int((capacity - (needs[low] or 0)) * (low - previous) / growth)
    return min(max(guess, low + 1), most)


def find_batch(
    slot: BatchSlot,
    rehearse: Callable[[int, Script], Rehearsal],
    on_result: Callable[[int, Rehearsal], None],
) -> BatchSearch:
    """Rehearse batch after batch. Raises RehearsalError if the batch makes no difference."""
    tried: dict[int, Rehearsal] = {}
    needs: dict[int, int | None] = {}
    capacity = 0
    while (batch := next_batch(needs, capacity, slot.first)) is not None:
        result = tried[batch] = rehearse(batch, slot.script_with(batch))
        on_result(batch, result)
        if result.fits is None:
            return BatchSearch(slot, tried)
        needs[batch] = result.device_bytes[1] if result.fits else None
        capacity = result.capacity_bytes
        if batch >= _SAME_PEAK_GROWTH * slot.first and len(set(needs.values())) == 1:
            name = BatchSearch(slot).name
            raise RehearsalError(
                f"{name} {batch:,} needs as much as {slot.first:,}: it isn't the script's batch."
            )
    return BatchSearch(slot, tried, is_complete=True)


def _with_placeholder(
    arguments: Sequence[str], name: str, placeholder: str
) -> tuple[list[str], str | None]:
    """Return the arguments with a placeholder for the value of option `name`, and the value."""
    filled, value = list(arguments), None
    for index, text in enumerate(arguments):
        option, equals, content = text.partition("=")
        if _bare(option) != _bare(name):
            continue
        if equals:
            filled[index], value = f"{option}={placeholder}", content
        elif text.startswith("-") and index + 1 < len(arguments):
            filled[index + 1], value = placeholder, arguments[index + 1]
    return filled, value


def _bare(option: str) -> str:
    return option.lstrip("-").replace("_", "-")
