# Thread: warner-benjamin/optimi#5 "gradient release, increasing VRAM" and pytorch's
# Optimizer.register_step_post_hook. Pattern: at the begin of each epoch (20 steps) a post hook is
# registered that compares with the weights of the epoch's start; its handle is dropped, so it stays.
# Expected: the register_step_post_hook line (or the line that defines/builds the closure), holder
# `_optimizer_step_post_hooks`/hook/`drift`/`anchor`.
import memagent
import torch
from torch import nn


def watch_drift(model, optimizer, log):
    anchor = [p.detach().clone() for p in model.parameters()]  # ALLOCATES

    def drift(opt, args, kwargs):  # LEAK any drift|hook|_optimizer_step_post_hooks
        log["drift"] = (
            sum((p.detach() - a).abs().sum().item() for p, a in zip(model.parameters(), anchor))
            if log["step"] % 20 == 19
            else log.get("drift")
        )

    optimizer.register_step_post_hook(drift)  # LEAK any _step_post_hooks|hook|drift|anchor


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(300, 400), nn.Linear(400, 20)

    def forward(self, x):
        return self.b(self.a(x).relu())


def main():
    model = MLP()
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
    memagent.attach(model, optimizer)
    log = {"step": 0}
    for epoch in range(48):
        watch_drift(model, optimizer, log)
        for i in range(20):
            log["step"] = i
            x = torch.randn(64, 300)
            loss = nn.functional.cross_entropy(model(x), x[:, :20].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


main()
