"""A GPT with decayed and other parameters, micro steps, clipping, a cosine and a checkpoint dict."""
import inspect
import math
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class GPTConfig:
    block_size: int = 8
    vocab_size: int = 20
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = 16


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(c.n_embd), nn.LayerNorm(c.n_embd)
        self.qkv, self.proj = nn.Linear(c.n_embd, 3 * c.n_embd), nn.Linear(c.n_embd, c.n_embd)
        self.mlp = nn.Sequential(nn.Linear(c.n_embd, 32), nn.GELU(), nn.Linear(32, c.n_embd))
        self.n_head = c.n_head

    def forward(self, x):
        B, T, C = x.shape
        heads = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.qkv(self.ln_1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.wte, self.wpe = nn.Embedding(config.vocab_size, config.n_embd), nn.Embedding(config.block_size, config.n_embd)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(x)
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))

    def configure_optimizers(self, weight_decay, lr):
        params = {n: p for n, p in self.named_parameters() if p.requires_grad}
        groups = [
            {"params": [p for p in params.values() if p.dim() >= 2], "weight_decay": weight_decay},
            {"params": [p for p in params.values() if p.dim() < 2], "weight_decay": 0.0},
        ]
        print("fused" in inspect.signature(torch.optim.AdamW).parameters, [len(g["params"]) for g in groups])
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))

    @torch.no_grad()
    def generate(self, idx, count):
        for _ in range(count):
            logits, _ = self(idx[:, -self.config.block_size :])
            idx = torch.cat((idx, torch.multinomial(F.softmax(logits[:, -1], -1), 1)), 1)
        return idx


torch.manual_seed(1337)
data = torch.randint(0, 20, (400,))


def get_batch():
    ix = torch.randint(len(data) - 8, (4,))
    return torch.stack([data[i : i + 8] for i in ix]), torch.stack([data[i + 1 : i + 9] for i in ix])


model = GPT(GPTConfig())
optimizer = model.configure_optimizers(0.1, 1e-3)
scaler = torch.amp.GradScaler("cpu", enabled=False)
# memagent.attach(model, optimizer)
for iteration in range(10):
    lr = 1e-4 + 0.5 * (1 + math.cos(math.pi * iteration / 10)) * 9e-4
    for group in optimizer.param_groups:
        group["lr"] = lr
    if iteration % 5 == 0:
        model.eval()
        with torch.no_grad():
            print("eval", sum(model(*get_batch())[1].item() for _ in range(3)) / 3)
        model.train()
        checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "model_args": asdict(model.config), "iter_num": iteration}
        torch.save(checkpoint, "ckpt.pt")
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(*get_batch())[1] / 2
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    print(iteration, loss.item(), norm.item())
model.eval()
print(model.generate(torch.zeros((1, 1), dtype=torch.long), 12).tolist())
