"""Train agents that share a mixing network, with statistics by name."""

from collections import defaultdict

import torch
from torch import nn


class Logger:
    def __init__(self) -> None:
        self.stats = defaultdict(list)

    def log_stat(self, key: str, value, t: int) -> None:
        self.stats[key].append((t, value))

    def recent(self, key: str) -> float:
        window = self.stats[key][-5:]
        return float(sum(torch.as_tensor(value).mean().detach() for _, value in window)) / len(window)


class Learner:
    def __init__(self, agents: int, logger: Logger) -> None:
        self.agents = agents
        self.logger = logger
        self.policy = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 6))
        self.mixer = nn.Linear(agents, 1)
        parameters = [*self.policy.parameters(), *self.mixer.parameters()]
        self.optimizer = torch.optim.RMSprop(parameters, lr=5e-4)

    def train(self, batch, t: int) -> None:
        values = self.policy(batch["observations"])
        chosen = values.gather(-1, batch["actions"].unsqueeze(-1)).squeeze(-1)
        total = self.mixer(chosen).squeeze(-1)
        td_error = total - batch["returns"]
        loss = (td_error**2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.logger.log_stat("td_error_abs", td_error.abs(), t)
        self.logger.log_stat("q_taken", values.detach().flatten(0, 1).max(-1).values, t)
        self.logger.log_stat("loss", loss.item(), t)


def main() -> None:
    torch.manual_seed(0)
    logger = Logger()
    learner = Learner(8, logger)
    for t in range(500):
        batch = {
            "observations": torch.randn(512, 8, 32),
            "actions": torch.randint(0, 6, (512, 8)),
            "returns": torch.randn(512),
        }
        learner.train(batch, t)
        if t % 100 == 99:
            print(t, logger.recent("loss"), logger.recent("td_error_abs"))


main()
