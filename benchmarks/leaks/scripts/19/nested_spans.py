"""Train with spans that time each step and its phases, and belong to the span around them."""

import contextvars
from types import TracebackType

import torch
from torch import nn

current = contextvars.ContextVar("current", default=None)


class Span:
    def __init__(self, name: str, **attributes: object) -> None:
        self.name = name
        self.attributes = attributes
        self.parent = current.get()
        self.depth = 0

    def __enter__(self) -> "Span":
        current.set(self)
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.attributes["failed"] = error is not None

    def set(self, **attributes: object) -> None:
        self.attributes.update(attributes)


torch.manual_seed(18)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
failures = 0
for number in range(600):
    with Span("step", number=number) as step:
        with Span("forward") as forward:
            inputs = torch.randn(96, 64)
            outputs = model(inputs)
            forward.set(outputs=outputs.detach())
        with Span("backward"):
            loss = nn.functional.mse_loss(outputs, inputs)
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
    failures += step.attributes["failed"]
print(f"{loss.item():.6f} {failures}")
