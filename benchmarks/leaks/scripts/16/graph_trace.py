"""Infer latent variables, and record what depends on what in the graph of the trace."""

import networkx as nx
import torch
from torch import nn


class Trace:
    def __init__(self) -> None:
        self.graph = nx.DiGraph()

    def sample(self, name: str, value: torch.Tensor, parents: tuple[str, ...] = ()) -> torch.Tensor:
        self.graph.add_node(name, value=value.detach(), is_observed=False)
        self.graph.add_edges_from((parent, name) for parent in parents)
        return value


torch.manual_seed(61)
trace = Trace()
encoder, decoder = nn.Linear(128, 64), nn.Linear(64, 128)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
for step in range(600):
    data = torch.randn(128, 128)
    mean = encoder(data)
    latent = trace.sample(f"z/{step}", mean + torch.randn_like(mean))
    image = trace.sample(f"x/{step}", decoder(latent), (f"z/{step}",))
    loss = nn.functional.mse_loss(image, data) + 0.01 * mean.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
