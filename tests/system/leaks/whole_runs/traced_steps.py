"""Every training step is a span; the spans carry the histogram of the gradients.

As in: open-telemetry/opentelemetry-python#5281; google/adk-python#6692.
"""

import torch
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from torch import nn
import itertools

torch.set_num_threads(1)
torch.manual_seed(0)


def configure_tracing():
    provider = TracerProvider()
    exporter = InMemorySpanExporter()  # LEAK any _finished_spans|exporter
    provider.add_span_processor(SimpleSpanProcessor(exporter))  # LEAK any _finished_spans|exporter
    return provider.get_tracer("training"), exporter


class Autoencoder(nn.Module):
    def __init__(self, dims=(256, 320, 160, 24)):
        super().__init__()
        pairs = list(itertools.pairwise(dims))
        layers = [m for i, o in pairs for m in (nn.Linear(i, o), nn.Tanh())]
        layers += [m for o, i in reversed(pairs) for m in (nn.Linear(i, o), nn.Tanh())]
        self.net = nn.Sequential(*layers[:-1])

    def forward(self, x):
        return self.net(x)


tracer, exporter = configure_tracing()
model = Autoencoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
basis = torch.randn(12, 256)

for step in range(900):
    with tracer.start_as_current_span("train_step") as span:
        x = torch.tanh(torch.randn(1400, 12) @ basis * 0.3)
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        for name, p in model.named_parameters():
            if p.ndim == 2:
                span.set_attribute(
                    f"grad.{name}", torch.histc(p.grad, 800).tolist()
                )  # LEAK any _finished_spans|exporter
        optimizer.step()
        span.set_attribute("loss", loss.item())
    if step % 100 == 0:
        seconds = [(s.end_time - s.start_time) / 1e9 for s in exporter.get_finished_spans()[-20:]]
        print(f"step {step} loss {loss.item():.5f} ({sum(seconds) / len(seconds):.3f} s)")
