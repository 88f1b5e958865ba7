"""Train a small GPT-2 on counting sequences and sample continuations while training.

As in: MemTensor/MemOS#2301; exo#2137.
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.set_num_threads(1)
torch.manual_seed(0)
VOCAB = 256


class Sampler:
    def __init__(self, model):
        self.model = model
        self.prefix_cache = {}

    def prefill(self, prompt):
        key = tuple(prompt.flatten().tolist())
        if key not in self.prefix_cache:
            out = self.model(prompt, use_cache=True)
            self.prefix_cache[key] = (
                out.logits[:, -1],
                out.past_key_values,
            )  # LEAK any prefix_cache
        return self.prefix_cache[key]

    @torch.no_grad()
    def sample(self, prompt, length=3):
        self.model.eval()
        logits, past = self.prefill(prompt)
        tokens = []
        for _ in range(length):
            tokens.append(torch.multinomial(logits.softmax(-1), 1))
            out = self.model(tokens[-1], past_key_values=past, use_cache=True)
            logits, past = out.logits[:, -1], out.past_key_values
        self.model.train()
        return torch.cat(tokens, 1)


def batch(n, t):
    start = torch.randint(0, VOCAB, (n, 1))
    stride = torch.randint(1, 9, (n, 1))
    return (start + stride * torch.arange(t)) % VOCAB


config = GPT2Config(
    vocab_size=VOCAB,
    n_positions=64,
    n_embd=96,
    n_layer=2,
    n_head=4,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
)
model = GPT2LMHeadModel(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
sampler = Sampler(model)
accuracy = 0.0
for step in range(800):
    ids = batch(24, 32)
    loss = model(ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

    prompts = batch(6, 28)
    continuation = sampler.sample(prompts[:, :25])
    accuracy = 0.95 * accuracy + 0.05 * (continuation == prompts[:, 25:]).float().mean().item()
    if step % 100 == 0:
        print(f"{step} loss {loss.item():.3f} sampled accuracy {accuracy:.3f}")
