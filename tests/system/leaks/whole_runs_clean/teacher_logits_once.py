# Distillation: the teacher's outputs are computed once per sample, in the first epoch (400 steps), and
# reused in the second and third. A dict by sample index, complete after one epoch.
import memagent
import torch
from torch import nn


class Distiller:
    def __init__(self, teacher, student, data):
        self.teacher, self.student, self.data = teacher, student, data
        self.targets = {}
        self.optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)

    def teach(self, key, x):
        if key not in self.targets:
            with torch.no_grad():
                self.targets[key] = self.teacher(x).softmax(-1)
        return self.targets[key]

    def epoch(self):
        for key in torch.randperm(len(self.data)).tolist():
            x = self.data[key]
            loss = nn.functional.kl_div(
                self.student(x).log_softmax(-1), self.teach(key, x), reduction="batchmean"
            )
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


teacher = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 400))
student = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 400))
distiller = Distiller(teacher, student, torch.randn(400, 48, 64))
memagent.attach(student, distiller.optimizer)
for _ in range(2):
    distiller.epoch()
