"""Train an autoencoder under a profiler, which tells at the end what took the time."""

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function


class Autoencoder(nn.Module):
    def __init__(self, inputs: int, code: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(inputs, 96), nn.ReLU(), nn.Linear(96, code))
        self.decoder = nn.Sequential(nn.Linear(code, 96), nn.ReLU(), nn.Linear(96, inputs))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.encoder(inputs))


class Training:
    def __init__(self, model: nn.Module, mixing: torch.Tensor) -> None:
        self.model = model
        self.mixing = mixing
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def draw(self, count: int) -> torch.Tensor:
        return torch.tanh(torch.randn(count, len(self.mixing)) @ self.mixing)

    def epoch(self, steps: int) -> float:
        for _step in range(steps):
            inputs = self.draw(64)
            with record_function("forward"):
                loss = nn.functional.mse_loss(self.model(inputs), inputs)
            with record_function("backward"):
                self.optimizer.zero_grad()
                loss.backward()
            with record_function("update"):
                self.optimizer.step()
        return loss.item()


torch.manual_seed(212)
training = Training(Autoencoder(inputs=72, code=8), mixing=torch.randn(8, 72))
losses = []
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    for _epoch in range(10):
        losses.append(training.epoch(steps=50))
with open("profile.txt", "w") as file:
    file.write(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=20))
print(f"{losses[0]:.6f} {losses[-1]:.6f}")
