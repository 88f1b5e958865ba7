"""Words from a list: a generator with a seed, an MLP, raw parameters, and sampling."""
import random

import torch
import torch.nn.functional as F

random.seed(42)
g = torch.Generator().manual_seed(2147483647)
words = ["".join(random.choice("abcde") for _ in range(random.randint(2, 6))) for _ in range(60)]
stoi = {c: i + 1 for i, c in enumerate("abcde")} | {".": 0}
X, Y = [], []
for word in words:
    context = [0, 0, 0]
    for char in word + ".":
        X.append(context)
        Y.append(stoi[char])
        context = context[1:] + [stoi[char]]
X, Y = torch.tensor(X), torch.tensor(Y)
C = torch.randn((6, 4), generator=g)
W1, b1 = torch.randn((12, 20), generator=g), torch.randn(20, generator=g)
W2, b2 = torch.randn((20, 6), generator=g) * 0.01, torch.zeros(6)
parameters = [C, W1, b1, W2, b2]
for p in parameters:
    p.requires_grad = True
for i in range(40):
    ix = torch.randint(0, X.shape[0], (16,), generator=g)
    h = torch.tanh(C[X[ix]].view(-1, 12) @ W1 + b1)
    loss = F.cross_entropy(h @ W2 + b2, Y[ix])
    for p in parameters:
        p.grad = None
    loss.backward()
    for p in parameters:
        p.data += -(0.1 if i < 30 else 0.01) * p.grad
    print(i, loss.item())
for _ in range(3):
    out, context = [], [0, 0, 0]
    while len(out) < 20:
        probs = F.softmax(torch.tanh(C[torch.tensor([context])].view(1, -1) @ W1 + b1) @ W2 + b2, 1)
        ix = torch.multinomial(probs, 1, generator=g).item()
        context = context[1:] + [ix]
        if ix == 0:
            break
        out.append("abcde"[ix - 1])
    print("".join(out), random.random())
