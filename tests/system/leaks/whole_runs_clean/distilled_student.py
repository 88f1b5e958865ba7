"""Knowledge distillation; the soft targets of a sample are computed once and then kept.

Soft targets of each sample, first epoch of three.
"""

import torch
from torch import nn
import itertools

torch.set_num_threads(1)
torch.manual_seed(0)


def mlp(*dims):
    layers = []
    for i, o in itertools.pairwise(dims):
        layers += [nn.Linear(i, o), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class SoftTargets:
    def __init__(self, teacher):
        self.teacher = teacher.eval()
        self.known = {}

    @torch.no_grad()
    def __call__(self, indices, x):
        missing = [k for k, i in enumerate(indices.tolist()) if i not in self.known]
        if missing:
            soft = torch.softmax(self.teacher(x[missing]) / 4, 1)
            for k, row in zip(missing, soft):
                self.known[int(indices[k])] = row.clone()
        return torch.stack([self.known[i] for i in indices.tolist()])


data = torch.randn(42_000, 64)
teacher, student = mlp(64, 512, 512, 1000), mlp(64, 1024, 1024, 1000)
targets = SoftTargets(teacher)
optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
step = 0
for epoch in range(3):
    for indices in torch.randperm(len(data)).split(128):
        x = data[indices]
        soft = targets(indices, x)
        loss = (
            nn.functional.kl_div(torch.log_softmax(student(x) / 4, 1), soft, reduction="batchmean")
            * 16
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 100 == 0:
            print(epoch, step, round(loss.item(), 5), len(targets.known))
