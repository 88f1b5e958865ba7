# Thread: ray-project/ray#31965 "RLLib: ExternalEnv concurrent episode leaking issue".
# Pattern: an episode is registered at its start and removed by end_episode(). The client ends by
# truncation, which calls log_returns only. Each episode has a queue with its last observations.
# Expected: the assignment in start_episode, holder `_episodes`.
import queue
import random
import uuid

import memagent
import torch
from torch import nn


class _ExternalEnvEpisode:
    def __init__(self, episode_id):
        self.episode_id = episode_id
        self.data_queue = queue.Queue(8)
        self.prev_observation = None
        self.cur_reward = 0.0

    def get_action(self, observation, policy):
        if self.data_queue.full():
            self.data_queue.get()
        self.data_queue.put({"obs": observation, "reward": self.cur_reward})
        self.prev_observation = observation
        with torch.no_grad():
            return int(policy(observation).argmax())


class ExternalEnv:
    def __init__(self, policy):
        self.policy = policy
        self._episodes = {}
        self._finished = set()
        self.returns = 0.0

    def start_episode(self, episode_id=None):
        if episode_id is None:
            episode_id = uuid.uuid4().hex
        if episode_id in self._finished:
            raise ValueError("already completed")
        self._episodes[episode_id] = _ExternalEnvEpisode(episode_id)  # LEAK any _episodes
        return episode_id

    def get_action(self, episode_id, observation):
        return self._episodes[episode_id].get_action(observation, self.policy)

    def log_returns(self, episode_id, reward):
        self._episodes[episode_id].cur_reward += reward
        self.returns += reward

    def end_episode(self, episode_id):
        self._finished.add(self._episodes.pop(episode_id).episode_id)

    def poll(self):
        newest = list(self._episodes.values())[-1]
        return newest.prev_observation


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4096, 32), nn.Tanh())
        self.pi = nn.Linear(32, 6)
        self.vf = nn.Linear(32, 1)

    def forward(self, obs):
        return self.pi(self.trunk(obs))


policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=5e-5)
memagent.attach(policy, optimizer)
env = ExternalEnv(policy)
for iteration in range(700):
    if iteration % 3 == 0:
        eid = env.start_episode()
    for _ in range(4):
        env.get_action(eid, torch.randn(4096))
        env.log_returns(eid, random.random())
    obs = env.poll()
    logits = policy(obs)
    value = policy.vf(policy.trunk(obs))
    loss = (
        -torch.log_softmax(logits, -1).max() + (value - env.returns / (iteration + 1)).pow(2).mean()
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
