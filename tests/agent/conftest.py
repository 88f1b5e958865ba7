"""Real small trainings, recorded to a local file; errors of the agent are raised."""

from __future__ import annotations

import colorsys
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from tests import cuda_environment


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


TUPLES_IN_A_LIBRARY = """
from itertools import chain
def build():
    while not is_over.is_set():
        try:
            tuple(item for item in chain(items, range(200)))
        except SystemError as error:
            errors.append(error)
            return
"""


@pytest.fixture
def tuple_builder() -> Iterator[Callable[[list[Any]], list[BaseException]]]:
    """Return a function that starts a thread which builds tuples of some items all the time.

    It returns the thread's errors: `tuple(generator)` raises SystemError while anything else refers
    to its result. Threads switch often, and no object is hidden from the collector.
    """
    is_over = threading.Event()
    threads = []

    def start(items: list[Any]) -> list[BaseException]:
        errors: list[BaseException] = []
        # by its globals, so that no variable of the script's leads to the items
        space: dict[str, Any] = {"items": items, "errors": errors, "is_over": is_over}
        exec(compile(TUPLES_IN_A_LIBRARY, colorsys.__file__, "exec"), space)
        threads.append(threading.Thread(target=space["build"]))
        threads[-1].start()
        return errors

    interval = sys.getswitchinterval()
    gc.unfreeze()
    sys.setswitchinterval(1e-4)
    yield start
    is_over.set()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)


@pytest.fixture
def tuple_errors(tuple_builder: Callable[[list[Any]], list[BaseException]]) -> list[BaseException]:
    return tuple_builder([])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "cuda_python" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cuda)


@pytest.fixture(scope="session")
def cuda_python() -> Path:
    """Return an interpreter with a CUDA build of torch. Skip the test, or fail in CI, without."""
    python = cuda_environment.find_python()
    if python is not None:
        return python
    if os.environ.get("CI"):
        pytest.fail(cuda_environment.MISSING)
    pytest.skip(cuda_environment.MISSING)
