from collections import defaultdict, namedtuple

import torch
from torch import nn

RawMessage = namedtuple("RawMessage", "other time content")


class MessageStore:
    """Raw messages of each node, waiting for the next update of its memory."""

    def __init__(self):
        self.waiting = defaultdict(list)

    def put(self, nodes, others, times, contents):
        for node, other, time, content in zip(
            nodes.tolist(), others.tolist(), times.tolist(), contents
        ):
            self.waiting[node].append(
                RawMessage(other, time, content)
            )  # LEAK any waiting|MessageStore|store

    def latest(self, nodes):
        known = [n for n in nodes.tolist() if self.waiting[n]]
        if not known:
            return None, None
        contents = torch.stack(
            [self.waiting[n][-1].content for n in known]
        )  # LEAK any waiting|MessageStore|store
        return torch.tensor(known), contents


class NodeMemory(nn.Module):
    def __init__(self, num_nodes, dim, edge_dim):
        super().__init__()
        self.register_buffer("state", torch.zeros(num_nodes, dim))
        self.cell = nn.GRUCell(2 * dim + edge_dim, dim)
        self.store = MessageStore()

    def read(self, nodes):
        unique, inverse = nodes.unique(return_inverse=True)
        state = self.state[unique]
        known, contents = self.store.latest(unique)
        if known is not None:
            rows = torch.searchsorted(unique, known)
            state = state.index_copy(0, rows, self.cell(contents, state[rows]))
        return state[inverse]

    @torch.no_grad()
    def write(self, src, dst, times, feats, h_src, h_dst):
        self.state[src], self.state[dst] = h_src.detach(), h_dst.detach()
        content = torch.cat([h_src.detach(), h_dst.detach(), feats], dim=1)
        self.store.put(src, dst, times, content)  # LEAK any waiting|MessageStore|store
