"""Torch.profiler with a schedule, three windows."""

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

torch.set_num_threads(1)
torch.manual_seed(0)
STEPS = 800


class Attention(nn.Module):
    def __init__(self, dim=96, heads=4):
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), heads

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


model = nn.Sequential(
    nn.Linear(16, 96),
    Attention(),
    nn.LayerNorm(96),
    Attention(),
    nn.LayerNorm(96),
    nn.Linear(96, 16),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
totals = []


def report(prof):
    rows = sorted(prof.key_averages(), key=lambda e: -e.self_cpu_time_total)[:3]
    totals.append([(r.key, round(r.self_cpu_time_total / 1e3, 1)) for r in rows])
    print("profile:", totals[-1])


plan = schedule(skip_first=40, wait=60, warmup=5, active=15, repeat=3)
with profile(
    activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=report, record_shapes=True
) as prof:
    for step in range(STEPS):
        x = torch.randn(52, 40, 16).cumsum(1) * 0.1
        loss = nn.functional.mse_loss(model(x[:, :-1]), x[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        prof.step()
        if step % 100 == 0:
            print(step, round(loss.item(), 4))
