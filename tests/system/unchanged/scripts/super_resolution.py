"""A pixel-shuffle network that is saved whole after each epoch."""
import torch
from torch import nn
from torch.nn import init


class Net(nn.Module):
    def __init__(self, upscale=2):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, upscale**2, 3, padding=1)
        self.shuffle = nn.PixelShuffle(upscale)
        init.orthogonal_(self.conv1.weight, init.calculate_gain("relu"))

    def forward(self, x):
        return self.shuffle(self.conv2(torch.relu(self.conv1(x))))


torch.manual_seed(4)
model, criterion = Net(), nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
# memagent.attach(model, optimizer)
for epoch in range(3):
    total = 0.0
    for _ in range(4):
        optimizer.zero_grad()
        loss = criterion(model(torch.rand(2, 1, 8, 8)), torch.rand(2, 1, 16, 16))
        total += loss.item()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}", total / 4)
    torch.save(model, f"model_epoch_{epoch}.pth")
loaded = torch.load("model_epoch_2.pth", weights_only=False)
print(loaded(torch.ones(1, 1, 4, 4)).sum().item())
