"""TensorBoard: scalars and, for warnings, texts; in the script's own SummaryWriter, or in `runs/` where torch puts its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memagent.mirror.aggregate import Point

PACKAGE = "tensorboard"
_PREFIX = "memagent/"


def find(run_id: str) -> TensorBoardTracker:
    """TensorBoard knows no active run: a writer of our own."""
    from torch.utils.tensorboard import SummaryWriter

    return TensorBoardTracker(SummaryWriter(str(Path("runs", f"memagent-{run_id}"))), is_ours=True)


def is_its(given: Any) -> bool:
    """torch's writer, tensorboardX's, and what else has their methods."""
    return callable(getattr(given, "add_scalar", None)) and callable(
        getattr(given, "add_text", None)
    )


def take(given: Any) -> TensorBoardTracker:
    return TensorBoardTracker(given, is_ours=False)


class TensorBoardTracker:
    name = "TensorBoard"

    def __init__(self, writer: Any, *, is_ours: bool) -> None:
        self._writer, self._is_ours = writer, is_ours

    def write(self, point: Point) -> None:
        for name, value in point.values.items():
            self._writer.add_scalar(_PREFIX + name, value, point.step, walltime=point.time_s)

    def warn(self, title: str, text: str, *, step: int, is_critical: bool) -> None:
        self._writer.add_text(f"{_PREFIX}alerts", f"**{title}**\n\n{text}", step)

    def close(self) -> None:
        if self._is_ours:
            self._writer.close()
        else:
            self._writer.flush()
