"""Each evaluation probes a frozen trunk, whose older probes go on to keep their newest output.

# WINDOW 60
"""

import torch


class Probe:
    def __init__(self, module):
        self.seen = None
        module.register_forward_hook(self.keep)  # LEAK any hook|Probe

    def keep(self, module, inputs, output):
        self.seen = output.detach()


trunk = torch.nn.Linear(64, 256).requires_grad_(False)
head = torch.nn.Linear(256, 8)
optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
for step in range(70):
    loss = head(trunk(torch.randn(64, 64)).relu()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 4 == 0:
        probe = Probe(trunk)
        trunk(torch.randn(64, 64))
        print(probe.seen.mean())
