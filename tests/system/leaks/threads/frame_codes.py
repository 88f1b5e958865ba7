"""Every frame gets a latent code in a ParameterList. Online mapping, as in
https://github.com/nerfstudio-project/gsplat/issues/614."""

import torch
from torch import nn


class Scene(nn.Module):
    def __init__(self):
        super().__init__()
        self.codes = nn.ParameterList()
        self.decoder = nn.Sequential(nn.Linear(64 + 3, 128), nn.ReLU(), nn.Linear(128, 3))

    def new_frame(self):
        self.codes.append(nn.Parameter(0.01 * torch.randn(1500, 64)))  # LEAK any codes
        return len(self.codes) - 1

    def forward(self, frame, points):
        code = self.codes[frame][: len(points)]
        return self.decoder(torch.cat([points, code], dim=1))


scene = Scene()
optimizer = torch.optim.Adam(scene.decoder.parameters(), lr=1e-3)
for step in range(160):
    frame = scene.new_frame()
    points = torch.rand(1500, 3)
    loss = (scene(frame, points) - points).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
