"""Federated averaging of three clients; the weights travel as an ONNX message.

As in: protocolbuffers/protobuf#10294.
"""

import numpy as np
import onnx
import torch
from torch import nn

torch.set_num_threads(1)


def network():
    return nn.Sequential(
        nn.Linear(80, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 6)
    )


class Channel:
    """One message for each tensor, filled again every round."""

    def __init__(self, model):
        self.message = onnx.GraphProto(name="weights")  # LEAK any message|slot|native
        for name, value in model.state_dict().items():
            self.message.initializer.add(
                name=name, dims=value.shape, data_type=onnx.TensorProto.FLOAT
            )

    def send(self, state):
        for slot in self.message.initializer:
            slot.raw_data = state[slot.name].numpy().tobytes()  # LEAK any message|slot|native

    def receive(self):
        return {
            s.name: torch.from_numpy(
                np.frombuffer(s.raw_data, np.float32).reshape(tuple(s.dims)).copy()
            )
            for s in self.message.initializer
        }


class Client:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.model = network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.channel = Channel(self.model)

    def local_step(self, weights):
        self.model.load_state_dict(weights)
        x = torch.randn(8000, 80, generator=self.g)
        y = (x[:, :6] + x[:, 6:12].abs()).argmax(1)
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.channel.send(self.model.state_dict())  # LEAK any message|slot|native
        return loss.item()


torch.manual_seed(0)
clients = [Client(i) for i in range(3)]
weights = {k: v.clone() for k, v in network().state_dict().items()}
for round_number in range(450):
    losses = [c.local_step(weights) for c in clients]
    updates = [c.channel.receive() for c in clients]
    weights = {k: torch.stack([u[k] for u in updates]).mean(0) for k in weights}
    if round_number % 50 == 0:
        print(round_number, f"{np.mean(losses):.4f}")
