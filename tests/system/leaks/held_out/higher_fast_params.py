"""A functional model appends its parameters after each inner step, although nobody asked for higher
gradients, and the one functional model serves all episodes.
https://github.com/facebookresearch/higher/pull/48"""

import sys

import torch
from torch import nn
from torch.func import functional_call

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150


class FunctionalModel:
    def __init__(self, module):
        self.module = module
        self._fast_params = []
        self.track_higher_grads = False

    @property
    def fast_params(self):
        return self._fast_params[-1]

    def update_params(self, params):
        if not self.track_higher_grads:
            params = {k: p.detach().requires_grad_() for k, p in params.items()}
        self._fast_params.append(params)  # LEAK any _fast_params

    def start(self):
        self.update_params({k: p.clone() for k, p in self.module.named_parameters()})

    def __call__(self, x):
        return functional_call(self.module, self.fast_params, (x,))


class DifferentiableSGD:
    def __init__(self, lr):
        self.lr = lr

    def step(self, loss, fmodel):
        names, values = zip(*fmodel.fast_params.items())
        grads = torch.autograd.grad(loss, values)
        fmodel.update_params({n: v - self.lr * g for n, v, g in zip(names, values, grads)})


net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
meta_optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
inner = DifferentiableSGD(0.05)
fmodel = FunctionalModel(net)
for episode in range(STEPS):
    amplitude, phase = torch.rand(2).tolist()
    x = torch.rand(20, 1) * 10 - 5
    y = amplitude * torch.sin(x + phase)
    fmodel.start()
    for _ in range(3):
        inner.step((fmodel(x[:10]) - y[:10]).pow(2).mean(), fmodel)
    outer = (fmodel(x[10:]) - y[10:]).pow(2).mean()
    gradients = torch.autograd.grad(outer, list(fmodel.fast_params.values()))
    for p, g in zip(net.parameters(), gradients):
        p.grad = g
    meta_optimizer.step()
