"""Failover to a standby under load: synchronous replication loses nothing acknowledged.

The test creates the worst case: the standby lost its connection to the primary, which has
committed batches that the standby lacks.
"""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from benchmarks.reliability.check import check
from benchmarks.reliability.load import Load, shortened_delays
from memagent_server import files
from tests.postgres import PostgresCluster
from tests.waiting import PATIENCE_S, wait_until

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
REPLICATED = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"


@pytest.fixture
def pair(postgres_programs):
    """A primary that commits nothing which its standby does not have: (primary, standby)."""
    with files.folder("memagent-pair-") as folder:
        folder.chmod(0o755)  # PostgreSQL's account must get through
        primary = PostgresCluster(postgres_programs, folder / "primary")
        primary.execute("CREATE DATABASE memagent")
        standby = PostgresCluster(postgres_programs, folder / "standby", primary=primary)
        primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.execute("SELECT pg_reload_conf()")
        try:
            wait_until(lambda: primary.execute(REPLICATED) == [(1,)])
            yield primary, standby
        finally:
            primary.stop()
            standby.stop()


def kill(cluster):
    """All of its processes at once, as when the machine is gone."""
    postmaster = psutil.Process(cluster.pid)
    for process in [postmaster, *postmaster.children(recursive=True)]:
        os.kill(process.pid, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.postgres
def test_acknowledged_samples_survive_a_failover_exactly_once(pair, start_server, tmp_path):
    primary, standby = pair
    hosts = f"host={primary.folder},{standby.folder}&port={primary.port},{standby.port}"
    url = f"postgresql://postgres@/memagent?{hosts}"
    server = start_server("--workers", "2", environ={"MEMAGENT_DATABASE_URL": url})
    (tmp_path / "spool").mkdir()
    with shortened_delays(), Load(server.url, "run", tmp_path / "spool") as load:
        load.wait_for(20)
        for statement in ("ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"):
            standby.execute(statement)
        wait_until(lambda: primary.execute(WAITING) != [(0,)])
        kill(primary)
        load.wait_until_told("503", PATIENCE_S)
        standby.promote()
        load.wait_for(20, PATIENCE_S)
        assert load.drain(PATIENCE_S)
    verdict = check(standby.url("memagent"), load.record)
    assert verdict.is_right, verdict
    assert verdict.acknowledged == verdict.sent == verdict.found > 0
    assert load.record.wrong == [] and "Traceback" not in server.errors
    wait_until(lambda: server.get("/readyz").json == {"status": "ready", "workers": 1})
