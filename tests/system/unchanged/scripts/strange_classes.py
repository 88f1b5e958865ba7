"""Models and optimizers with __getattr__, __slots__, __eq__, properties and overridden methods."""
import torch


class Chatty(torch.nn.Module):
    """Prints each look at what it does not have, and each walk over its parameters."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 2)

    def __getattr__(self, name):
        if name not in ("net", "_parameters", "_modules", "_buffers"):
            print("looked for", name)
        return super().__getattr__(name)

    def parameters(self, recurse=True):
        print("parameters")
        return super().parameters(recurse)

    def named_parameters(self, *args, **kwargs):
        print("named_parameters")
        return super().named_parameters(*args, **kwargs)

    def modules(self):
        print("modules")
        return super().modules()

    def buffers(self, recurse=True):
        print("buffers")
        return super().buffers(recurse)

    def named_modules(self, *args, **kwargs):
        print("named_modules")
        return super().named_modules(*args, **kwargs)

    def children(self):
        print("children")
        return super().children()

    def state_dict(self, *args, **kwargs):
        print("state_dict")
        return super().state_dict(*args, **kwargs)

    @property
    def device(self):
        print("device")
        return torch.device("cpu")

    def register_forward_hook(self, *args, **kwargs):
        raise TypeError("no hooks here")

    register_forward_pre_hook = register_forward_hook

    def forward(self, x):
        return self.net(x)


class Strange(torch.optim.SGD):
    __slots__ = ("extra",)

    def __eq__(self, other):
        return isinstance(other, Strange)

    __hash__ = None

    def __getattr__(self, name):
        print("optimizer looked for", name)
        raise AttributeError(name)

    def state_dict(self):
        print("optimizer state_dict")
        return super().state_dict()

    def register_step_pre_hook(self, hook):
        raise TypeError("no hooks here")

    register_step_post_hook = register_step_pre_hook

    def __bool__(self):
        return False

    def __len__(self):
        return 0


torch.manual_seed(51)
model = Chatty()
optimizer = Strange(model.net.parameters(), lr=0.1)
optimizer.extra = model
# memagent.attach(model, optimizer)
for step in range(40):
    loss = model(torch.randn(4, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
print(optimizer == Strange(model.net.parameters()), bool(optimizer))
