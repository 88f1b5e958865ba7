"""Set of training programs, with the half of them that may be looked at."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memagent.forecast.types import Growing

Program = Callable[[Any], Iterator[None]]
"""A training loop over the methods of its run."""


@dataclass(frozen=True)
class Kind:
    """A program with its cause of death, None if it survives."""

    name: str
    program: Program
    cause: str | None
    grows: Growing | None
    """What the leak finder would find growing."""

    @property
    def is_dying(self) -> bool:
        return self.cause is not None


class ProgramSet:
    """`dies` and `lives` are decorators: they add a program. `seed` decides the halves."""

    def __init__(self, seed: int) -> None:
        self.kinds: list[Kind] = []
        self._seed = seed

    def dies(self, cause: str, grows: Growing | None = "list") -> Callable[[Program], Program]:
        return lambda program: self._add(program, cause, grows)

    def lives(self, grows: Growing | None = None) -> Callable[[Program], Program]:
        return lambda program: self._add(program, None, grows)

    def split(self) -> dict[str, list[Kind]]:
        """Return the programs to tune on, and those only to score on: a random half of each sort."""
        source, held_out = random.Random(self._seed), set()
        for is_dying in (True, False):
            names = sorted(kind.name for kind in self.kinds if kind.is_dying == is_dying)
            held_out |= set(source.sample(names, len(names) // 2))
        return {
            "tuned on": [kind for kind in self.kinds if kind.name not in held_out],
            "held out": [kind for kind in self.kinds if kind.name in held_out],
        }

    def _add(self, program: Program, cause: str | None, grows: Growing | None) -> Program:
        name = program.__name__.replace("_", " ")
        self.kinds.append(Kind(name, program, cause, grows))
        return program
