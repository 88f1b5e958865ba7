"""Graph attention with several heads, dense and masked."""
import torch
import torch.nn.functional as F
from torch import nn


class GraphAttention(nn.Module):
    def __init__(self, size_in, size_out, heads):
        super().__init__()
        self.heads, self.size = heads, size_out // heads
        self.W = nn.Parameter(torch.empty(size_in, heads * self.size))
        self.a = nn.Parameter(torch.empty(heads, 2 * self.size, 1))
        nn.init.xavier_normal_(self.W)
        nn.init.xavier_normal_(self.a)

    def forward(self, h, adjacency):
        n = h.shape[0]
        z = torch.mm(h, self.W).view(n, self.heads, self.size).permute(1, 0, 2)
        left, right = z @ self.a[:, : self.size], z @ self.a[:, self.size :]
        e = F.leaky_relu(left + right.mT, 0.2).masked_fill(adjacency == 0, -9e16)
        attention = F.dropout(F.softmax(e, -1), 0.4, training=self.training)
        return (attention @ z).permute(1, 0, 2).reshape(n, -1)


class GAT(nn.Module):
    def __init__(self):
        super().__init__()
        self.gat1, self.gat2 = GraphAttention(8, 8, 4), GraphAttention(8, 3, 1)

    def forward(self, x, adjacency):
        return F.log_softmax(self.gat2(F.elu(self.gat1(x, adjacency)), adjacency), dim=1)


torch.manual_seed(11)
x, y = torch.randn(24, 8), torch.randint(0, 3, (24,))
adjacency = (torch.rand(24, 24) > 0.7).float() + torch.eye(24)
net = GAT()
optimizer = torch.optim.Adam(net.parameters(), lr=0.005, weight_decay=5e-4)
# memagent.attach(net, optimizer)
for step in range(15):
    net.train()
    optimizer.zero_grad()
    loss = nn.NLLLoss()(net(x, adjacency), y)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
