"""The run of a process with MEMAGENT_DISABLED=1: no hook, no thread, nothing recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any


class NullRun:
    """The interface of `Run`; every method does nothing."""

    id = "disabled"
    url = None
    step = 0
    status = "disabled"
    prediction = None

    def log(self, values: Mapping[str, Any], *, step: int | None = None) -> None:
        return None

    def alert(self, title: str, text: str = "", level: str = "warning") -> None:
        return None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        yield

    def expect(self, *, epoch_steps: int | None = None, max_input_size: int | None = None) -> None:
        return None

    def preflight(self, *, eval_batch: Any = None, checkpoint: Any = True) -> None:
        return None

    def enter(self, phase: str, *inputs: Any) -> str:
        return phase

    def extend(self, models: Sequence[Any], optimizers: Sequence[Any]) -> None:
        return None

    def report(self) -> dict[str, Any]:
        return {"run_id": self.id, "status": self.status}

    def snapshot(self, why: str = "") -> None:
        return None

    def finish(self, status: str = "completed", *, error: str | None = None) -> None:
        return None

    def unwatch_forward(self) -> None:
        return None

    def fail_with(self, error: BaseException) -> None:
        return None

    def __enter__(self) -> NullRun:
        return self

    def __exit__(self, *_: object) -> None:
        return None
