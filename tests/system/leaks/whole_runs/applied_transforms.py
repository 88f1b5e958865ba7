# Thread: TorchIO-project/torchio#1222 "Memory leak with TorchIO 0.20.1" and the history of applied
# transforms that a Subject records.
# Pattern: 40 subjects stay in memory, and the transform adds itself with its parameters (a bias field)
# to the history of the subject itself, not of a copy. No single list grows fast: each subject's does,
# once per epoch.
# Expected: the append in Subject.add_transform, holder `applied_transforms`.
import random

import memagent
import torch
from torch import nn


class Subject(dict):
    def __init__(self, **images):
        super().__init__(**images)
        self.applied_transforms = []

    def add_transform(self, transform, parameters):
        self.applied_transforms.append(
            (transform.__class__.__name__, parameters)
        )  # LEAK any applied_transforms


class Transform:
    def __call__(self, subject):
        parameters = self.get_parameters(subject)
        result = self.apply(subject, parameters)
        subject.add_transform(self, parameters)
        return result


class RandomBiasField(Transform):
    def get_parameters(self, subject):
        coarse = torch.rand(1, 1, 4, 4, 4)
        field = nn.functional.interpolate(coarse, size=subject["t1"].shape[-3:], mode="trilinear")[
            0
        ]  # ALLOCATES
        return {"field": field}

    def apply(self, subject, parameters):
        return subject["t1"] * (1 + 0.3 * parameters["field"])


class SubjectsDataset(torch.utils.data.Dataset):
    def __init__(self, n, transform):
        self.subjects = [Subject(t1=torch.rand(1, 24, 24, 24), label=i % 3) for i in range(n)]
        self.transform = transform

    def __len__(self):
        return len(self.subjects)

    def __getitem__(self, index):
        subject = self.subjects[index]
        return self.transform(subject), subject["label"]


def main():
    random.seed(1)
    loader = torch.utils.data.DataLoader(
        SubjectsDataset(40, RandomBiasField()), batch_size=4, shuffle=True
    )
    model = nn.Sequential(
        nn.Conv3d(1, 4, 3, 2),
        nn.InstanceNorm3d(4),
        nn.ReLU(),
        nn.Conv3d(4, 8, 3, 2),
        nn.ReLU(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    memagent.attach(model, optimizer)
    for _ in range(80):
        for volume, label in loader:
            loss = nn.functional.cross_entropy(model(volume), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
