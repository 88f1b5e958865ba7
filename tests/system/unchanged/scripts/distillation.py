"""A teacher in eval mode teaches a student; both are called in each step."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(23)
teacher = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(), nn.Linear(32, 4)).eval()
student = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 4))
optimizer = torch.optim.NAdam(student.parameters(), lr=1e-2)
# memagent.attach(student, optimizer)
for step in range(15):
    x, y = torch.randn(16, 6), torch.randint(0, 4, (16,))
    with torch.no_grad():
        soft = F.softmax(teacher(x) / 2, -1)
    logits = student(x)
    loss = F.kl_div(F.log_softmax(logits / 2, -1), soft, reduction="batchmean") * 4 + F.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
