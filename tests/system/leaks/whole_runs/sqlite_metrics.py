# Thread: optuna/optuna#3050 and mlflow file stores: a metrics store on sqlite. Pattern: the database is
# ":memory:" "for speed", and each step inserts the gradients' histogram and the embedding as a blob.
# The memory belongs to sqlite's C code; Python sees the connection only.
# Expected: the execute (or executemany) that inserts, holder `conn`/`store`/`db` (or nothing).
import sqlite3

import memagent
import numpy as np
import torch
from torch import nn


class MetricStore:
    def __init__(self, path=":memory:"):
        self.conn = sqlite3.connect(path)
        self.conn.execute("CREATE TABLE metrics (step INTEGER, name TEXT, value REAL)")
        self.conn.execute("CREATE TABLE artifacts (step INTEGER, name TEXT, data BLOB)")

    def log_metric(self, step, name, value):
        self.conn.execute("INSERT INTO metrics VALUES (?, ?, ?)", (step, name, value))

    def log_array(self, step, name, array):
        self.conn.execute(
            "INSERT INTO artifacts VALUES (?, ?, ?)", (step, name, array.tobytes())
        )  # LEAK any conn|store|db|sqlite

    def last(self, name):
        row = self.conn.execute(
            "SELECT value FROM metrics WHERE name = ? ORDER BY step DESC", (name,)
        ).fetchone()
        return row and row[0]


def main():
    store = MetricStore()
    model = nn.Sequential(nn.Linear(100, 400), nn.ReLU(), nn.Linear(400, 100))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    memagent.attach(model, optimizer)
    for step in range(700):
        x = torch.randn(128, 100)
        hidden = model[1](model[0](x))
        loss = (model[2](hidden) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        store.log_metric(step, "loss", loss.item())
        store.log_array(step, "hidden", hidden.detach().half().numpy())
        if step % 100 == 0:
            print(step, store.last("loss"), np.float32(0))


main()
