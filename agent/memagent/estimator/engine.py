"""What is estimated, as a value that can be asked again with another batch or sequence: by formula, or by tracing.

`largest` and `grid` ask it, whichever it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from memagent.errors import EstimateError
from memagent.estimator import input_specs
from memagent.estimator.advice.by_formula import advise
from memagent.estimator.estimate import Estimate
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.training import estimate_training
from memagent.estimator.search import largest_count

Ask = Callable[[int, int | None], Estimate]
"""An estimate for a batch and a sequence (None: the model's own)."""


def _say_nothing(_: str) -> None:
    """Nobody waits."""


@dataclass(frozen=True)
class Subject:
    """`batch` and `sequence` are those asked about; `advised` gives the same estimate with advice; answers that are traced take time."""

    ask: Ask
    advised: Callable[[], Estimate]
    batch: int
    sequence: int | None
    limit_bytes: int | None
    is_traced: bool = False

    def estimate(self) -> Estimate:
        return self.ask(self.batch, self.sequence)


def by_formula(
    spec: TrainingSpec, *, limit_bytes: int | None = None, context_bytes: int | None = None
) -> Subject:
    """A model's shape and training."""

    def ask(batch: int, sequence: int | None) -> Estimate:
        changed = replace(spec, batch=batch, sequence=sequence)
        return estimate_training(changed, limit_bytes=limit_bytes, context_bytes=context_bytes)

    def advised() -> Estimate:
        found = ask(spec.batch, spec.sequence)
        return replace(found, advice=tuple(advise(spec, limit_bytes, context_bytes=context_bytes)))

    return Subject(
        ask, advised, spec.batch, spec.sequence, ask(spec.batch, spec.sequence).limit_bytes
    )


def by_trace(
    question_for: Callable[[int, int | None], Any], *, batch: int, sequence: int | None = None
) -> Subject:
    """A `EstimateRequest` for each batch and sequence."""
    from memagent.estimator.api import answer

    def ask(batch: int, sequence: int | None) -> Estimate:
        return answer(question_for(batch, sequence))

    def advised() -> Estimate:
        return answer(question_for(batch, sequence), advice=True)

    return Subject(ask, advised, batch, sequence, question_for(batch, sequence).limit_bytes, True)


def of_question(question: Any) -> Subject:
    """A question whose inputs' first dimension is the batch; what a sequence is, only its author knows."""
    batch = input_specs.batch_of(question.inputs)

    def question_for(wanted: int, sequence: int | None) -> Any:
        if sequence is not None:
            raise EstimateError(
                "the inputs given do not say which dimension is the sequence: give them anew with --input"
            )
        if wanted == batch:
            return question
        inputs = input_specs.with_batch(question.inputs, wanted, instead_of=batch)
        return replace(
            question,
            inputs=inputs,
            targets=input_specs.with_batch(question.targets, wanted, instead_of=batch),
        )

    return by_trace(question_for, batch=batch)


GRAIN = 1 / 64
"""Large batches are traced until the answer is this close: each trace takes seconds, and nobody needs 50,816 rather than 50,000."""


@dataclass(frozen=True)
class Largest:
    """`batch` fits, with its estimate; `too_large` is the smallest that was found not to. 0 and None where not even one sample fits.
    `sure_batch` fits at the interval's upper end too; None where that was not looked for."""

    batch: int
    too_large: int
    estimate: Estimate | None
    sure_batch: int | None = None


def largest(subject: Subject, *, tell: Callable[[str], None] = _say_nothing) -> Largest:
    """The largest batch that fits. `tell` hears what is asked next.

    Raises EstimateError where no limit is known, and where the batch makes no difference.
    """
    limit = subject.limit_bytes
    if limit is None:
        raise EstimateError("--max-batch needs --gpu: a card, or memory such as 24GiB")
    known: dict[int, Estimate] = {}

    def room(batch: int) -> int:
        tell(f"batch {batch}")
        found = known[batch] = subject.ask(batch, subject.sequence)
        left = limit - found.needed_bytes
        # the allocator may get through by giving back its cache, or fail for fragments where the sum would do
        return max(0, left) if found.fits else min(-1, left)

    batch = largest_count(room, grain=GRAIN if subject.is_traced else 0.0)
    too_large = min(size for size, found in known.items() if not found.fits)
    return Largest(
        batch,
        too_large,
        known.get(batch),
        None if subject.is_traced else _sure(subject, limit, batch),
    )


def _sure(subject: Subject, limit_bytes: int, batch: int) -> int:
    """The same by the upper end of the interval of what the limit is compared with."""

    def room(size: int) -> int:
        found = subject.ask(size, subject.sequence)
        level = "allocated" if found.peak_device_bytes is None else "device"
        return limit_bytes - found.intervals.get(level, (0, found.needed_bytes))[1]

    return largest_count(room, most=batch) if batch else 0


@dataclass(frozen=True)
class Cell:
    """One point of a table."""

    batch: int
    sequence: int | None
    estimate: Estimate


def grid(
    subject: Subject,
    *,
    batches: Iterable[int] = (),
    sequences: Iterable[int] = (),
    advance: Callable[[int, int], None] = lambda _done, _total: None,
) -> Iterator[Cell]:
    """An estimate for each sequence and batch, in the order given; the subject's own where none are. `advance` hears before each how many
    are done, of how many."""
    columns, rows = tuple(batches) or (subject.batch,), tuple(sequences) or (subject.sequence,)
    for row, sequence in enumerate(rows):
        for column, batch in enumerate(columns):
            advance(row * len(columns) + column, len(rows) * len(columns))
            yield Cell(batch, sequence, subject.ask(batch, sequence))
