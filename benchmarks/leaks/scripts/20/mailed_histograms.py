"""Train a forecaster; a process of its own writes histograms of its weights and gradients."""

import multiprocessing
import time

import numpy as np
import torch
from torch import nn


def write_records(records: multiprocessing.Queue, file_name: str) -> None:
    with open(file_name, "ab") as file:
        while (record := records.get()) is not None:
            time.sleep(0.1)  # a share on the network answers that fast
            np.save(file, record["counts"].sum(1))
            file.flush()


class HistogramLogger:
    def __init__(self, file_name: str, bins: int = 512) -> None:
        self.bins = bins
        self.records = multiprocessing.Queue()
        self.writer = multiprocessing.Process(
            target=write_records, args=(self.records, file_name), daemon=True
        )
        self.writer.start()

    def log(self, step: int, model: nn.Module) -> None:
        counts = []
        for parameter in model.parameters():
            for values in (parameter.detach(), parameter.grad):
                counts.append(np.histogram(values.numpy(), self.bins)[0])
        self.records.put({"step": step, "counts": np.stack(counts)})

    def close(self, patience_s: float = 0.5) -> None:
        self.records.put(None)
        self.writer.join(patience_s)
        self.writer.terminate()
        self.records.cancel_join_thread()


class Forecaster(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.recurrent = nn.GRU(1, width, batch_first=True)
        self.head = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.recurrent(series[..., None])
        return self.head(hidden)[..., 0]


def draw_series(count: int, length: int) -> torch.Tensor:
    starts, paces = 6 * torch.rand(count, 1), 0.1 + 0.3 * torch.rand(count, 1)
    return torch.sin(starts + paces * torch.arange(length)) + 0.05 * torch.randn(count, length)


torch.manual_seed(211)
model = Forecaster()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
logger = HistogramLogger("histograms.npy")
for step in range(500):
    series = draw_series(24, 25)
    loss = nn.functional.mse_loss(model(series[:, :-1]), series[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    logger.log(step, model)
logger.close()
print(f"{loss.item():.6f}")
