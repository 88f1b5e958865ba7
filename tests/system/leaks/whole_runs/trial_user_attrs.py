# Thread: optuna/optuna#3050 "Increasing memory during study leading to OOM".
# Pattern: a study with in-memory storage; each trial (15 steps) puts its predictions into a user
# attribute. The storage replaces the frozen trial by a changed copy in the study's list.
# Expected: `study.trials.append(...)` in create_new_trial, the assignment in _set_trial, or the
# user_attrs update; holder `trials`, `user_attrs` or `_studies`.
import copy
import random

import memagent
import torch
from torch import nn


class FrozenTrial:
    def __init__(self, number):
        self.number = number
        self.params = {}
        self.value = None
        self.user_attrs = {}


class _StudyInfo:
    def __init__(self):
        self.trials = []


class InMemoryStorage:
    def __init__(self):
        self._studies = {0: _StudyInfo()}

    def create_new_trial(self, study_id):
        number = len(self._studies[study_id].trials)
        self._studies[study_id].trials.append(
            FrozenTrial(number)
        )  # LEAK any trials|user_attrs|_studies
        return number

    def _set_trial(self, study_id, number, trial):
        self._studies[study_id].trials[number] = trial  # LEAK any trials|user_attrs|_studies

    def set_trial_user_attr(self, study_id, number, key, value):
        trial = copy.copy(self._studies[study_id].trials[number])
        trial.user_attrs = {**trial.user_attrs, key: value}  # LEAK any trials|user_attrs|_studies
        self._set_trial(study_id, number, trial)

    def set_value(self, study_id, number, value):
        trial = copy.copy(self._studies[study_id].trials[number])
        trial.value = value
        self._set_trial(study_id, number, trial)


class Trial:
    def __init__(self, study, number):
        self.study, self.number = study, number

    def suggest_float(self, name, low, high):
        return random.uniform(low, high)

    def set_user_attr(self, key, value):
        self.study._storage.set_trial_user_attr(0, self.number, key, value)


class Study:
    def __init__(self):
        self._storage = InMemoryStorage()

    def optimize(self, objective, n_trials):
        for _ in range(n_trials):
            number = self._storage.create_new_trial(0)
            self._storage.set_value(0, number, objective(Trial(self, number)))


model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
memagent.attach(model, optimizer)
X = torch.randn(2048, 64)
Y = torch.sin(X)


def objective(trial):
    for group in optimizer.param_groups:
        group["lr"] = trial.suggest_float("lr", 0.01, 0.3)
    for _ in range(15):
        index = torch.randint(0, 2048, (128,))
        loss = (model(X[index]) - Y[index]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        predictions = model(X)  # ALLOCATES
    trial.set_user_attr("predictions", predictions)
    return float((predictions - Y).pow(2).mean())


study = Study()
study.optimize(objective, n_trials=90)
