# Thread: pytorch/pytorch#193348 "Repeated short-lived profiles steadily increase host RSS" and #133444.
# Pattern: each fifth step is profiled, and the event list of the profile is kept for a report at the end.
# Python objects (FunctionEvent), not tensors.
# Expected: the append in StepProfiler.stop, holder `reports`.
import memagent
import torch
from torch import nn


class StepProfiler:
    def __init__(self, every):
        self.every = every
        self.reports = []
        self._profile = None

    def start(self, step):
        if step % self.every == 0:
            self._profile = torch.autograd.profiler.profile(record_shapes=True)
            self._profile.__enter__()

    def stop(self, step):
        if self._profile is not None:
            self._profile.__exit__(None, None, None)
            self.reports.append((step, self._profile.function_events))  # LEAK any reports
            self._profile = None

    def table(self):
        return sum(len(events) for _, events in self.reports)


def main():
    model = nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 64))
    head = nn.Linear(64, 100)
    both = nn.ModuleList([model, head])
    optimizer = torch.optim.SGD(both.parameters(), lr=1e-3)
    memagent.attach(both, optimizer)
    profiler = StepProfiler(every=5)
    for step in range(600):
        profiler.start(step)
        tokens = torch.randn(64, 64)
        loss = head(model(tokens)).logsumexp(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        profiler.stop(step)
    print(profiler.table(), "events")


main()
