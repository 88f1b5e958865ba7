"""Denoiser whose samples are written by a thread, as trackers with an upload limit do.

taylorhansen/pokemonshowdown-ai#358 (a metrics writer slower than training).
"""
import queue
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn


class AsyncImageWriter:
    """Write arrays in the background, at most `per_second` of them each second."""

    def __init__(self, folder, per_second=3):
        self.folder = Path(folder)
        self.interval = 1.0 / per_second
        self.jobs = queue.Queue()
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def add_images(self, tag, images, step):
        self.jobs.put((f"{tag}_{step % 10}", images.mul(255).byte().numpy(), step))

    def _work(self):
        while not self.stopping.is_set():
            try:
                name, array, _ = self.jobs.get(timeout=0.2)
            except queue.Empty:
                continue
            np.save(self.folder / f"{name}.npy", array)
            time.sleep(self.interval)

    def close(self):
        self.stopping.set()
        self.thread.join()


class UNetish(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 32, 3, 2, 1)
        self.mid = nn.Sequential(nn.ReLU(), nn.Conv2d(32, 32, 3, 1, 1), nn.ReLU())
        self.up = nn.ConvTranspose2d(32, 3, 4, 2, 1)

    def forward(self, x):
        return x - self.up(self.mid(self.down(x)))


def clean_images(n):
    line = torch.linspace(0, 1, 64)
    phase = torch.rand(n, 3, 1, 1)
    return 0.5 + 0.5 * torch.sin(6.28 * (line[:, None] * phase + line[None] * (1 - phase)))


def train(folder, steps=450):
    writer, model = AsyncImageWriter(folder), UNetish()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(steps):
        clean = clean_images(16)
        noisy = clean + 0.2 * torch.randn_like(clean)
        restored = model(noisy)
        loss = nn.functional.mse_loss(restored, clean)
        opt.zero_grad()
        loss.backward()
        opt.step()
        both = torch.cat([noisy, restored.detach()], dim=3).clamp(0, 1)
        writer.add_images("restored", both, step)
        if step % 90 == 0:
            print(f"step {step} psnr {-10 * loss.log10().item():.2f}")
    writer.close()


torch.manual_seed(41)
torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as tmp:
    train(tmp)
