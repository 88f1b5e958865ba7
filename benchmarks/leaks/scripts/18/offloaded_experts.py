"""Train a mixture of experts, whose activations wait in main memory for the backward pass."""

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks


class OffloadActivations(saved_tensors_hooks):
    def __init__(self) -> None:
        self.tracker = {}
        self.tensor_id = 0
        super().__init__(self.pack, self.unpack)

    def pack(self, tensor: torch.Tensor) -> int | torch.Tensor:
        if isinstance(tensor, nn.Parameter):
            return tensor
        self.tensor_id += 1
        self.tracker[self.tensor_id] = tensor.detach().clone()
        return self.tensor_id

    def unpack(self, saved: int | torch.Tensor) -> torch.Tensor:
        return self.tracker.pop(saved) if isinstance(saved, int) else saved


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(64, 3)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64)) for _ in range(3)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        weights = self.gate(inputs).softmax(1).mean(0)
        outputs = [expert(inputs) for expert in self.experts]
        best = int(weights.argmax())
        return outputs[best] * weights[best]


torch.manual_seed(15)
model = Mixture()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
offload = OffloadActivations()
for _step in range(500):
    inputs = torch.randn(96, 64)
    with offload:
        loss = nn.functional.mse_loss(model(inputs), inputs.roll(1, 1))
        optimizer.zero_grad()
        loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
