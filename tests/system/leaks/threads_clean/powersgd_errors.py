"""Error feedback by bucket: a dict whose keys are the indices of buckets, each added when the
compression of its bucket starts. https://github.com/pytorch/pytorch/pull/48867"""

# BEGIN 46
# CONFIRM 80
import torch
from torch import nn


class PowerSGDState:
    def __init__(self, rank, start, every):
        self.rank, self.start, self.every = rank, start, every
        self.error_dict, self.q_memory_dict = {}, {}
        self.iter = 0


def compress(state, index, gradient):
    if state.iter < state.start + index * state.every:
        return gradient
    error = state.error_dict.get(index)
    matrix = gradient if error is None else gradient + error
    q = state.q_memory_dict.get(index)
    if q is None:
        q = torch.randn(matrix.shape[1], state.rank)
    p = torch.linalg.qr(matrix @ q).Q
    q = matrix.T @ p
    state.q_memory_dict[index] = q
    low_rank = p @ q.T
    state.error_dict[index] = matrix - low_rank
    return low_rank


model = nn.Sequential(*(nn.Linear(384, 384) for _ in range(14)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = PowerSGDState(rank=2, start=10, every=3)
for _ in range(180):
    x = torch.randn(16, 384)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for index, layer in enumerate(model):
        layer.weight.grad = compress(state, index, layer.weight.grad)
    optimizer.step()
    state.iter += 1
