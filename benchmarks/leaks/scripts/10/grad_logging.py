"""Multi-task regression with a debug log that is written only if something fails.

wandb/wandb#354: logging tensors instead of numbers; here with logging.handlers.MemoryHandler.
"""
import logging
import logging.handlers
import sys

import torch
from torch import nn

log = logging.getLogger("multitask")


def configure():
    stream = logging.StreamHandler(sys.stdout)
    stream.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    stream.setLevel(logging.INFO)
    log.addHandler(stream)
    verbose = logging.StreamHandler(sys.stderr)
    log.addHandler(logging.handlers.MemoryHandler(1_000_000, logging.ERROR, verbose, flushOnClose=False))
    log.setLevel(logging.DEBUG)


class Heads(nn.Module):
    def __init__(self, tasks=4, dim=700):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(200, dim), nn.Tanh(), nn.Linear(dim, dim), nn.Tanh())
        self.heads = nn.ModuleList(nn.Linear(dim, 1) for _ in range(tasks))

    def forward(self, x):
        h = self.trunk(x)
        return torch.cat([head(h) for head in self.heads], -1)


def task_gradients(model, losses):
    last = model.trunk[2].weight
    rows = [torch.autograd.grad(loss, last, retain_graph=True)[0][:64].flatten() for loss in losses]
    return torch.stack(rows)


def main():
    configure()
    torch.manual_seed(23)
    torch.set_num_threads(1)
    model = Heads()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    rule = torch.randn(200, 4) / 14
    for step in range(400):
        x = torch.randn(96, 200)
        losses = (model(x) - torch.sin(x @ rule)).pow(2).mean(0)
        grads = task_gradients(model, losses)
        log.debug("step %d gradients %s", step, grads)
        norm = grads.norm(dim=1)
        weight = (norm.mean() / norm.clamp(min=1e-8)).clamp(0.2, 5.0)
        opt.zero_grad()
        (losses * weight).sum().backward()
        opt.step()
        if step % 80 == 0:
            log.info("step %d losses %s", step, [round(v, 4) for v in losses.tolist()])


main()
