"""Exports by processes of their own: the same bytes, and nothing left of one that ends early."""

from __future__ import annotations

import tempfile
from contextlib import closing

import psutil
import pytest

from memagent.wire.messages import Batch, Chunk, RunStart
from memagent_server.store.export import (
    MAX_FOLDER_BYTES,
    NICENESS,
    ExportError,
    export,
    export_by_process,
)
from memagent_server.store.runs import start_run
from memagent_server.store.samples import add_batch
from tests.waiting import wait_until

MAX_NICENESS = 19


@pytest.fixture
def long_run(database):
    """A run of more text than a pipe holds."""
    steps = [*range(9_000)]
    columns = {"step": steps, **{f"c{number}": [0.1] * len(steps) for number in range(10)}}
    with database.write() as session:
        start_run(session, RunStart(run_id="r"), 1.0)
        for seq in range(4):
            chunk = Chunk(stream="host", columns=columns)
            add_batch(session, "r", Batch(seq=seq, chunks=[chunk]), 1.0)
    return database


def exporting():
    """The processes that export, which a process that forks them has as children."""
    return {
        exports
        for child in psutil.Process().children()
        if "forkserver" in " ".join(child.cmdline())
        for exports in child.children()
    }


@pytest.fixture
def export_under_way(long_run):
    """Pieces of which the first was read, and the process that makes them."""
    others = exporting()
    with closing(export_by_process(long_run.url, "r", "csv")) as pieces:
        assert next(pieces).startswith(b"rank,device,attempt,step")
        (process,) = exporting() - others
        yield pieces, process


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_the_file_is_the_same(long_run, form):
    apart = b"".join(export_by_process(long_run.url, "r", form))
    assert apart == b"".join(export(long_run, "r", form))


def test_it_gives_way_and_ends_with_its_reader(export_under_way):
    pieces, process = export_under_way
    assert process.nice() == min(MAX_NICENESS, psutil.Process().nice() + NICENESS)
    pieces.close()
    wait_until(lambda: not process.is_running(), "it has ended")


def test_a_long_path_of_temporary_files_is_no_obstacle(long_run, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * MAX_FOLDER_BYTES)))
    assert b"".join(export_by_process(long_run.url, "r", "csv")).count(b"\n") == 4 * 9_000 + 1


def test_a_file_without_its_end_is_an_error(export_under_way):
    pieces, process = export_under_way
    process.kill()
    with pytest.raises(ExportError, match="the process that exports r has ended"):
        list(pieces)
