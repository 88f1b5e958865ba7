"""Export of every sample as a row of CSV, by API and command."""

from __future__ import annotations

import csv
import io
import sys

import pyarrow.parquet
import pytest

from memagent.cli import main
from memagent.wire.messages import Batch, Chunk, Finish, RunStart
from memagent_server.store.compaction import compact_run
from memagent_server.store.export import export
from memagent_server.store.retention import delete_samples
from memagent_server.store.runs import finish_run, start_run
from memagent_server.store.samples import add_batch

STRANGE = '=1+1,"GPU"\n'


@pytest.fixture
def run_id(database):
    """Two ranks, a device with a strange name, a column that comes late, scalars, and a value that is missing."""
    with database.write() as session:
        start_run(session, RunStart(run_id="r"), 1.0)
        first = {"step": [1, 2], "time_s": [1.0, 2.5], "allocated_bytes": [2**53 + 1, None]}
        later = {"step": [3], "time_s": [3.0], "reserved_bytes": [7]}
        loss = {"step": [1], "time_s": [1.0], "loss": [0.1]}
        chunks = [Chunk(stream=STRANGE, columns=first), Chunk(stream="scalars", columns=loss)]
        add_batch(session, "r", Batch(seq=0, chunks=chunks), 1.0)
        add_batch(session, "r", Batch(seq=1, chunks=[Chunk(stream=STRANGE, columns=later)]), 1.0)
        add_batch(
            session, "r", Batch(seq=0, rank=1, chunks=[Chunk(stream="host", columns=later)]), 1.0
        )
    return "r"


ESCAPED = f"'{STRANGE}"
EXPECTED = [
    ["rank", "device", "attempt", "step", "time_s", "allocated_bytes", "loss", "reserved_bytes"],
    ["0", ESCAPED, "0", "1", "1.0", str(2**53 + 1), "", ""],
    ["0", ESCAPED, "0", "2", "2.5", "", "", ""],
    ["0", ESCAPED, "0", "3", "3.0", "", "", "7"],
    ["0", "scalars", "0", "1", "1.0", "", "0.1", ""],
    ["1", "host", "0", "3", "3.0", "", "", "7"],
]


def rows(text):
    return list(csv.reader(io.StringIO(text, newline="")))


def csv_rows(database, run_id="r"):
    return rows(b"".join(export(database, run_id, "csv")).decode())


def test_each_sample_is_a_row_of_any_columns(database, run_id):
    assert csv_rows(database) == EXPECTED


@pytest.mark.parametrize(
    ("device", "cell"),
    [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t'=1"),
        ("\r=1", "'\n'=1"),
        ("a;=1", "a;'=1"),
        ("GPU-1a=b;c", "GPU-1a=b;c"),
        ("", ""),
    ],
)
def test_text_cells_cannot_be_spreadsheet_formulas(sqlite_database, device, cell):
    with sqlite_database.write() as session:
        start_run(session, RunStart(run_id="r"), 1.0)
        columns = {"step": [1], "time_s": [1.0], "loss": [-0.5]}
        chunks = [Chunk(stream=device, columns=columns)]
        add_batch(session, "r", Batch(seq=0, chunks=chunks), 1.0)
    _, row = csv_rows(sqlite_database)
    assert row == ["0", cell, "0", "1", "1.0", "-0.5"], "numbers stay numbers"


def test_it_comes_over_http_as_a_file(client, run_id):
    response = client.get(f"/api/v1/runs/{run_id}/export?format=csv")
    assert (response.status_code, response.mimetype) == (200, "text/csv")
    assert response.headers["Content-Disposition"] == "attachment; filename=r.csv"
    assert rows(response.get_data(as_text=True)) == EXPECTED


@pytest.mark.parametrize(("path", "status"), [("none/export", 404), ("r/export?format=xls", 422)])
def test_an_unknown_run_or_format_is_refused(client, run_id, path, status):
    assert client.get(f"/api/v1/runs/{path}").status_code == status


def read_parquet(data):
    return pyarrow.parquet.read_table(io.BytesIO(data))


@pytest.mark.parametrize("compacted", [False, True])
def test_a_csv_file_has_all_digits_of_a_number(sqlite_database, compacted):
    steps = list(range(2_000))
    with sqlite_database.write() as session:
        start_run(session, RunStart(run_id="r"), 1.0)
        chunk = Chunk(stream="host", columns={"step": steps, "loss": [step / 3 for step in steps]})
        add_batch(session, "r", Batch(seq=0, chunks=[chunk]), 1.0)
        finish_run(session, "r", Finish(status="completed"), 2.0)
    if compacted:
        compact_run(sqlite_database, "r")
    _, *samples = csv_rows(sqlite_database)
    assert [(int(row[3]), float(row[5])) for row in samples] == [(step, step / 3) for step in steps]


def test_without_pyarrow_it_says_what_to_install(client, run_id, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    response = client.get(f"/api/v1/runs/{run_id}/export?format=parquet")
    assert response.status_code == 501
    assert "pip install 'memagent[parquet]'" in response.json["detail"]


def test_deleted_samples_are_omitted(database, run_id):
    with database.write() as session:
        finish_run(session, run_id, Finish(status="completed"), 2.0)
        finish_run(session, run_id, Finish(status="completed", rank=1), 2.0)
    assert delete_samples(database, run_id, 3.0) == 3  # after the two of one device were made one
    assert csv_rows(database) == EXPECTED[:1]


def test_the_command_writes_a_file_or_says_why_not(
    database, run_id, monkeypatch, capfdbinary, tmp_path
):
    monkeypatch.setenv("MEMAGENT_DATABASE_URL", database.url)
    monkeypatch.setenv("MEMAGENT_SECRET_KEY", "for tests")
    path = tmp_path / "r.csv"
    assert main(["export", run_id, "-o", str(path)]) == 0
    assert rows(path.read_text()) == EXPECTED
    assert main(["export", run_id]) == 0
    assert rows(capfdbinary.readouterr().out.decode()) == EXPECTED
    assert main(["export", run_id, "-o", str(tmp_path / "r.parquet")]) == 0
    assert pyarrow.parquet.read_table(tmp_path / "r.parquet").schema.names == EXPECTED[0]
    assert main(["export", "none"]) == 1
    assert main(["export", run_id, "-o", str(tmp_path / "no" / "r.csv")]) == 1
    assert capfdbinary.readouterr().err.count(b"\n") == 2
    assert sorted(each.name for each in tmp_path.glob("r.*")) == ["r.csv", "r.parquet"]


def test_the_command_asks_a_server_if_there_is_one(live_server, monkeypatch, capsys, tmp_path):
    columns = {"step": [1, 2], "allocated_bytes": [3, None]}
    for path, body in (
        ("runs", {"run_id": "far"}),
        ("runs/far/batches", {"seq": 0, "chunks": [{"stream": "host", "columns": columns}]}),
    ):
        assert live_server.post(f"/api/v1/{path}", body).status < 300
    monkeypatch.setenv("MEMAGENT_SERVER", live_server.url)
    for name in ("far.csv", "far.parquet"):
        assert main(["export", "far", "-o", str(tmp_path / name)]) == 0
    assert rows((tmp_path / "far.csv").read_text())[1:] == [
        ["0", "host", "0", "1", "", "3"],
        ["0", "host", "0", "2", "", ""],
    ]
    assert pyarrow.parquet.read_table(tmp_path / "far.parquet")["step"].to_pylist() == [1, 2]
    assert main(["export", "none", "-o", str(tmp_path / "none")]) == 1
    assert "answered 404" in capsys.readouterr().err
    monkeypatch.setenv("MEMAGENT_SERVER", "http://127.0.0.1:9")
    assert main(["export", "far"]) == 1
    assert "connection refused" in capsys.readouterr().err
