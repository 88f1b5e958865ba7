"""TensorBoard: scalars, and warnings as texts.

They go to the script's own SummaryWriter, or to `runs/`, which is torch's default directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memagent.mirror.aggregate import Point

PACKAGE = "tensorboard"
_PREFIX = "memagent/"


def discover(run_id: str) -> TensorBoardTracker:
    """Create a writer: TensorBoard has no active run."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(Path("runs", f"memagent-{run_id}")))
    return TensorBoardTracker(writer, owns_writer=True)


def accepts(target: Any) -> bool:
    """Return True for torch's writer, tensorboardX's, and others with their methods."""
    methods = (getattr(target, name, None) for name in ("add_scalar", "add_text"))
    return all(callable(method) for method in methods)


def wrap(target: Any) -> TensorBoardTracker:
    return TensorBoardTracker(target, owns_writer=False)


class TensorBoardTracker:
    name = "TensorBoard"

    def __init__(self, writer: Any, *, owns_writer: bool) -> None:
        self._writer = writer
        self._owns_writer = owns_writer

    def write(self, point: Point) -> None:
        for name, value in point.values.items():
            self._writer.add_scalar(_PREFIX + name, value, point.step, walltime=point.time_s)

    def warn(self, title: str, text: str, *, step: int, is_critical: bool) -> None:
        self._writer.add_text(f"{_PREFIX}alerts", f"**{title}**\n\n{text}", step)

    def close(self) -> None:
        if self._owns_writer:
            self._writer.close()
        else:
            self._writer.flush()
