"""Operators whose output length depends on values, compared with real runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from memagent.estimator.trace.data_dependent_ops import EVEN_EXPERTS_NOTE, WORST_CASE_NOTE
from memagent.estimator.trace.tracing import record_trace
from tests.agent.estimator.trace.real_steps import real_trace

TOKENS, EXPERTS, BEST = 64, 4, 2
ROWS = torch.rand(TOKENS, 64)


class Mixture(nn.Module):
    """Routes tokens to their two best experts; `balanced` routes evenly, to compare a real run."""

    def __init__(self, *, one_hot: bool = False) -> None:
        super().__init__()
        self.router = nn.Linear(64, EXPERTS)
        self.one_hot = one_hot
        self.experts = nn.ModuleList(nn.Linear(64, 64) for _ in range(EXPERTS))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        places = torch.arange(TOKENS, device=rows.device)[:, None] + torch.arange(
            EXPERTS, device=rows.device
        )
        balanced = functional.softmax(self.router(rows), -1) * 0.001 + (places % EXPERTS)
        shares, chosen = balanced.topk(BEST, dim=-1)
        total = torch.zeros_like(rows)
        hits = functional.one_hot(chosen, EXPERTS).permute(2, 0, 1) if self.one_hot else None
        for number, expert in enumerate(self.experts):
            token, place = torch.where(hits[number] if hits is not None else chosen == number)
            total = total.index_add(0, token, expert(rows[token]) * shares[token, place, None])
        return total.mean()


@pytest.mark.parametrize("one_hot", [False, True])
def test_experts_get_equal_shares_of_the_tokens(one_hot):
    real = real_trace(lambda: Mixture(one_hot=one_hot), ROWS).summary()
    trace = record_trace(lambda: Mixture(one_hot=one_hot), ROWS, device="cpu")
    assert EVEN_EXPERTS_NOTE in trace.notes
    assert trace.summary().phase_peak_bytes == real.phase_peak_bytes
    assert record_trace(lambda: Mixture(one_hot=one_hot), ROWS).device_rules == "cuda"


class Masked(nn.Module):
    """Selects rows by a mask, in the given `way`."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)
        self.way = way

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden, mask = self.inner(rows), rows[:, 0] > -1  # selects everything in the real run
        if self.way == "index":
            return hidden[mask].square().mean()
        if self.way == "nonzero":
            return hidden[mask.nonzero().squeeze(-1)].square().mean()
        if self.way == "write":
            changed = hidden.clone()
            changed[mask] = 0.0 * hidden
            return changed.mean()
        return hidden.masked_select(mask[:, None]).square().mean()


@pytest.mark.parametrize("way", ["index", "nonzero", "write", "select"])
def test_an_unknown_mask_counts_as_true_everywhere(way):
    real = real_trace(lambda: Masked(way), ROWS).summary()
    trace = record_trace(lambda: Masked(way), ROWS, device="cpu")
    assert any(note.startswith(WORST_CASE_NOTE.split("{")[0]) for note in trace.notes)
    assert trace.summary().phase_peak_bytes == real.phase_peak_bytes


@pytest.mark.parametrize("way", ["unique", "consecutive"])
def test_all_values_may_be_different(way):
    class Counted(nn.Linear):
        def forward(self, rows):
            kinds = torch.unique(rows) if way == "unique" else torch.unique_consecutive(rows)
            return super().forward(rows).mean() + kinds.sum()

    trace = record_trace(lambda: Counted(64, 64), ROWS, device="cpu")
    assert TOKENS * 64 * 4 in [event.size_bytes for event in trace.events if "unique" in event.op]


def test_the_states_of_ctc_are_those_of_the_longest_target():
    class Spoken(nn.Linear):
        def forward(self, rows, targets, lengths, sizes):
            scores = super().forward(rows).view(16, 4, 64).log_softmax(-1)
            return functional.ctc_loss(scores, targets, lengths, sizes)

    inputs = (ROWS, torch.ones(4, 6).long(), torch.full((4,), 16), torch.full((4,), 6))
    real = real_trace(lambda: Spoken(64, 64), inputs).summary()
    assert (
        record_trace(lambda: Spoken(64, 64), inputs, device="cpu").summary().phase_peak_bytes
        == real.phase_peak_bytes
    )


def test_tensors_compare_as_equal():
    class Asks(nn.Linear):
        def forward(self, rows):
            assert torch.equal(rows, rows.clone())
            return super().forward(rows).mean()

    trace = record_trace(lambda: Asks(64, 64), ROWS, device="cpu")
    assert any("the answer was yes" in note for note in trace.notes)


class Chooses(nn.Linear):
    """Keeps the rows whose best class is the label, or class 1."""

    def __init__(self, *, with_labels: bool) -> None:
        super().__init__(64, EXPERTS)
        self.with_labels = with_labels

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        best = super().forward(rows).max(1)[1]
        labels = torch.arange(TOKENS, device=rows.device) % EXPERTS
        return super().forward(rows[best == (labels if self.with_labels else 1)]).mean()


def test_a_choice_that_is_compared_with_labels_may_be_right_everywhere():
    trace = record_trace(lambda: Chooses(with_labels=True), ROWS, device="cpu")
    assert EVEN_EXPERTS_NOTE not in trace.notes
    trace = record_trace(lambda: Chooses(with_labels=False), ROWS, device="cpu")
    assert EVEN_EXPERTS_NOTE in trace.notes


class VisitsPlaces(nn.Linear):
    """Runs on the row of each place that a mask has, and adds up what it read of the places."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        places = torch.greater(rows[:8], 0).nonzero()
        visited = [
            (int(place[0]), int(place[1])) for place in places if not bool(place[0] == len(rows))
        ]
        assert len(set(visited)) == 8 * 64
        assert max(visited) == (7, 63)
        return super().forward(rows[places[3][0]]).mean()


def test_places_of_a_mask_are_those_of_one_that_is_true_everywhere():
    assert record_trace(lambda: VisitsPlaces(64, 4), ROWS, device="cpu").peak_bytes > 0


class SplitsTokens(nn.Linear):
    """Splits the tokens, sorted by their expert, by counts that the host reads."""

    def __init__(self, *, by_bincount: bool) -> None:
        super().__init__(64, 3)
        self.by_bincount = by_bincount

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        chosen = super().forward(rows).topk(2, dim=1)[1]
        if self.by_bincount:
            counts = torch.bincount(chosen.flatten(), minlength=3)
        else:
            counts = (
                torch.zeros(len(rows), 3, device=rows.device).scatter(1, chosen, 1).long().sum(0)
            )
        parts = rows.repeat_interleave(2, 0).split(counts.tolist())
        assert [len(part) for part in parts] == [43, 43, 42]
        return torch.stack([self.weight.sum() * part.sum() for part in parts]).sum()


@pytest.mark.parametrize("by_bincount", [False, True])
def test_counts_of_an_expert_s_tokens_can_be_read(by_bincount):
    trace = record_trace(lambda: SplitsTokens(by_bincount=by_bincount), ROWS, device="cpu")
    assert trace.peak_bytes > 0


class AsksForLengths(nn.Linear):
    """Reads how many elements of a mask are true, and the longest row of it."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        mask = rows.ne(-100)
        assert int(mask.sum()) == TOKENS * 64
        assert mask.long().sum(1).max().item() == 64
        assert mask.sum(-1, dtype=torch.int32).tolist() == [64] * TOKENS
        return super().forward(rows).mean()


def test_a_mask_that_is_counted_is_true_everywhere():
    assert record_trace(lambda: AsksForLengths(64, 4), ROWS, device="cpu").peak_bytes > 0
