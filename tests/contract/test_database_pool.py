"""A used database of the test suite is empty for the next test."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.postgres
USED = (
    "INSERT INTO tokens (name, scope, hash, created_at) VALUES ('a', 'read', 'b', 1) RETURNING id"
)


def name_of(url: str) -> str:
    return url.partition("@/")[2].partition("?")[0]


def test_a_returned_database_holds_only_the_rows_of_the_migrations(postgres_cluster, postgres_pool):
    with postgres_pool.lend() as url, postgres_cluster.connected(name_of(url)) as connection:
        assert connection.execute(USED).fetchall() == [(1,)]
        connection.execute("UPDATE shards SET worker_id = NULL WHERE shard = 3")
        connection.execute("DELETE FROM shards WHERE shard < 2")
        shards = connection.execute("SELECT count(*) FROM shards").fetchone()
    with postgres_pool.lend() as again, postgres_cluster.connected(name_of(again)) as connection:
        assert again == url
        assert connection.execute("SELECT count(*) FROM shards").fetchone() == (shards[0] + 2,)
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() != []
        assert connection.execute(USED).fetchall() == [(1,)], (
            "ids begin anew, and nobody has the hash"
        )


@pytest.mark.parametrize(
    "change",
    ["ALTER TABLE runs ADD COLUMN mine int", "CREATE TABLE mine ()", "ALTER TABLE runs RENAME TO yours",
     "ALTER DATABASE {} SET work_mem = '1MB'"],
)  # fmt: skip
def test_a_database_with_a_changed_schema_is_not_reused(postgres_cluster, postgres_pool, change):
    with postgres_pool.lend() as url, postgres_cluster.connected(name_of(url)) as connection:
        connection.execute(change.format(name_of(url)))
    with postgres_pool.lend() as other:
        assert other != url
