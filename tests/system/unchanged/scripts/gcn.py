"""A graph convolution on a sparse adjacency matrix, and early stopping on the validation loss."""
import torch
import torch.nn.functional as F
from torch import nn


class GraphConv(nn.Module):
    def __init__(self, size_in, size_out):
        super().__init__()
        self.kernel = nn.Parameter(torch.Tensor(size_in, size_out))
        nn.init.xavier_normal_(self.kernel)
        self.bias = nn.Parameter(torch.zeros(size_out))

    def forward(self, x, adjacency):
        return torch.spmm(adjacency, torch.mm(x, self.kernel)) + self.bias


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.gc1, self.gc2 = GraphConv(8, 6), GraphConv(6, 3)
        self.dropout = nn.Dropout(0.5)

    def forward(self, data):
        x, adjacency = data
        x = self.dropout(F.relu(self.gc1(x, adjacency)))
        return F.log_softmax(self.gc2(x, adjacency), dim=1)


torch.manual_seed(10)
edges = torch.randint(0, 30, (2, 80))
adjacency = torch.sparse_coo_tensor(edges, torch.ones(80) / 3, (30, 30)).coalesce()
features, labels = torch.randn(30, 8), torch.randint(0, 3, (30,))
model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=0.05, weight_decay=5e-4)
# memagent.attach(model, optimizer)
best, patience = float("inf"), 0
for epoch in range(25):
    model.train()
    optimizer.zero_grad()
    loss = F.nll_loss(model((features, adjacency))[:20], labels[:20])
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        value = F.nll_loss(model((features, adjacency))[20:], labels[20:]).item()
    print(epoch, loss.item(), value)
    best, patience = (value, 0) if value < best else (best, patience + 1)
    if patience == 4:
        break
