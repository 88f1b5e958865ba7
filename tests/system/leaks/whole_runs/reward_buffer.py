# Thread: hsahovic/poke-env#590 "Potential memory leak from EnvPlayer".
# Pattern: a dict keyed by the battle object remembers each battle's last value for the shaped reward;
# finished battles are never deleted from it, and each battle keeps its turns' observations.
# Expected: the assignment into `_reward_buffer`, holder `_reward_buffer`.
import memagent
import torch
import torch.nn.functional as F
from torch import nn


class Battle:
    def __init__(self, tag):
        self.battle_tag = tag
        self.turn = 0
        self.finished = False
        self.observations = []

    def play(self, action):
        self.turn += 1
        self.observations.append(torch.randn(12, 640))
        self.finished = self.turn >= 5
        return self.observations[-1]


class EnvPlayer:
    def __init__(self):
        self._reward_buffer = {}
        self._count = 0
        self.current_battle = None

    def reset(self):
        self._count += 1
        self.current_battle = Battle(f"battle-gen8-{self._count}")
        return self.current_battle.play(0)

    def step(self, action):
        observation = self.current_battle.play(action)
        return (
            observation,
            self.reward_computing_helper(self.current_battle),
            self.current_battle.finished,
        )

    def reward_computing_helper(self, battle, *, starting_value=0.0):
        if battle not in self._reward_buffer:
            self._reward_buffer[battle] = starting_value  # LEAK any _reward_buffer
        current_value = float(battle.observations[-1].mean()) * 3
        to_return = current_value - self._reward_buffer[battle]
        self._reward_buffer[battle] = current_value  # LEAK any _reward_buffer
        return to_return


class DuelingNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(640, 32), nn.ELU(), nn.Flatten(0), nn.Linear(12 * 32, 128), nn.ELU()
        )
        self.value = nn.Linear(128, 1)
        self.advantage = nn.Linear(128, 9)

    def forward(self, x):
        h = self.body(x)
        a = self.advantage(h)
        return self.value(h) + a - a.mean()


net = DuelingNet()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
memagent.attach(net, optimizer, name="poke")
env = EnvPlayer()
obs = env.reset()
for t in range(800):
    q = net(obs)
    action = int(q.argmax())
    obs, reward, done = env.step(action)
    with torch.no_grad():
        target = reward + (0.0 if done else 0.95) * net(obs).max()
    loss = F.mse_loss(q[action], target)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if done:
        obs = env.reset()
