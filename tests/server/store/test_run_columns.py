"""Chosen columns of a list of runs: settings and scalars by the names of filters."""

from __future__ import annotations

import pytest

from memagent.errors import FilterError
from memagent.wire.messages import Batch, Chunk, RunStart
from memagent_server.store.run_columns import DIFFERING, column_table
from memagent_server.store.runs import start_run
from memagent_server.store.samples import add_batch

CONFIGS = {
    "a": {"lr": 0.1, "batch": 8, "optimizer": {"name": "adam", "a,b": 1}},
    "b": {"lr": 0.2, "batch": 8, "optimizer": {"name": "adam", "a,b": 1}},
    "c": {"lr": 0.2, "batch": 8, "optimizer": {"name": "adam", "a,b": 1}, "ema": None},
}


@pytest.fixture
def table(database):
    with database.write() as session:
        for run_id, config in CONFIGS.items():
            start_run(session, RunStart(run_id=run_id, config=config), 1.0)
        for rank, loss in ((0, 0.5), (1, 9.0)):
            start_run(session, RunStart(run_id="a", rank=rank, config=CONFIGS["a"]), 1.0)
            columns = {"step": [1, 2], "time_s": [1.0, 2.0], "loss": [3.0, loss]}
            batch = Batch(rank=rank, seq=0, chunks=[Chunk(stream="scalars", columns=columns)])
            add_batch(session, "a", batch, 2.0)

    def table(text):
        with database.read() as session:
            return column_table(session, list(CONFIGS), text)

    return table


def test_values_are_in_the_order_of_the_names(table):
    chosen = table('scalar.loss, config.lr, config.optimizer."a,b", project')
    assert chosen.names == ["scalar.loss", "config.lr", 'config.optimizer."a,b"', "project"]
    assert chosen.values["a"] == [0.5, 0.1, 1, "default"], "the loss is that of rank 0"
    assert chosen.values["b"] == [None, 0.2, 1, "default"]


def test_settings_that_differ_are_those_with_two_values_or_missing_in_a_run(table):
    chosen = table(DIFFERING)
    assert chosen.names == ["config.ema", "config.lr"]
    assert chosen.values["c"] == [None, 0.2]


def test_none_are_chosen_by_an_empty_text(table):
    assert table("").names == table(" , ").names == []


def test_an_unclosed_quote_reaches_to_the_end(table):
    assert table('config.lr, config."optimizer, batch').names == [
        "config.lr",
        'config."optimizer, batch',
    ]


def test_a_wrong_name_and_too_many_are_refused(table):
    with pytest.raises(FilterError, match=r"write config\.lr"):
        table("lr")
    with pytest.raises(FilterError, match="at most 12, not 13"):
        table(",".join(f"config.c{number}" for number in range(13)))
