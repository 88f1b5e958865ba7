"""Memory besides tensors, against the sizes in torch's source."""

from __future__ import annotations

import pytest

from memagent.estimator.devices import (
    CONTEXT_RANGE_BYTES,
    ContextSize,
    context_of,
    cublas_workspace_bytes,
)


@pytest.mark.parametrize(
    ("capability", "setting", "bytes_"),
    [
        ((8, 0), None, 8_519_680),
        ((7, 5), None, 8_519_680),
        (None, None, 8_519_680),
        ((9, 0), None, 32 << 20),
        ((10, 0), None, 32 << 20),
        ((9, 0), ":4096:8", 32 << 20),
        ((8, 0), ":16:8", 128 << 10),
        ((9, 0), ":4096:2:16:8", 8_519_680),
        ((8, 0), "nonsense", 8_519_680),
    ],
)
def test_it_knows_cublas_s_workspace_by_generation_and_setting(capability, setting, bytes_):
    assert cublas_workspace_bytes(capability, setting) == bytes_


def test_it_gives_a_measured_context_no_range_and_any_other_the_whole_one():
    assert context_of(512 << 20) == ContextSize(512 << 20, None)
    assert context_of(None) == ContextSize(820 << 20, CONTEXT_RANGE_BYTES)
