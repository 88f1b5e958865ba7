"""Thirty augmentations take turns; each keeps its last batch until the matrix is asked for.
https://github.com/kornia/kornia/issues/4482"""

import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
# CONFIRM 80
# BEGIN 80


class Flip(nn.Module):
    def __init__(self, dimension):
        super().__init__()
        self.dimension = dimension
        self._lazy_matrix_args = None

    def forward(self, x):
        self._lazy_matrix_args = (x, {"dimension": self.dimension})
        return x.flip(self.dimension)

    @property
    def transform_matrix(self):
        x, params = self._lazy_matrix_args
        matrix = torch.eye(3).repeat(x.shape[0], 1, 1)
        matrix[:, params["dimension"] - 2, params["dimension"] - 2] = -1
        return matrix


augmentations = nn.ModuleList(Flip(2 + n % 2) for n in range(30))
model = nn.Sequential(nn.Conv2d(3, 8, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5))
model(torch.zeros(1, 3, 40, 40))
optimizer = torch.optim.Adam(model.parameters())
order = torch.randperm(30).tolist()
for step in range(STEPS):
    images = torch.rand(16, 3, 40, 40)
    labels = torch.randint(0, 5, (16,))
    augmented = augmentations[order[step // 3 % 30]](images)
    loss = nn.functional.cross_entropy(model(augmented), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
