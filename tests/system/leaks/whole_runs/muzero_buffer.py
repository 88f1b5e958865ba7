# Thread: werner-duvaud/muzero-general#157 "RAM memory usage of continuous_self_play keeps growing".
# Pattern: games are in a dict by number; when there are more than the limit, the oldest is deleted by a
# wrong number: `del_id` counts from games played minus dict length, which after a restart (offset 1000)
# is never a key. One game each 6 training steps.
# Expected: the assignment in save_game, holder `buffer`.
import memagent
import numpy
import torch
from torch import nn


class GameHistory:
    def __init__(self):
        self.observation_history = []
        self.action_history = []
        self.reward_history = []
        self.child_visits = []
        self.root_values = []


class ReplayBuffer:
    def __init__(self, initial_checkpoint, config):
        self.config = config
        self.buffer = {}
        self.num_played_games = initial_checkpoint["num_played_games"]
        self.total_samples = 0

    def save_game(self, game_history):
        self.buffer[self.num_played_games] = game_history  # LEAK any buffer
        self.num_played_games += 1
        self.total_samples += len(game_history.root_values)
        if self.config["replay_buffer_size"] < len(self.buffer):
            del_id = self.num_played_games - len(self.buffer) - 1000
            self.buffer.pop(del_id, None)

    def get_batch(self, rng, size):
        keys = list(self.buffer)
        batch = [self.buffer[keys[rng.integers(len(keys))]] for _ in range(size)]
        positions = [rng.integers(len(g.root_values)) for g in batch]
        obs = numpy.stack([g.observation_history[p] for g, p in zip(batch, positions)])
        value = numpy.array([g.root_values[p] for g, p in zip(batch, positions)], dtype="float32")
        policy = numpy.stack([g.child_visits[p] for g, p in zip(batch, positions)])
        return torch.from_numpy(obs), torch.from_numpy(value), torch.from_numpy(policy)


class SelfPlay:
    def __init__(self, seed):
        self.rng = numpy.random.default_rng(seed)

    def play_game(self, max_moves=30):
        history = GameHistory()
        for _ in range(max_moves):
            history.observation_history.append(
                self.rng.standard_normal((6, 24, 24)).astype("float32")
            )  # ALLOCATES
            history.action_history.append(int(self.rng.integers(9)))
            history.reward_history.append(0.0)
            history.child_visits.append(self.rng.dirichlet(numpy.ones(9)).astype("float32"))
            history.root_values.append(float(self.rng.uniform(-1, 1)))
        return history


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.representation = nn.Sequential(
            nn.Conv2d(6, 8, 3, 2),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.LazyLinear(64),
            nn.ReLU(),
        )
        self.value = nn.Linear(64, 1)
        self.policy = nn.Linear(64, 9)

    def forward(self, x):
        h = self.representation(x)
        return self.value(h).squeeze(-1), self.policy(h)


def main():
    config = {"replay_buffer_size": 12, "batch_size": 16}
    buffer = ReplayBuffer({"num_played_games": 1000}, config)
    actor = SelfPlay(0)
    network = Network()
    network(torch.zeros(1, 6, 24, 24))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    memagent.attach(network, optimizer)
    rng = numpy.random.default_rng(1)
    for training_step in range(700):
        if training_step % 6 == 0:
            buffer.save_game(actor.play_game())
        obs, target_value, target_policy = buffer.get_batch(rng, config["batch_size"])
        value, policy = network(obs)
        loss = (value - target_value).pow(2).mean() + nn.functional.cross_entropy(
            policy, target_policy
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
