"""Keeps the history of predictions as an Arrow table (for a Parquet file at the end).

As in: apache/arrow threads.
"""

import argparse

import pyarrow as pa
import torch
import torch.nn as nn


class History:
    SCHEMA = pa.schema(
        [
            ("step", pa.int32()),
            ("row", pa.int32()),
            ("target", pa.float64()),
            ("prediction", pa.float64()),
            ("residual", pa.float64()),
        ]
    )

    def __init__(self):
        self.table = self.SCHEMA.empty_table()

    def add(self, step, target, prediction):
        count = len(target)
        chunk = pa.table(
            {
                "step": pa.array([step] * count, pa.int32()),
                "row": pa.array(range(count), pa.int32()),
                "target": pa.array(target.tolist(), pa.float64()),
                "prediction": pa.array(prediction.tolist(), pa.float64()),
                "residual": pa.array((prediction - target).tolist(), pa.float64()),
            }
        )
        self.table = pa.concat_tables([self.table, chunk])  # LEAK any table

    def mean_residual(self, last):
        return sum(abs(v.as_py()) for v in self.table["residual"][-last:]) / last


class Tower(nn.Module):
    def __init__(self, inputs=40, width=96):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(inputs, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


def rows(generator, size):
    x = torch.randn(size, 40, generator=generator)
    return x, (x[:, 0] * x[:, 1]).tanh() + 0.1 * x[:, 2]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--batch", type=int, default=3000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(17)
    model, history = Tower(), History()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(args.steps):
        x, y = rows(generator, args.batch)
        prediction = model(x)
        loss = (prediction - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.add(step, y, prediction.detach())
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f} rows {history.table.num_rows}", flush=True)


if __name__ == "__main__":
    main()
