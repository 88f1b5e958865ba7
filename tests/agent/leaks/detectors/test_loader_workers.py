"""Growth of DataLoader workers, and the line that causes it."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, Dataset

from memagent.leaks.detectors.loader_workers import (
    bytes_per_step,
    private_bytes_by_worker,
    suspects_in_workers,
)


class Names(Dataset):
    """Reads a long list of Python objects, and keeps nothing."""

    def __init__(self):
        self.names = [f"sample {number}" for number in range(2000)]

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return len(self.names[index])


class Remembering(Names):
    def __getitem__(self, index):
        self.names.append(str(index))
        return index


def first_holder(dataset):
    loop = iter(DataLoader(dataset, batch_size=4, num_workers=1))
    try:
        next(loop)
        assert len(private_bytes_by_worker()) == 1
        return suspects_in_workers(1000)[0]
    finally:
        loop._shutdown_workers()


def test_only_workers_present_at_both_snapshots_count():
    assert bytes_per_step({1: 100, 2: 50}, {1: 400, 3: 9000}, 10) == 30


def test_a_line_that_retains_objects_is_named():
    suspect = first_holder(Remembering())
    assert (suspect.kind, suspect.function) == ("worker", "Remembering.__getitem__")
    assert suspect.line == Remembering.__getitem__.__code__.co_firstlineno + 1


def test_a_list_that_workers_only_read_is_copy_on_write():
    suspect = first_holder(Names())
    assert suspect.kind == "copy_on_write" and suspect.holder.startswith(
        "Names.names: list of 2000"
    )
    assert suspect.line == Names.__init__.__code__.co_firstlineno + 1


def test_there_are_no_suspects_without_workers():
    assert private_bytes_by_worker() == {} and suspects_in_workers(10**9) == []
    assert torch.zeros(1).item() == 0
