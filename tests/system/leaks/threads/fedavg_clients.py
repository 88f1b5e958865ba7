"""FedAvg simulation in one process, five clients a round.

Compare https://github.com/flwrlabs/flower/issues/700
"""

import copy
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class RoundReport:
    number: int
    losses: list
    updates: list


@dataclass
class ServerState:
    model: nn.Module
    reports: list = field(default_factory=list)
    round: int = 0


class Client:
    def __init__(self, seed):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(2048, 96, generator=g)
        self.y = torch.randint(0, 8, (2048,), generator=g)

    def fit(self, model, optimizer):
        index = torch.randperm(2048)[:768]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(self.x[index]), self.y[index])
        loss.backward()
        optimizer.step()
        update = {k: v.detach().clone() for k, v in model.state_dict().items()}
        return loss.item(), update


class Server:
    def __init__(self, clients, lr=0.1):
        net = nn.Sequential(
            nn.Linear(96, 224), nn.ReLU(), nn.Linear(224, 224), nn.ReLU(), nn.Linear(224, 8)
        )
        self.state = ServerState(net)
        self.clients = clients
        self.local = copy.deepcopy(net)
        self.optimizer = torch.optim.SGD(self.local.parameters(), lr=lr)

    def aggregate(self, updates):
        return {k: torch.stack([u[k] for u in updates]).mean(0) for k in updates[0]}

    def run_round(self):
        losses, updates = [], []
        for client in self.clients:
            self.local.load_state_dict(self.state.model.state_dict())
            loss, update = client.fit(self.local, self.optimizer)
            losses.append(loss)
            updates.append(update)
        self.state.model.load_state_dict(self.aggregate(updates))
        report = RoundReport(self.state.round, losses, updates)
        self.state.reports.append(report)  # LEAK any reports
        self.state.round += 1
        return sum(losses) / len(losses)


def main():
    torch.manual_seed(4)
    torch.set_num_threads(1)
    server = Server([Client(s) for s in range(5)])
    for number in range(40):
        mean_loss = server.run_round()
        if number % 10 == 0:
            print(f"round {number:3d} loss {mean_loss:.3f}")
    best = min(server.state.reports, key=lambda r: sum(r.losses))
    print("best round", best.number)


if __name__ == "__main__":
    main()
