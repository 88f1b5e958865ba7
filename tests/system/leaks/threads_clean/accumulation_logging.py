"""Gradient accumulation with buffered debug logging and normalising statistics."""

# BEGIN 44
# CONFIRM 80
import io
import logging
import logging.handlers
from collections import deque

import torch
import torch.nn.functional as F
from torch import nn

ACCUMULATE = 4
log = logging.getLogger("accumulate")


def configure(sink):
    stream = logging.StreamHandler(sink)
    stream.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    buffered = logging.handlers.MemoryHandler(capacity=48, flushLevel=logging.ERROR, target=stream)
    log.addHandler(buffered)
    log.setLevel(logging.DEBUG)
    log.propagate = False


class RollingFile(io.StringIO):
    """Starts over when it is full, as a rotating log would."""

    def write(self, text):
        if self.tell() > 4096:
            self.seek(0)
            self.truncate()
        return super().write(text)


class AutoClip:
    """Clips at a quantile of the latest gradient norms."""

    def __init__(self, quantile=0.9, window=50):
        self.quantile = quantile
        self.norms = deque(maxlen=window)

    def __call__(self, parameters):
        norm = nn.utils.get_total_norm([p.grad for p in parameters])
        self.norms.append(norm)
        limit = torch.stack(list(self.norms)).quantile(self.quantile)
        nn.utils.clip_grad_norm_(parameters, float(limit))


def main():
    torch.manual_seed(15)
    torch.set_num_threads(1)
    configure(RollingFile())
    model = nn.Sequential(
        nn.Linear(64, 192),
        nn.BatchNorm1d(192),
        nn.ReLU(),
        nn.Linear(192, 192),
        nn.ReLU(),
        nn.Linear(192, 10),
    )
    parameters = list(model.parameters())
    optimizer, clip = torch.optim.AdamW(parameters, lr=1e-3), AutoClip()
    pending = []
    for micro in range(160 * ACCUMULATE):
        x = torch.randn(256, 64)
        logits = model(x)
        loss = F.cross_entropy(logits, x[:, :10].argmax(1)) / ACCUMULATE
        loss.backward()
        pending.append(logits.detach())
        log.debug("micro batch %d logits %s", micro, logits.detach())
        if len(pending) == ACCUMULATE:
            clip(parameters)
            optimizer.step()
            optimizer.zero_grad()
            spread = torch.cat(pending).std().item()
            pending.clear()
            if micro % 160 == 159:
                print(f"micro {micro} loss {loss.item() * ACCUMULATE:.3f} spread {spread:.3f}")


if __name__ == "__main__":
    main()
