"""A profiler with a schedule: of every 60 steps two are recorded, and reduced to a line of text."""

import sys

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
# CONFIRM 80
lines = []


def summarize(profiler):
    rows = profiler.key_averages()
    lines.append(max(rows, key=lambda row: row.self_cpu_time_total).key)


model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
plan = schedule(wait=56, warmup=2, active=2, repeat=0)
with profile(
    activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=summarize
) as profiler:
    for step in range(STEPS):
        x = torch.randn(64, 128)
        with record_function("forward"):
            loss = (model(x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        profiler.step()
print(set(lines))
