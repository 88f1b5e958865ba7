"""Real small trainings, recorded to a local file; errors of the agent are raised."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from memagent.delivery.run_file import read_frames
from memagent.probe import process_tree
from memagent.wire.codec import decode
from memagent.wire.columns import unpack
from memagent.wire.messages import (
    Batch,
    Event,
    Finish,
    PredictionMessage,
    RunStart,
    SnapshotMessage,
)


@dataclass
class Recording:
    """The messages in an agent's run file."""

    start: RunStart
    batches: list[Batch]
    predictions: list[PredictionMessage]
    snapshots: list[SnapshotMessage]
    finish: Finish | None

    def columns(self, stream: str = "host") -> dict[str, list]:
        """Return all samples of a stream, in order; None where a chunk has no such column."""
        chunks = [
            unpack(chunk.packed)
            for batch in self.batches
            for chunk in batch.chunks
            if chunk.stream == stream
        ]
        names = dict.fromkeys(name for chunk in chunks for name in chunk)
        return {
            name: [
                value for chunk in chunks for value in chunk.get(name, [None] * len(chunk["step"]))
            ]
            for name in names
        }

    @property
    def events(self) -> list[Event]:
        return [event for batch in self.batches for event in batch.events]


def read_recording(directory: Path) -> Recording:
    (path,) = directory.glob("*.memagent")
    frames = list(read_frames(path))
    bodies = {
        kind: [body for item, body in frames if item == kind]
        for kind in ("start", "batch", "prediction", "snapshot", "finish")
    }
    return Recording(
        decode(bodies["start"][0], RunStart),
        [decode(body, Batch) for body in bodies["batch"]],
        [decode(body, PredictionMessage) for body in bodies["prediction"]],
        [decode(body, SnapshotMessage) for body in bodies["snapshot"]],
        decode(bodies["finish"][0], Finish) if bodies["finish"] else None,
    )


@pytest.fixture(autouse=True)
def clean_settings(monkeypatch, tmp_path) -> Iterator[Path]:
    """Remove all settings; return the directory of the test's runs."""
    for name in [name for name in os.environ if name.startswith("MEMAGENT_")]:
        monkeypatch.delenv(name)
    directory = tmp_path / "runs"
    monkeypatch.setenv("MEMAGENT_DIR", str(directory))
    monkeypatch.setenv("MEMAGENT_RAISE", "1")
    return directory


@pytest.fixture(autouse=True)
def hide_children_of_other_tests(monkeypatch) -> None:
    """Leave out of a run's memory what earlier tests started, such as a browser."""
    if not sys.platform.startswith("linux"):
        return
    children = process_tree._children
    others = set(children(os.getpid(), True))
    monkeypatch.setattr(
        process_tree,
        "_children",
        lambda pid, all_threads: (
            child for child in children(pid, all_threads) if child not in others
        ),
    )


@pytest.fixture
def recording(clean_settings):
    """recording() reads the run file when the run has finished."""
    return lambda: read_recording(clean_settings)


@pytest.fixture
def training():
    """Return a model, its optimizer and a function that makes one step."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> torch.Tensor:
        loss = model(torch.randn(32, 64)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step


@pytest.fixture
def tuple_errors() -> Iterator[list[BaseException]]:
    """Return the errors of a thread that builds tuples all the time, while threads switch often.

    `tuple(generator)` raises SystemError while a list of all objects refers to its result.
    """
    errors: list[BaseException] = []
    is_over = threading.Event()

    def build() -> None:
        while not is_over.is_set():
            try:
                tuple(number for number in range(40))
            except SystemError as error:
                errors.append(error)
                return

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=build)
    sys.setswitchinterval(1e-6)
    thread.start()
    yield errors
    is_over.set()
    thread.join()
    sys.setswitchinterval(interval)
