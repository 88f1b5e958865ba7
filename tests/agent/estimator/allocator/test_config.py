"""PYTORCH_CUDA_ALLOC_CONF as torch reads it, compared with the parser of the installed torch."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from memagent.errors import EstimateError, SettingError
from memagent.estimator.allocator import AllocatorConfig
from memagent.estimator.allocator.config import (
    UNLIMITED,
    next_division,
    page_size,
    round_size,
    segment_size,
)

MIB = 2**20


def divisions(config: AllocatorConfig, *sizes_mib: int) -> list[int]:
    return [config.divisions_for(size * MIB) for size in sizes_mib]


@pytest.mark.parametrize(
    "text", [None, "", "  ", "backend:native", "pinned_use_background_threads:True"]
)
def test_it_has_torchs_defaults(text):
    config = AllocatorConfig.parse(text)
    assert config == AllocatorConfig()
    assert (config.max_split_bytes, config.max_non_split_rounding_bytes) == (UNLIMITED, 20 * MIB)
    assert (config.large_segment_bytes, config.garbage_collection_threshold) == (20 * MIB, 0.0)
    assert not config.expandable_segments


def test_it_reads_every_option_with_blanks_and_a_trailing_comma():
    config = AllocatorConfig.parse(
        "max_split_size_mb:40, max_non_split_rounding_mb:30, garbage_collection_threshold: 0.5,"
        "roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1], expandable_segments:True,"
        "per_process_memory_fraction:0.9,"
    )
    assert config.max_split_bytes == 40 * MIB
    assert config.max_non_split_rounding_bytes == 30 * MIB
    assert config.garbage_collection_threshold == 0.5
    assert config.memory_fraction == 0.9
    assert config.expandable_segments
    # as torch's test of this text expects
    assert divisions(config, 32, 64, 128, 256, 512, 1024, 2048, 8192) == [8, 8, 2, 4, 2, 4, 1, 1]


def test_intervals_that_the_list_leaves_out_are_not_rounded():
    config = AllocatorConfig.parse("roundup_power2_divisions:[128:8,256:16,512:1,2048:8,>:2]")
    assert divisions(config, 64, 128, 256, 512, 1024, 2048, 4096) == [8, 8, 16, 1, 0, 8, 2]


def test_before_torch_2_10_the_rest_also_covers_the_interval_named_last():
    text = "roundup_power2_divisions:[256:2,512:4,>:8]"
    assert divisions(AllocatorConfig.parse(text, "2.10.0"), 256, 512, 1024) == [2, 4, 8]
    assert divisions(AllocatorConfig.parse(text, "2.9.0+cu128"), 256, 512, 1024) == [2, 8, 8]


def test_one_number_of_divisions_is_for_all_sizes():
    config = AllocatorConfig.parse("roundup_power2_divisions:4")
    assert divisions(config, 1, 64, 2048, 10**6) == [4, 4, 4, 4]
    assert config.divisions_for(600) == 4


def test_the_large_segment_size_moves_the_limits_that_depend_on_it():
    config = AllocatorConfig.parse("max_split_size_mb:20,large_segment_size_mb:15")
    assert (config.large_segment_bytes, config.max_non_split_rounding_bytes) == (15 * MIB, 15 * MIB)
    assert config.max_split_bytes == 20 * MIB


def test_older_torch_limits_no_process_by_itself():
    assert AllocatorConfig.parse("", "2.9.1").memory_fraction is None
    assert AllocatorConfig.parse("", "2.10.0").memory_fraction == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "foo:1,bar:2",
        "max_split_size_mb",
        "max_split_size_mb:",
        "max_split_size_mb:2",
        "max_split_size_mb:20,large_segment_size_mb:25",
        "max_non_split_rounding_mb:19",
        "large_segment_size_mb:10",
        "garbage_collection_threshold:1.2",
        "garbage_collection_threshold:0",
        "roundup_power2_divisions:[64:8",
        "roundup_power2_divisions:[64:3]",
        "roundup_power2_divisions:[65:4]",
        "roundup_power2_divisions:[64]",
        "roundup_power2_divisions:7",
        "expandable_segments:true",
        "max_split_size_mb:many",
    ],
)
def test_it_rejects_settings_that_torch_rejects(text):
    with pytest.raises(SettingError, match="PYTORCH_CUDA_ALLOC_CONF"):
        AllocatorConfig.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "max_split_size_mb:2",
        "max_split_size_mb:20",
        "max_split_size_mb:20,large_segment_size_mb:25",
        "large_segment_size_mb:10",
        "large_segment_size_mb:11",
        "max_non_split_rounding_mb:19",
        "garbage_collection_threshold:1.2",
        "garbage_collection_threshold:0.99",
        "roundup_power2_divisions:[64:8,>:0]",
        "roundup_power2_divisions:[64:3]",
        "roundup_power2_divisions:[65:4]",
        "roundup_power2_divisions:7",
        "roundup_power2_divisions:1",
        "expandable_segments:true",
        "expandable_segments:False,",
    ],
)
def test_it_agrees_with_the_installed_torch_on_valid_settings(text):
    torch = pytest.importorskip("torch")
    settings = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if settings is None:
        pytest.skip("this torch has no settings parser for all devices")

    def accepted(parse, error):
        try:
            parse(text)
        except error:
            return False
        return True

    try:
        assert accepted(AllocatorConfig.parse, SettingError) == accepted(
            settings, (RuntimeError, ValueError)
        )
    finally:
        settings("large_segment_size_mb:20,expandable_segments:False")


def test_the_asynchronous_allocator_of_cuda_is_rejected():
    with pytest.raises(EstimateError, match="cudaMallocAsync"):
        AllocatorConfig.parse("backend:cudaMallocAsync")


# Limits of the values


@pytest.mark.parametrize(
    ("valid", "invalid", "reason"),
    [
        ("max_split_size_mb:20", "max_split_size_mb:19", "is 19: it must be at least 20"),
        ("large_segment_size_mb:11", "large_segment_size_mb:10", "is 10: it must be more than 10"),
        ("garbage_collection_threshold:0.001", "garbage_collection_threshold:0", "between 0 and 1"),
        ("garbage_collection_threshold:0.999", "garbage_collection_threshold:1", "between 0 and 1"),
        ("per_process_memory_fraction:0", "per_process_memory_fraction:-0.01", "between 0 and 1"),
        ("per_process_memory_fraction:1", "per_process_memory_fraction:1.01", "between 0 and 1"),
        ("per_process_memory_fraction:0.5", "per_process_memory_fraction:half", "is half: it must"),
        ("roundup_power2_divisions:1", "roundup_power2_divisions:0", "has 0, which is not a power"),
        ("roundup_power2_divisions:[1:8]", "roundup_power2_divisions:[1:6]", "has 6, which is not"),
        ("roundup_power2_divisions:[1:0]", "roundup_power2_divisions:[0:1]", "has 0, which is not"),
        ("pinned_max_cached_size_mb:5", "pinned_max:5", "has no option 'pinned_max'"),
    ],
)
def test_values_have_limits(valid, invalid, reason):
    AllocatorConfig.parse(valid)
    with pytest.raises(SettingError, match=reason):
        AllocatorConfig.parse(invalid)


def test_a_fraction_is_that_of_the_text():
    assert AllocatorConfig.parse("per_process_memory_fraction:0").memory_fraction == 0.0
    assert AllocatorConfig.parse("per_process_memory_fraction:0.25", "2.9").memory_fraction == 0.25


def test_more_than_any_device_has_is_unlimited():
    assert AllocatorConfig.parse(f"max_split_size_mb:{2**42 - 1}").max_split_bytes == 2**62 - MIB
    for mib in (2**42, 2**42 + 1, 2**60):
        assert AllocatorConfig.parse(f"max_split_size_mb:{mib}").max_split_bytes == 2**62


@pytest.mark.parametrize(
    ("version", "fraction"),
    [
        ("1.13.1", None), ("2.9.1", None), ("2.10", 1.0), ("2.10.0a0+git", 1.0), ("2.11", 1.0), ("3.0", 1.0),
        (None, 1.0), ("nightly", 1.0),
    ],
)  # fmt: skip
def test_the_version_decides_from_2_10_on(version, fraction):
    assert AllocatorConfig.parse("", version).memory_fraction == fraction


def test_the_last_of_two_equal_options_counts():
    assert (
        AllocatorConfig.parse("max_split_size_mb:30,max_split_size_mb:40").max_split_bytes
        == 40 * MIB
    )


def test_the_limits_follow_the_large_segment_wherever_it_stands():
    text = "max_split_size_mb:30,max_non_split_rounding_mb:31,large_segment_size_mb:30"
    config = AllocatorConfig.parse(text)
    assert (config.max_split_bytes, config.max_non_split_rounding_bytes) == (30 * MIB, 31 * MIB)
    with pytest.raises(SettingError, match="max_split_size_mb is 29: it must be at least 30"):
        AllocatorConfig.parse("max_split_size_mb:29,large_segment_size_mb:30")


# Divisions by size


def test_an_interval_begins_at_a_power_of_two():
    config = AllocatorConfig(roundup_power2_divisions=tuple(range(100, 116)))
    sizes = [1, MIB - 1, MIB, 2 * MIB - 1, 2 * MIB, 4 * MIB - 1, 4 * MIB, 2**35, 2**36, 2**40]
    assert [config.divisions_for(size) for size in sizes] == [
        100, 100, 100, 100, 101, 101, 102, 115, 115, 115,
    ]  # fmt: skip
    assert config.divisions_for(2**35 - 1) == 114
    assert AllocatorConfig().divisions_for(2**30) == 0


def table(pairs: str, version: str | None = None) -> list[int]:
    config = AllocatorConfig.parse(f"roundup_power2_divisions:{pairs}", version)
    assert len(config.roundup_power2_divisions) == 16
    return list(config.roundup_power2_divisions)


def test_a_table_has_sixteen_intervals():
    assert table("8") == [8] * 16
    assert table("[1:2]") == [2] + [0] * 15
    assert table("[2:2]") == [2, 2] + [0] * 14
    assert table("[4:2,8:4]") == [2, 2, 2, 4] + [0] * 12
    assert table("[>:4]") == [0] + [4] * 15
    assert table("[1:2,>:4]") == [2] + [4] * 15
    assert table("[1:2,>:4]", "2.9") == [4] * 16
    assert table("[>:4]", "2.9") == [4] * 16
    assert table("[32768:2]") == [2] * 16
    assert table("[65536:2]") == [2] * 16
    assert table("[16384:2,>:8]") == [2] * 15 + [8]


def test_settings_are_immutable():
    with pytest.raises(FrozenInstanceError):
        AllocatorConfig().expandable_segments = True


# Rounding


def test_sizes_are_rounded_by_hand():
    plain, eighths = AllocatorConfig(), AllocatorConfig.parse("roundup_power2_divisions:8")
    assert [round_size(size, plain) for size in (1, 511, 512, 513, 1024, 1025)] == [
        512, 512, 512, 1024, 1024, 1536,
    ]  # fmt: skip
    # up to 8 blocks of 512 bytes, a division would be smaller than a block
    assert [round_size(size, eighths) for size in (4096, 4097, 4608, 4609, 9000)] == [
        4096, 4608, 4608, 5120, 9216,
    ]  # fmt: skip
    sixteenths = AllocatorConfig(roundup_power2_divisions=(16,) * 16)
    assert [round_size(size, sixteenths) for size in (2900, 8192, 8193)] == [3072, 8192, 8704]
    assert [next_division(size, 4) for size in (1024, 1025, 1200, 1280, 1281, 2047, 2048)] == [
        1024, 1280, 1280, 1280, 1536, 2048, 2048,
    ]  # fmt: skip
    assert [next_division(size, 1) for size in (5, 8, 9)] == [8, 8, 16]
    assert [next_division(size, 8) for size in (1, 2, 3, 5, 9)] == [1, 2, 4, 8, 9]


def test_segments_by_hand():
    config = AllocatorConfig.parse("large_segment_size_mb:30")
    assert [segment_size(size, config) // MIB for size in (512, MIB, MIB + 512, 10 * MIB - 512)] == [
        2, 2, 30, 30,
    ]  # fmt: skip
    assert [segment_size(size, config) // MIB for size in (10 * MIB, 10 * MIB + 1, 12 * MIB)] == [
        10, 12, 12,
    ]  # fmt: skip
    assert (page_size(small=True, config=config), page_size(small=False, config=config)) == (
        2 * MIB, 30 * MIB,
    )  # fmt: skip
