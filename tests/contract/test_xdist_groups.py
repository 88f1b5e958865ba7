"""pytest-xdist runs the tests of a group on one worker, which prepares their fixtures once."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("one-worker")
def test_the_scheduler_sees_the_group_of_a_test(request):
    if not request.config.getoption("loadgroup", False):
        pytest.skip("not run by pytest-xdist with --dist loadgroup")
    assert request.node.nodeid.endswith("@one-worker")
