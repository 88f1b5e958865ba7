"""The choice of blocks, against all sets."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from memagent.fitting import choice
from memagent.fitting.blocks import ModelBlock
from memagent.fitting.profile import BlockProfile, StepProfile, StepWindow


def random_profile(seed: int, blocks: int) -> StepProfile:
    """Return a chain of blocks of random sizes, as a step has it: in forward, and back."""
    dice = random.Random(seed)
    profiles = []
    for index in range(blocks):
        saved = dice.randint(20, 400)
        inner = saved + dice.randint(0, 80)
        profiles.append(BlockProfile(ModelBlock(f"h.{index}"), saved, inner, dice.randint(10, 900)))
    level, windows, entries = 1000, [], []
    for index, block in enumerate(profiles):
        level += block.saved_bytes
        windows.append(StepWindow(level, frozenset(range(index))))
    windows.append(StepWindow(level + 50, frozenset(range(blocks))))
    for index in reversed(range(blocks)):
        entries.insert(0, StepWindow(level, frozenset(range(index))))
        windows.append(StepWindow(level + 30, frozenset(range(index))))
        level -= profiles[index].saved_bytes
    total = sum(block.operations for block in profiles)
    return StepProfile(tuple(profiles), tuple(windows), tuple(entries), total)


def least_operations(profile: StepProfile, limit: int) -> int | None:
    indices = range(len(profile.blocks))
    sets = (s for size in range(len(indices) + 1) for s in combinations(indices, size))
    fitting = (s for s in sets if profile.peak_bytes(s) <= limit)
    return min((operations_of(profile, s) for s in fitting), default=None)


def operations_of(profile: StepProfile, chosen) -> int:
    return sum(profile.blocks[index].operations for index in chosen)


def limits_of(profile: StepProfile) -> list[int]:
    lowest = profile.peak_bytes(range(len(profile.blocks)))
    highest = profile.peak_bytes(())
    return [lowest + (highest - lowest) * part // 10 for part in (1, 3, 5, 8)]


@pytest.mark.parametrize("seed", range(8))
def test_up_to_twelve_blocks_nothing_is_cheaper(seed: int) -> None:
    profile = random_profile(seed, blocks=3 + seed)
    for limit in limits_of(profile):
        chosen = choice.cheapest(profile, limit)
        assert chosen is not None
        assert profile.peak_bytes(chosen) <= limit
        assert operations_of(profile, chosen) == least_operations(profile, limit)


def test_beyond_twelve_blocks_the_choice_fits_and_is_nearly_as_cheap(monkeypatch) -> None:
    monkeypatch.setattr(choice, "MAX_EXHAUSTIVE", 0)
    ratios = []
    for seed in range(12):
        profile = random_profile(100 + seed, blocks=11)
        for limit in limits_of(profile):
            chosen = choice.cheapest(profile, limit)
            assert chosen is not None
            assert profile.peak_bytes(chosen) <= limit
            least = least_operations(profile, limit)
            ratios.append(operations_of(profile, chosen) / least)
    assert sorted(ratios)[len(ratios) // 2] <= 1.05
    assert max(ratios) <= 1.5


def test_of_equal_blocks_the_first_run_again() -> None:
    """Their values would wait the longest."""
    blocks = tuple(BlockProfile(ModelBlock(f"h.{index}"), 100, 110, 50) for index in range(14))
    every = frozenset(range(14))
    entries = tuple(StepWindow(1000 + 100 * index, frozenset(range(index))) for index in range(14))
    profile = StepProfile(blocks, (StepWindow(2400, every),), entries, 700)
    assert choice.cheapest(profile, 2000) == frozenset(range(4))


def test_nothing_runs_again_for_a_step_that_fits() -> None:
    profile = random_profile(3, blocks=5)
    assert choice.cheapest(profile, profile.peak_bytes(())) == frozenset()


@pytest.mark.parametrize("blocks", [5, 15])
def test_what_cannot_fit_has_no_choice(blocks: int) -> None:
    profile = random_profile(4, blocks)
    lowest = min(profile.peak_bytes(range(blocks)), profile.peak_bytes(()))
    assert choice.cheapest(profile, lowest // 4) is None


@pytest.mark.parametrize("seed", range(5))
def test_challengers_cost_less_and_no_block_can_be_added(seed: int) -> None:
    profile = random_profile(seed, 6)
    limit, share = round(0.9 * profile.peak_bytes(())), 0.6 * profile.share(range(6))
    found = choice.challengers(profile, limit, share)
    assert found
    for chosen in found:
        assert profile.share(chosen) < share
        assert profile.peak_bytes(chosen) <= limit
        assert all(profile.share(chosen | {n}) >= share for n in set(range(6)) - chosen)
    peaks = [profile.peak_bytes(chosen) for chosen in found]
    assert peaks == sorted(peaks)


def test_many_blocks_have_no_challengers() -> None:
    profile = random_profile(0, 13)
    assert choice.challengers(profile, profile.peak_bytes(()), 1.0) == []
