import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


lstm = nn.LSTM(8, 8)
opt2 = torch.optim.SGD(lstm.parameters(), lr=0.0)
state = None
for _ in range(40):
    y = model(torch.randn(4, 16, 32))
    out, state = lstm(y.detach(), state)  # LEAK hidden_state state
    loss = out.pow(2).mean()
    optimizer.step()
