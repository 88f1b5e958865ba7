"""One network is called twice in each forward."""
import torch
from torch import nn


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8))
        self.fc = nn.Sequential(nn.Linear(16, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))
        self.apply(self.init_weights)

    def init_weights(self, m):
        if isinstance(m, nn.Linear):
            torch.nn.init.xavier_uniform_(m.weight)
            m.bias.data.fill_(0.01)

    def forward(self, a, b):
        return torch.sigmoid(self.fc(torch.cat((self.features(a), self.features(b)), 1)))


torch.manual_seed(7)
model, criterion = Siamese(), nn.BCELoss()
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.7)
# memagent.attach(model, optimizer)
for step in range(15):
    a, b = torch.randn(2, 8, 1, 8, 8)
    targets = (torch.rand(8) > 0.5).float()
    optimizer.zero_grad()
    loss = criterion(model(a, b).squeeze(), targets)
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(step, loss.item(), optimizer.param_groups[0]["lr"])
torch.save(model.state_dict(), "siamese.pt")
