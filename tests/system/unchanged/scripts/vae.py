"""A variational autoencoder with random noise in forward."""
import torch
import torch.nn.functional as F
from torch import nn


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.mu, self.logvar = nn.Linear(32, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.fc3, self.fc4 = nn.Linear(4, 16), nn.Linear(16, 32)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def forward(self, x):
        h = F.relu(self.fc1(x))
        mu, logvar = self.mu(h), self.logvar(h)
        z = self.reparameterize(mu, logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


torch.manual_seed(5)
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
# memagent.attach(model, optimizer)
for step in range(20):
    x = torch.rand(16, 32)
    optimizer.zero_grad()
    recon, mu, logvar = model(x)
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    loss = F.binary_cross_entropy(recon, x, reduction="sum") + kld
    loss.backward()
    optimizer.step()
    print(step, loss.item())
with torch.no_grad():
    print(torch.sigmoid(model.fc4(F.relu(model.fc3(torch.randn(2, 4))))).tolist())
