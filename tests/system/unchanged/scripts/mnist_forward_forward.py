"""Each layer trains itself in its own forward, with its own optimizer."""
import torch
from torch import nn


class Layer(nn.Linear):
    def __init__(self, size_in, size_out):
        super().__init__(size_in, size_out)
        self.relu = nn.ReLU()
        self.opt = torch.optim.Adam(self.parameters(), lr=0.02)
        self.threshold, self.epochs = 1.5, 6

    def forward(self, x):
        direction = x / (x.norm(2, 1, keepdim=True) + 1e-4)
        return self.relu(torch.mm(direction, self.weight.T) + self.bias.unsqueeze(0))

    def train_layer(self, positive, negative):
        for _ in range(self.epochs):
            g_pos = self.forward(positive).pow(2).mean(1)
            g_neg = self.forward(negative).pow(2).mean(1)
            margins = torch.cat([-g_pos + self.threshold, g_neg - self.threshold])
            loss = torch.log(1 + torch.exp(margins)).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            print("Loss:", loss.item())
        return self.forward(positive).detach(), self.forward(negative).detach()


class Net(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.layers = nn.ModuleList(Layer(a, b) for a, b in zip(sizes, sizes[1:]))

    def train_net(self, positive, negative):
        for index, layer in enumerate(self.layers):
            print("training layer:", index)
            positive, negative = layer.train_layer(positive, negative)


torch.manual_seed(14)
net = Net([12, 16, 16])
x = torch.rand(32, 12)
net.train_net(x, x[torch.randperm(32)])
print(sum(p.double().sum().item() for p in net.parameters()))
