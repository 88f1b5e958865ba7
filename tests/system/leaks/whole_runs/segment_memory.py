"""Character model with segment recurrence: attends to the hidden states of earlier segments.

As in: metta PR#1139; discuss.pytorch.org hidden state threads.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

TEXT = (
    "the quick brown fox jumps over the lazy dog while it rains in the valley of the old mill "
    * 200
)
VOCAB = sorted(set(TEXT))
INDEX = {c: i for i, c in enumerate(VOCAB)}


class SegmentBlock(nn.Module):
    def __init__(self, width, heads, reach):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.reach = reach
        self.mems = None

    def _update_mems(self, hidden):
        hidden = hidden.detach()
        if self.mems is None:
            self.mems = hidden
        else:
            self.mems = torch.cat([self.mems, hidden], dim=1)  # LEAK any mems

    def forward(self, x):
        past = self.mems[:, -self.reach :] if self.mems is not None else x[:, :0]
        context = torch.cat([past, x], dim=1)
        mask = torch.ones(x.size(1), context.size(1), dtype=torch.bool).triu(past.size(1) + 1)
        attended, _ = self.attention(
            self.norm1(x), context, context, attn_mask=mask, need_weights=False
        )
        self._update_mems(x)
        x = x + attended
        return x + self.mlp(self.norm2(x))


class CharModel(nn.Module):
    def __init__(self, width=96, layers=2):
        super().__init__()
        self.embed = nn.Embedding(len(VOCAB), width)
        self.blocks = nn.ModuleList(SegmentBlock(width, 4, reach=32) for _ in range(layers))
        self.head = nn.Linear(width, len(VOCAB))

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def segments(batch, length, steps):
    data = torch.tensor([INDEX[c] for c in TEXT])
    rows = data[: len(data) // batch * batch].view(batch, -1)
    position = 0
    for _ in range(steps):
        if position + length + 1 > rows.size(1):
            position = 0
        yield rows[:, position : position + length], rows[:, position + 1 : position + length + 1]
        position += length


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=700)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = CharModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step, (x, y) in enumerate(segments(8, 32, args.steps)):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
