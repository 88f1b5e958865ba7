"""PYTORCH_CUDA_ALLOC_CONF as torch reads it, compared with the parser of the installed torch."""

from __future__ import annotations

import pytest

from memagent.errors import EstimateError, SettingError
from memagent.estimator.allocator import AllocatorConfig
from memagent.estimator.allocator.config import UNLIMITED

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
