# requires: safetensors
"""safetensors and state dicts with hooks, metadata and non-persistent buffers."""
import torch
from safetensors.torch import load_file, save_file, save_model


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(4, 4)
        self.register_buffer("mask", torch.ones(4), persistent=False)
        self._register_state_dict_hook(lambda module, state, prefix, metadata: print("hook", prefix, len(state)))

    def get_extra_state(self):
        return {"version": 1}

    def set_extra_state(self, state):
        print(state)

    def forward(self, x):
        return self.a(x) * self.mask


torch.manual_seed(48)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
# memagent.attach(model, optimizer)
for step in range(3):
    model(torch.randn(4, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
state = model.state_dict()
print(list(state), state._metadata)
model.load_state_dict(state)
save_file({k: v for k, v in state.items() if torch.is_tensor(v)}, "model.safetensors", metadata={"step": "3"})
save_model(torch.nn.Linear(2, 2), "linear.safetensors")
print(load_file("model.safetensors")["a.weight"].sum().item())
torch.save(state, "state.pt")
