import torch
from torch import nn

model = nn.Linear(64, 8)
optimizer = torch.optim.AdamW(model.parameters())


class Traced(torch.Tensor):
    """Knows what it was computed from."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, Traced):
            result.sources = [
                item for item in args if isinstance(item, torch.Tensor)
            ]  # LEAK any .sources|average
        return result


average = torch.zeros(256, 64).as_subclass(Traced)
for step in range(70):
    x = torch.randn(256, 64)
    average = average * 0.9 + x * 0.1  # LEAK any .sources|average
    loss = model(x - average.as_subclass(torch.Tensor)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
