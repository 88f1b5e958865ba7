"""Databases with the current schema, lent to one test after the other: emptying one costs a tenth of making one.

A database comes back as it was lent, or not at all:
1. Whoever is still connected to it is cut off, and gone before anything is emptied.
2. What holds rows is truncated, sequences begin anew, and the rows that the migrations put there are put back.
3. One whose tables, columns, constraints or settings are not the template's is dropped, and a new one is made.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.postgres import PostgresCluster

CUT_OFF = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename"
MOVED = "SELECT quote_ident(sequencename) FROM pg_sequences WHERE schemaname = 'public' AND last_value IS NOT NULL"
SHAPE = """
SELECT 'a', relname, attname, atttypid::text, attnotnull::text FROM pg_class
LEFT JOIN pg_attribute ON pg_class.oid = attrelid AND attnum > 0 WHERE relnamespace = 'public'::regnamespace
UNION ALL SELECT 'c', conname, contype::text, '', '' FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION ALL SELECT 'r', rulename, '', '', '' FROM pg_rules WHERE schemaname = 'public'
UNION ALL SELECT 't', tgname, '', '', '' FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT 's', array_to_string(setconfig, ' '), '', '', '' FROM pg_db_role_setting
WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY 1, 2, 3, 4, 5
"""


class Lender:
    """Lends copies of the cluster's template."""

    def __init__(self, cluster: PostgresCluster) -> None:
        self._cluster, self._free = cluster, list[str]()
        with cluster.connected(cluster.template) as connection:
            self._shape = connection.execute(SHAPE).fetchall()
            self._tables = [name for (name,) in connection.execute(TABLES)]
            self._rows = {
                name: connection.execute(f"SELECT * FROM {name}").fetchall()
                for name in self._filled(connection)
            }
            assert not connection.execute(MOVED).fetchall(), (
                "a sequence of the template has begun: put that back, too"
            )

    @contextmanager
    def lend(self) -> Iterator[str]:
        """The URL of a database that nobody else uses."""
        name = self._free.pop() if self._free else self._cluster.create(self._cluster.template)
        try:
            yield self._cluster.url(name)
        finally:
            self._free.append(name) if self._restored(name) else self._cluster.drop(name)

    def _restored(self, name: str) -> bool:
        with self._cluster.connected(name) as connection:
            while connection.execute(CUT_OFF).fetchall():
                time.sleep(0.001)
            if connection.execute(SHAPE).fetchall() != self._shape:
                return False
            if used := [
                table
                for table in self._filled(connection)
                if not self._is_as_lent(connection, table)
            ]:
                connection.execute(f"TRUNCATE {', '.join(used)} CASCADE")
            for table in self._rows:
                self._put_back(connection, table)
            for (sequence,) in connection.execute(MOVED).fetchall():
                connection.execute(f"ALTER SEQUENCE {sequence} RESTART")
        return True

    def _put_back(self, connection: Any, table: str) -> None:
        """The rows that the migrations put there, where a test or a truncated neighbour took them."""
        if self._is_as_lent(connection, table):
            return
        connection.execute(f"DELETE FROM {table}")
        for row in self._rows[table]:
            connection.execute(f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(row))})", row)

    def _filled(self, connection: Any) -> list[str]:
        asked = " UNION ALL ".join(
            f"SELECT '{name}' WHERE EXISTS (SELECT FROM {name})" for name in self._tables
        )
        return [name for (name,) in connection.execute(asked)]

    def _is_as_lent(self, connection: Any, table: str) -> bool:
        rows = self._rows.get(table)
        return (
            rows is not None
            and connection.execute(f"SELECT * FROM {table} LIMIT {len(rows) + 1}").fetchall()
            == rows
        )
