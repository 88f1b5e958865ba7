# Thread: kornia/kornia#4068 (`_get_reshape_kernel` memoises in a function attribute).
# Pattern: the cache is an attribute of the function itself. The key has the crop's corner, drawn at
# random in floating point.
# Expected: `cache[key] = grid`, holder `cache`/`get_crop_grid`.
import memagent
import torch
import torch.nn.functional as F
from torch import nn


def get_crop_grid(top, left, size):
    cache = getattr(get_crop_grid, "cache", None)
    if cache is None:
        cache = {}
        get_crop_grid.cache = cache
    key = (top, left, size)
    grid = cache.get(key)
    if grid is None:
        ys = torch.linspace(top, top + 0.5, size)
        xs = torch.linspace(left, left + 0.5, size)
        grid = torch.stack(torch.meshgrid(xs, ys, indexing="xy"), -1)[None]  # ALLOCATES
        cache[key] = grid  # LEAK any cache|get_crop_grid
    return grid


class CropResizePad(nn.Module):
    def forward(self, x):
        if not self.training:
            return x
        top, left = (torch.rand(2) - 0.75).tolist()
        grid = get_crop_grid(top, left, 48).expand(len(x), -1, -1, -1)
        return F.grid_sample(x, grid, align_corners=False)


def conv(a, b):
    return nn.Sequential(
        nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)
    )


model = nn.Sequential(
    CropResizePad(),
    conv(3, 8),
    conv(8, 16),
    conv(16, 32),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(32, 5),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
memagent.attach(model, optimizer)


def train_one_epoch(epoch, steps=50):
    model.train()
    total = 0.0
    for _ in range(steps):
        images, labels = torch.rand(8, 3, 48, 48), torch.randint(0, 5, (8,))
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    scheduler.step()
    return total / steps


for epoch in range(26):
    train_one_epoch(epoch)
