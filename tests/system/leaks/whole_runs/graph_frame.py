# Thread: dmlc/dgl issues on features left in a graph without `local_scope` (memory grows while training).
# Pattern: the full graph lives as long as the script; each step writes its messages under a new field
# name into the node frame (two files: the frame is a MutableMapping of columns).
# Expected: the assignment in Frame.__setitem__ or the line of the layer that writes the field;
# holder `_columns`, ndata or Frame.
import memagent
import torch
from graph_frame_lib.frame import Graph
from torch import nn


class SAGELayer(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(2 * inputs, outputs)

    def forward(self, graph, h, tag):
        graph.ndata[f"h_{tag}"] = h.detach()  # LEAK any _columns|ndata|Frame|frame
        graph.update_all(f"h_{tag}", "neigh")
        return self.linear(torch.cat([h, graph.ndata["neigh"]], 1))


class SAGE(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([SAGELayer(48, 48), SAGELayer(48, 7)])

    def forward(self, graph, x, step):
        for depth, layer in enumerate(self.layers):
            x = layer(graph, x, f"{step}_{depth}")
            if depth == 0:
                x = torch.relu(x)
        return x


def main():
    nodes, edges = 600, 4000
    graph = Graph(torch.randint(0, nodes, (edges,)), torch.randint(0, nodes, (edges,)), nodes)
    features, labels = torch.randn(nodes, 48), torch.randint(0, 7, (nodes,))
    model = SAGE()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    memagent.attach(model, optimizer)
    for step in range(700):
        dropped = nn.functional.dropout(features, 0.3)
        loss = nn.functional.cross_entropy(model(graph, dropped, step), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
