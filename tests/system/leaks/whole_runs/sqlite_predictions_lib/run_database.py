"""A run store on SQLite: rows of metrics and blobs of predictions."""

import sqlite3
import zlib


class RunDatabase:
    def __init__(self, path=":memory:"):
        self.connection = sqlite3.connect(path)
        self.connection.execute("CREATE TABLE metrics (step INTEGER, name TEXT, value REAL)")
        self.connection.execute("CREATE TABLE blobs (step INTEGER PRIMARY KEY, payload BLOB)")

    def metric(self, step, **values):
        rows = [(step, name, float(value)) for name, value in values.items()]
        self.connection.executemany("INSERT INTO metrics VALUES (?, ?, ?)", rows)

    def blob(self, step, array):
        payload = zlib.compress(array.tobytes(), 0)
        self.connection.execute(
            "INSERT INTO blobs VALUES (?, ?)", (step, payload)
        )  # LEAK any connection|sqlite|database|blobs|native|C memory|outside
        self.connection.commit()

    def mean(self, name, since):
        query = "SELECT AVG(value) FROM metrics WHERE name = ? AND step >= ?"
        return self.connection.execute(query, (name, since)).fetchone()[0]
