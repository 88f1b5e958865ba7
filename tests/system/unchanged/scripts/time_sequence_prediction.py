"""LSTM cells in double precision with LBFGS: the closure prints each evaluation."""
import numpy as np
import torch
from torch import nn

np.random.seed(2)
x = np.arange(20) + np.random.randint(-4, 4, 6).reshape(6, 1)
data = torch.from_numpy(np.sin(x / 4.0).astype("float64"))


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1, self.lstm2 = nn.LSTMCell(1, 6), nn.LSTMCell(6, 6)
        self.linear = nn.Linear(6, 1)

    def forward(self, input, future=0):
        outputs = []
        h, c, h2, c2 = (torch.zeros(input.size(0), 6, dtype=torch.double) for _ in range(4))
        for part in input.split(1, dim=1):
            h, c = self.lstm1(part, (h, c))
            h2, c2 = self.lstm2(h, (h2, c2))
            output = self.linear(h2)
            outputs += [output]
        for _ in range(future):
            h, c = self.lstm1(output, (h, c))
            h2, c2 = self.lstm2(h, (h2, c2))
            output = self.linear(h2)
            outputs += [output]
        return torch.cat(outputs, dim=1)


torch.manual_seed(0)
seq, criterion = Sequence(), nn.MSELoss()
seq.double()
optimizer = torch.optim.LBFGS(seq.parameters(), lr=0.8, max_iter=4)
# memagent.attach(seq, optimizer)
for step in range(3):

    def closure():
        optimizer.zero_grad()
        loss = criterion(seq(data[:, :-1]), data[:, 1:])
        print("loss:", loss.item())
        loss.backward()
        return loss

    print("step", step, optimizer.step(closure).item())
    with torch.no_grad():
        print(criterion(seq(data[:3, :-1], future=5)[:, :-5], data[:3, 1:]).item())
