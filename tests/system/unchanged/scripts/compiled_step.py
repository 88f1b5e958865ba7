# process: own
# stderr: has times
"""A compiled step of torch's and of an own optimizer, the own one in one whole graph."""
import torch
from torch._dynamo.utils import counters


class Own(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    def step(self, closure=None):
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p -= group["lr"] * p.grad


torch.manual_seed(47)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
own, adam = Own(model.parameters()), torch.optim.Adam(model.parameters(), foreach=False)
# memagent.attach(model, [own, adam])
graphs = []


def backend(graph, inputs):
    graphs.append([getattr(node.target, "__name__", node.target) for node in graph.graph.nodes if node.op.startswith("call")])
    return graph.forward


whole = torch.compile(own.step, backend=backend, fullgraph=True)
parts = torch.compile(adam.step, backend=backend)
for index in range(5):
    loss = model(torch.randn(4, 4)).pow(2).mean()
    loss.backward()
    (whole if index % 2 else parts)()
    model.zero_grad()
    print(index, loss.item())
print(len(graphs), *graphs, counters["stats"])
