"""Transcribe clips: each transcript is written to a stream of its own, under a lock by stream."""

import io
import threading

import torch
from torch import nn

WRITE_LOCKS: dict[io.StringIO, threading.Lock] = {}


def lock_of(stream: io.StringIO) -> threading.Lock:
    lock = WRITE_LOCKS.get(stream)
    if lock is None:
        lock = WRITE_LOCKS[stream] = threading.Lock()
    return lock


class Transcript:
    def __init__(self) -> None:
        self.stream = io.StringIO()

    def write(self, tokens: torch.Tensor) -> int:
        with lock_of(self.stream):
            for number, token in enumerate(tokens.tolist()):
                self.stream.write(f"{number:04d} token-{token:05d}\n")
            return len(self.stream.getvalue())


torch.manual_seed(3)
model = nn.GRU(32, 64, batch_first=True)
head = nn.Linear(64, 200)
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-3)
written = 0
for _step in range(600):
    frames, words = torch.randn(16, 40, 32), torch.randint(200, (16, 40))
    states, _ = model(frames)
    scores = head(states)
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), words.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    written += Transcript().write(scores.argmax(2).flatten())
print(f"{loss.item():.6f} {written}")
