"""Guide a denoiser by the features of its blocks, which a hook records at each pass."""

import torch
from torch import nn


class HookedNet:
    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.features = {}
        for name, block in net.named_children():
            if isinstance(block, nn.Conv2d):
                block.register_forward_hook(self.recorder(name))

    def recorder(self, name: str):
        def record(_module, _inputs, output):
            past = self.features.get(name, ())
            self.features[name] = (*past, output.detach())

        return record

    def guidance(self) -> torch.Tensor:
        return sum(outputs[-1].mean() for outputs in self.features.values())


torch.manual_seed(2)
net = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 16, 3, padding=1), nn.SiLU(),
    nn.Conv2d(16, 3, 3, padding=1),
)  # fmt: skip
hooked = HookedNet(net)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for _ in range(600):
    clean = torch.rand(4, 3, 24, 24)
    noise = torch.randn_like(clean)
    loss = nn.functional.mse_loss(net(clean + noise), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f} {hooked.guidance():.6f}")
