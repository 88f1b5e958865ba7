"""Transformer with a length curriculum: 32 tokens at first, 256 at the end.

Masks and rotary tables are cached per length (lucidrains/rotary-embedding-torch#15); lengths are finite.
"""
import torch
from torch import nn

MIN_LEN, MAX_LEN, STRIDE, DIM, HEADS = 32, 256, 8, 64, 4


class RotaryCache:
    """cos, sin and a causal mask per sequence length."""

    def __init__(self):
        self._tables: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def __call__(self, n):
        if n not in self._tables:
            inv = 1.0 / (10000 ** (torch.arange(0, DIM // HEADS, 2) / (DIM // HEADS)))
            angle = torch.outer(torch.arange(n), inv).repeat_interleave(2, -1)
            mask = torch.full((HEADS, n, n), float("-inf")).triu(1)
            self._tables[n] = (angle.cos(), angle.sin(), mask)
        return self._tables[n]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.ff = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)

    def forward(self, x, tables):
        cos, sin, mask = tables
        b, n, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        q, k = (t * cos + torch.stack([-t[..., 1::2], t[..., ::2]], -1).flatten(-2) * sin for t in (q, k))
        att = (q @ k.transpose(-1, -2) / 4 + mask).softmax(-1)
        x = x + self.proj((att @ v).transpose(1, 2).reshape(b, n, DIM))
        return x + self.ff(self.n2(x))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.head, self.rotary = nn.Embedding(64, DIM), nn.Linear(DIM, 64), RotaryCache()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, tokens):
        x, tables = self.emb(tokens), self.rotary(tokens.shape[1])
        for block in self.blocks:
            x = block(x, tables)
        return self.head(x)


torch.manual_seed(6)
torch.set_num_threads(1)
model = LM()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(460):
    length = min(MAX_LEN, MIN_LEN + STRIDE * (step // 14))
    tokens = torch.randint(0, 64, (6, length + 1))
    loss = nn.functional.cross_entropy(model(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 0:
        print(step, length, f"{loss.item():.3f}")
