"""Pool of migrated databases: emptying one costs a tenth of creating one.

A database is restored before its next use, or dropped:
1. Remaining connections are terminated before anything is emptied.
2. Tables with rows are truncated, sequences restart, and the rows of the migrations are restored.
3. A database whose tables, columns, constraints or settings differ from the template is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.postgres import PostgresCluster

TERMINATE_OTHERS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename"
USED_SEQUENCES = "SELECT quote_ident(sequencename) FROM pg_sequences WHERE schemaname = 'public' AND last_value IS NOT NULL"
SCHEMA = """
SELECT 'a', relname, attname, atttypid::text, attnotnull::text FROM pg_class
LEFT JOIN pg_attribute ON pg_class.oid = attrelid AND attnum > 0 WHERE relnamespace = 'public'::regnamespace
UNION ALL SELECT 'c', conname, contype::text, '', '' FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION ALL SELECT 'r', rulename, '', '', '' FROM pg_rules WHERE schemaname = 'public'
UNION ALL SELECT 't', tgname, '', '', '' FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT 's', array_to_string(setconfig, ' '), '', '', '' FROM pg_db_role_setting
WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY 1, 2, 3, 4, 5
"""


class DatabasePool:
    """Copies of the cluster's template database, reused by one test after another."""

    def __init__(self, cluster: PostgresCluster) -> None:
        self._cluster = cluster
        self._free: list[str] = []
        with cluster.connected(cluster.template) as connection:
            self._schema = connection.execute(SCHEMA).fetchall()
            self._tables = [name for (name,) in connection.execute(TABLES)]
            self._rows = {
                name: connection.execute(f"SELECT * FROM {name}").fetchall()
                for name in self._filled(connection)
            }
            assert not connection.execute(USED_SEQUENCES).fetchall(), (
                "a sequence of the template was used: restore sequences as well"
            )

    @contextmanager
    def lend(self) -> Iterator[str]:
        """Return the URL of a database that no other test uses."""
        name = self._free.pop() if self._free else self._cluster.create(self._cluster.template)
        try:
            yield self._cluster.url(name)
        finally:
            self._free.append(name) if self._restore(name) else self._cluster.drop(name)

    def _restore(self, name: str) -> bool:
        with self._cluster.connected(name) as connection:
            while connection.execute(TERMINATE_OTHERS).fetchall():
                time.sleep(0.001)
            if connection.execute(SCHEMA).fetchall() != self._schema:
                return False
            if used := [
                table
                for table in self._filled(connection)
                if not self._is_unchanged(connection, table)
            ]:
                connection.execute(f"TRUNCATE {', '.join(used)} CASCADE")
            for table in self._rows:
                self._restore_rows(connection, table)
            for (sequence,) in connection.execute(USED_SEQUENCES).fetchall():
                connection.execute(f"ALTER SEQUENCE {sequence} RESTART")
        return True

    def _restore_rows(self, connection: Any, table: str) -> None:
        """Insert the rows of the migrations again if a test or a cascading truncate removed them."""
        if self._is_unchanged(connection, table):
            return
        connection.execute(f"DELETE FROM {table}")
        for row in self._rows[table]:
            connection.execute(f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(row))})", row)

    def _filled(self, connection: Any) -> list[str]:
        query = " UNION ALL ".join(
            f"SELECT '{name}' WHERE EXISTS (SELECT FROM {name})" for name in self._tables
        )
        return [name for (name,) in connection.execute(query)]

    def _is_unchanged(self, connection: Any, table: str) -> bool:
        rows = self._rows.get(table)
        return (
            rows is not None
            and connection.execute(f"SELECT * FROM {table} LIMIT {len(rows) + 1}").fetchall()
            == rows
        )
