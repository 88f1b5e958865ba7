"""What is prepared once for many tests must not be prepared in each worker: a group of pytest-xdist is one worker's."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("kept-together")
def test_a_group_is_known_to_the_scheduler(request):
    if not request.config.getoption("loadgroup", False):
        pytest.skip("this is no worker of pytest-xdist with --dist loadgroup")
    assert request.node.nodeid.endswith("@kept-together")
